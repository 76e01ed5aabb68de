"""Captions of walks: what today's captions say of a scene, and what a walk adds: how one walks and turns, and
what is passed.

All new words are in `NEW_WORDS`; a tokenizer of both worlds is built from `ALL_WORDS`. As in the other world,
a caption can be read back: `mentioned_of_walk`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from millstream.train.data.actions_file import KEYS
from millstream.train.data.captions import LEFT_OUT, WORDS, Phrases, canonical_captions, captions, mentioned
from millstream.train.data.vocabulary import SETTINGS
from millstream.train.data.walk.actions import Actions
from millstream.train.data.walk.render import LABELS
from millstream.train.data.walk.scene import Walks
from millstream.train.data.walk.walker import TURN_SPEED

STEPS = ("standing", "walking", "backing", "sidling")
TURNS = ("straight", "left", "right")
SIGHTS = ("trees", "houses", "lake")

STEP_PHRASES: Phrases = {
    "standing": ("seen while standing still", "from where the walker waits"),
    "walking": ("seen while walking ahead", "on a walk forwards"),
    "backing": ("seen while walking backwards", "on a walk back"),
    "sidling": ("seen while walking sideways", "on a walk sideways"),
}
TURN_PHRASES: Phrases = {
    "straight": ("",),
    "left": ("turning left", "looking left"),
    "right": ("turning right", "looking right"),
}
WALK_MARK = "on a walk"
"""Says which of the two worlds a caption is of, and nothing else."""
UNMARKED = 0.25
"""Share of the captions without it, of clips whose keys say it from the first chunk on."""
SIGHT_PHRASES: Phrases = {
    "trees": ("near trees", "past trees"),
    "houses": ("near houses", "past houses"),
    "lake": ("near a lake", "by a lake"),
}
_TABLES: dict[str, tuple[tuple[str, ...], Phrases]] = {
    "step": (STEPS, STEP_PHRASES),
    "turn": (TURNS, TURN_PHRASES),
    "sight": (SIGHTS, SIGHT_PHRASES),
}
TURNED = 12.0
"""Degrees that a clip must turn by, from its first frame to its last, to be said to turn."""
SEEN_SHARE = 0.015
"""Share of a clip's pixels that must show trees, houses or a lake for its caption to name them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WalkAttributes:
    """Attributes that a walk adds to those of its scene."""

    step: Tensor
    """[B] ids of `STEPS`: what most frames do; standing where most do nothing."""
    turn: Tensor
    """[B] ids of `TURNS`."""
    sight: Tensor
    """[B, 3] bool, in the order of `SIGHTS`."""


def walk_attributes(walks: Walks, actions: Actions, labels: Tensor, *, fps: float) -> WalkAttributes:
    """Attributes of clips that show all frames of their actions; `labels` [B, T, Y, X] as rendered."""
    keys = {name: actions.keys[..., i].double() for i, name in enumerate(KEYS)}
    ahead = (keys["w"] > keys["s"]).sum(dim=1)
    back = (keys["s"] > keys["w"]).sum(dim=1)
    aside = ((keys["a"] != keys["d"]) & (keys["w"] == keys["s"])).sum(dim=1)
    still = actions.frames - ahead - back - aside
    step = torch.stack((still, ahead, back, aside), dim=1).argmax(dim=1)
    turned = ((keys["right"] - keys["left"]) * TURN_SPEED / fps + actions.look[..., 0]).sum(dim=1)
    turn = torch.where(turned > TURNED, 2, torch.where(turned < -TURNED, 1, 0))
    shares = [
        (labels == LABELS.index(name)).float().mean(dim=(1, 2, 3)).cpu()
        for name in ("tree", "house", "water")
    ]
    sight = torch.stack(shares, dim=1) > SEEN_SHARE
    sight[:, SIGHTS.index("lake")] &= walks.scenes.setting != SETTINGS.index("sea")
    return WalkAttributes(step=step, turn=turn, sight=sight)


