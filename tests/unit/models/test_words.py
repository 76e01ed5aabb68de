"""What Brook makes of words that it was not taught, by a table to those that it was."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.config import BrookTextConfig
from millstream.core.presets import MODELS
from millstream.models.brook.text import WordTokenizer, words
from millstream.models.brook.word_table import COUNTS, MAX_WORDS, PATH, word_table
from millstream.train.data.captions import WORDS, canonical_captions, captions
from millstream.train.data.scene import sample_scenes
from millstream.train.data.word_table import as_text, build
from millstream.train.data.wordnet import FOLDER, read_wordnet

TEXT = MODELS["brook"].text
assert isinstance(TEXT, BrookTextConfig)
LIMIT = TEXT.tokens
BROOK = WordTokenizer(WORDS, word_table)
UNDERSTOOD = {
    "boat": "vessel ship yacht dinghy boats ships yachts ocean_liner cruise_ship",
    "sailing boat": "sailing_ship sailing_ships",
    "bird": "sparrow gull seagulls birds eagle bald_eagle ravens",
    "train": "locomotive trains locomotives",
    "plane": "jet planes aeroplane",
    "comet": "falling_star meteors asteroid",
    "aurora": "aurora_borealis polar_lights",
    "rain": "storm drizzle thunderstorm",
    "rainy": "stormy",
    "snow": "blizzard",
    "fog": "haze",
    "foggy": "misty",
    "sunset": "sundown",
    "large": "gigantic enormous",
    "small": "miniature",
    "blue": "turquoise",
    "forest": "jungle grove tree trees",
    "tall buildings": "skyscraper skyscrapers",
    "city": "metropolis paris tokyo",
    "sand dunes": "dune",
    "space": "galaxy stars mars",
    "drifting": "float floating flying",
    "gliding": "glide",
    "rising": "soar soared soaring",
    "rises": "soars",
    "fish": "shark sharks",
    "whale": "dolphin orca killer_whale",
    "blue bird": "bluebird blue_jay",
    "": "the very this your",
}
OTHERS = """
hammer bank bass crane nice reading mobile dog car bat seal light sound no not without never blue_cat training
fishing object entity animal outboard
"""


@pytest.mark.parametrize(
    ("name", "target"),
    [(name.replace("_", " "), target) for target, names in UNDERSTOOD.items() for name in names.split()],
)
def test_what_means_the_same_is_read_as_a_word_of_brooks(name: str, target: str) -> None:
    reading = BROOK.read(name)
    assert reading.unknown == ()
    if set(words(name)) <= set(WORDS):
        assert reading == (name, (), ())
    else:
        assert reading.understood == (((name, target),) if target else ())
        assert reading.text == (target or name)


@pytest.mark.parametrize("name", OTHERS.split())
def test_what_means_something_else_is_not_understood(name: str) -> None:
    said = name.split("_")
    assert BROOK.read(" ".join(said)).unknown == tuple(word for word in said if word not in WORDS)


def test_every_target_is_in_the_vocabulary_and_no_known_word_is_mapped() -> None:
    known = set(WORDS)
    for name, target in word_table().items():
        said = name.split("_")
        assert said == words(" ".join(said)), f"{name} is not what a prompt is cut into"
        assert len(said) <= MAX_WORDS, name
        assert not known.issuperset(said), f"{name} is known"
        assert target in COUNTS or known.issuperset(target.split()), f"{name}: {target}"


def test_a_prompt_of_known_words_gives_the_very_tokens_that_it_gave() -> None:
    def refused() -> dict[str, str]:
        raise AssertionError("the table is not needed")

    plain = WordTokenizer(WORDS)
    tokenizer = WordTokenizer(WORDS, refused)
    scenes = sample_scenes(500, seed=3)
    anything = random.Random(0)
    shuffled = [" ".join(anything.choices(WORDS, k=12)) for _ in range(500)]
    for text in (*captions(scenes, seed=1), *canonical_captions(scenes), *WORDS, *shuffled):
        reading = tokenizer.read(text)
        assert reading == (text, (), ())
        assert tokenizer.ids(reading.text, LIMIT) == plain.ids(text, LIMIT)


@pytest.mark.parametrize(
    ("text", "read", "unknown"),
    [
        ("Two boats on a stormy sea", "boat on a rainy sea", ("two",)),
        ("a pair of kites", "a kite", ("pair",)),
        ("three red balloons", "red balloon", ("three",)),
        ("one lighthouse", "one lighthouse", ("lighthouse",)),
        ("the northern lights over an ocean liner", "the northern lights over an boat", ()),
        ("a light-blue sailing ship, by the sailor's town", "a blue sailing boat by the town", ("sailor",)),
        ("a hammer", "a hammer", ("hammer",)),
        ("", "", ()),
    ],
)
def test_a_prompt_is_read_phrase_by_phrase(text: str, read: str, unknown: tuple[str, ...]) -> None:
    reading = BROOK.read(text)
    assert (reading.text, reading.unknown) == (read, unknown)


def test_a_model_that_counts_reads_counts() -> None:
    counting = WordTokenizer((*WORDS, *COUNTS), word_table)
    assert counting.read("two ships").text == "two boat"
    assert counting.read("a pair of kites").text == "a two kite"
    assert counting.read("a trio of gulls").understood == (("trio", "three"), ("gulls", "bird"))


def test_a_model_that_does_not_know_a_target_is_not_given_it() -> None:
    few = WordTokenizer(("a", "red", "sea"), word_table)
    assert few.read("a maroon ship") == ("a red", ("ship",), (("maroon", "red"),))
    assert WordTokenizer((), word_table).read("a maroon ship").unknown == ("a", "maroon", "ship")


@given(
    st.one_of(
        st.text(max_size=80), st.lists(st.sampled_from(sorted(word_table())[::50]), max_size=9).map(" ".join)
    )
)
def test_any_text_is_read_and_within_the_limit(text: str) -> None:
    reading = BROOK.read(text)
    ids = BROOK.ids(reading.text, LIMIT)
    assert len(ids) <= LIMIT
    assert all(0 < number <= len(WORDS) for number in ids)
    assert BROOK.ids(BROOK.read(reading.text).text, LIMIT) == ids, "what was read is read as it is"


def test_the_table_is_small_and_its_licence_lies_beside_it() -> None:
    assert PATH.stat().st_size <= 300_000
    assert "WordNet 3.0 Copyright 2006 by Princeton University." in PATH.with_suffix(".LICENSE").read_text()


def test_the_model_card_says_how_many_names_it_has() -> None:
    card = Path(__file__).parents[3] / "docs" / "brook.md"
    assert f"{len(word_table()):,} other English words" in card.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(
    not (FOLDER / "data.noun").is_file(), reason=f"WordNet is not in {FOLDER}: apt install wordnet-base"
)
def test_the_table_is_what_its_program_makes_of_wordnet() -> None:
    assert as_text(build(read_wordnet())) == PATH.read_text(encoding="utf-8"), (
        "run python -m millstream.train.data.word_table"
    )
