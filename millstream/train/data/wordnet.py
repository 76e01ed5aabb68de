"""WordNet's files, read: senses of English words, in the order of how common they are, and how they relate.

The format is wndb(5WN) and cntlist(5WN). Knows nothing of what it is read for. WordNet is no part of the
package: Debian has it as `wordnet-base`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

Part = Literal["noun", "verb", "adj", "adv"]
PARTS: tuple[Part, ...] = ("noun", "verb", "adj", "adv")
FOLDER = Path("/usr/share/wordnet")
"""Folder that Debian puts it in."""

_PART_OF: Mapping[str, Part] = {"n": "noun", "v": "verb", "a": "adj", "s": "adj", "r": "adv"}
_PART_NUMBERS: Mapping[str, Part] = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}


class SynsetId(NamedTuple):
    part: Part
    offset: int
    """Byte at which its line begins in the file of this part of speech."""


class Relation(NamedTuple):
    """Pointer from one synset to another."""

    symbol: str
    """`~` hyponym, `~i` instance, `&` similar to, ..."""
    target: SynsetId


@dataclass(frozen=True, kw_only=True, slots=True)
class Synset:
    """Words that mean one thing."""

    file: int
    """Number of the lexicographers' file that it is from, as in lexnames(5WN): 5 animals, 13 food, ..."""
    words: tuple[str, ...]
    """As they are written, with capitals; underscores between the words of a phrase."""
    relations: tuple[Relation, ...]
    satellite: bool
    """True for an adjective that leans on another one: `colossal` on `large`."""


class Sense(NamedTuple):
    """One meaning of a word."""

    synset: SynsetId
    met: int
    """Number of times that it stands in tagged texts; of most words, never."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WordNet:
    synsets: Mapping[SynsetId, Synset]
    senses: Mapping[Part, Mapping[str, tuple[Sense, ...]]]
    """By lower-case word, the most common first."""
    irregular: Mapping[Part, Mapping[str, tuple[str, ...]]]
    """Irregular forms, by their base form."""

    def find(self, name: str) -> SynsetId:
        """Return the synset of a sense such as `boat.noun.1`."""
        word, part, number = name.rsplit(".", 2)
        for known in PARTS:
            if known == part and len(found := self.senses[known].get(word, ())) >= int(number):
                return found[int(number) - 1].synset
        raise KeyError(f"WordNet has no sense {name}")

    def under(self, start: SynsetId) -> Iterator[SynsetId]:
        """Yield what is a kind or an instance of it; of an adjective, those that lean on it."""
        synset = self.synsets[start]
        for symbol, target in synset.relations:
            if symbol in ("~", "~i") or (symbol == "&" and not synset.satellite):
                yield target


def read_wordnet(folder: Path = FOLDER) -> WordNet:
    synsets: dict[SynsetId, Synset] = {}
    for part in PARTS:
        for line in _lines(folder / f"data.{part}"):
            number, synset = _synset(line)
            synsets[SynsetId(part, number)] = synset
    counts = _counts(folder / "cntlist.rev")
    return WordNet(
        synsets=synsets,
        senses={part: dict(_senses(folder / f"index.{part}", part, counts)) for part in PARTS},
        irregular={part: _irregular(folder / f"{part}.exc") for part in PARTS},
    )


def _lines(path: Path) -> Iterator[str]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("  "):  # the licence
            yield line


def _synset(line: str) -> tuple[int, Synset]:
    fields = line.partition("|")[0].split()
    num_words = int(fields[3], 16)
    words = tuple(fields[4 + 2 * i].partition("(")[0] for i in range(num_words))
    place = 4 + 2 * num_words
    relations = []
    for i in range(int(fields[place])):
        symbol, offset, part, _ = fields[place + 1 + 4 * i : place + 5 + 4 * i]
        relations.append(Relation(symbol, SynsetId(_PART_OF[part], int(offset))))
    is_satellite = fields[2] == "s"
    return int(fields[0]), Synset(
        file=int(fields[1]), words=words, relations=tuple(relations), satellite=is_satellite
    )


def _senses(
    path: Path, part: Part, counts: Mapping[tuple[str, Part, int], int]
) -> Iterator[tuple[str, tuple[Sense, ...]]]:
    for line in _lines(path):
        fields = line.split()
        word = fields[0]
        offsets = fields[len(fields) - int(fields[2]) :]
        yield (
            word,
            tuple(
                Sense(SynsetId(part, int(offset)), counts.get((word, part, number), 0))
                for number, offset in enumerate(offsets, start=1)
            ),
        )


def _counts(path: Path) -> dict[tuple[str, Part, int], int]:
    found: dict[tuple[str, Part, int], int] = {}
    for line in _lines(path):
        key, number, count = line.split()
        word, _, rest = key.partition("%")
        found[word, _PART_NUMBERS[rest[0]], int(number)] = int(count)
    return found


def _irregular(path: Path) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for line in _lines(path):
        form, *bases = line.split()
        for base in bases:
            found[base] = (*found.get(base, ()), form)
    return found