def walk_captions(walks: Walks, found: WalkAttributes, *, seed: int) -> list[str]:
    """One caption a clip; what a walk adds is left out as often as other attributes are."""
    lines = captions(walks.scenes, seed=seed)
    said = []
    for row, line in enumerate(lines):
        lots = random.Random(f"walk/{seed}/{row}")
        names = [lots.choice(phrases) for phrases in _phrases(found, row) if lots.random() >= LEFT_OUT]
        said.append(_joined(line, names))
    return said


def steered_captions(
    walks: Walks, found: WalkAttributes, keys_say_it: Sequence[bool], *, seed: int
) -> list[str]:
    """One caption a clip for a model that takes keys: which world it is, and what is passed. What the walker
    does is left to the keys: where words said it too, a model would follow them in place of the keys, and go
    on walking after a key is let go. `keys_say_it`, a clip each: its first chunk is walked by keys."""
    lines = captions(walks.scenes, seed=seed)
    said = []
    for row, line in enumerate(lines):
        lots = random.Random(f"steered/{seed}/{row}")
        _, _, *sights = _phrases(found, row)
        names = [lots.choice(phrases) for phrases in sights if lots.random() >= LEFT_OUT]
        is_marked = not keys_say_it[row] or lots.random() >= UNMARKED
        is_first = lots.random() < 0.5
        if is_marked and is_first:
            line = f"{WALK_MARK}, {line}"
        elif is_marked:
            names = [WALK_MARK, *names]
        said.append(_joined(line, names))
    return said


def plain_steered_captions(walks: Walks) -> list[str]:
    """The plain caption of each scene, as a walk."""
    return [f"{line}, {WALK_MARK}" for line in canonical_captions(walks.scenes)]


def plain_walk_captions(walks: Walks, found: WalkAttributes) -> list[str]:
    """The first phrase of everything, in one order."""
    lines = canonical_captions(walks.scenes)
    return [_joined(line, [phrases[0] for phrases in _phrases(found, row)]) for row, line in enumerate(lines)]


def mentioned_of_walk(caption: str) -> dict[str, tuple[int, ...]]:
    """Return the ids of all attributes that a caption mentions, those of the scene too."""
    found = mentioned(caption)
    words = caption.replace(",", " ").split()
    i = 0
    while i < len(words):
        for length in range(min(6, len(words) - i), 0, -1):
            meaning = _meanings().get(tuple(words[i : i + length]))
            if meaning is not None:
                name, value = meaning
                found[name] = (*found.get(name, ()), value)
                break
        else:
            length = 1
        i += length
    return found


def _phrases(found: WalkAttributes, row: int) -> list[tuple[str, ...]]:
    """All ways to say each attribute of one walk."""
    step = STEP_PHRASES[STEPS[int(found.step[row])]]
    turn = TURN_PHRASES[TURNS[int(found.turn[row])]]
    sights = [
        SIGHT_PHRASES[name] for name, there in zip(SIGHTS, found.sight[row].tolist(), strict=True) if there
    ]
    return [step, turn, *sights]


def _joined(line: str, parts: Sequence[str]) -> str:
    """The scene, a comma, then what the walk adds."""
    added = " ".join(part for part in parts if part)
    return f"{line}, {added}" if added else line


@cache
def _meanings() -> dict[tuple[str, ...], tuple[str, int]]:
    found: dict[tuple[str, ...], tuple[str, int]] = {}
    for attribute, (names, phrases) in _TABLES.items():
        for i, name in enumerate(names):
            for phrase in filter(None, phrases[name]):
                assert not mentioned(phrase), f"{phrase!r} says something of a scene"
                key = tuple(phrase.split())
                assert key not in found, f"{phrase!r} means two things"
                found[key] = (attribute, i)
    return found


NEW_WORDS: tuple[str, ...] = tuple(sorted({word for phrase in _meanings() for word in phrase} - set(WORDS)))
"""Words that the other world's captions do not have."""
ALL_WORDS: tuple[str, ...] = tuple(sorted({*WORDS, *NEW_WORDS}))
"""Every word a caption of either world can have."""
