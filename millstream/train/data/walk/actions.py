"""Actions of a walker in every frame: keys that are held and how far he looks, and seeded tracks of it.

A track is made of spells, as people walk: some seconds ahead, a turn, a look around, a stop. Nothing here
knows where the walker is.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from millstream.core.errors import ConfigError
from millstream.train.data.actions_file import KEYS, ActionRow
from millstream.train.data.vocabulary import HELD_OUT_ONE_IN

STANDING_SHARE = 0.2
"""About so much of a track nothing is done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Actions:
    """Actions of B walks and T frames. The keys of frame t are held while frame t comes to be: its pose has them in
    it."""

    keys: Tensor
    """[B, T, 8] bool, in the order of `KEYS`."""
    look: Tensor
    """[B, T, 2] float64: degrees to the right and up that a mouse adds in this frame."""

    def __post_init__(self) -> None:
        assert self.keys.shape[:2] == self.look.shape[:2], f"{self.keys.shape} and {self.look.shape} differ"
        assert self.keys.shape[2:] == (len(KEYS),), f"{len(KEYS)} keys a frame, got {self.keys.shape}"

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rows: slice) -> Actions:
        return Actions(keys=self.keys[rows], look=self.look[rows])

    @property
    def frames(self) -> int:
        return self.keys.shape[1]


def standing(count: int, frames: int) -> Actions:
    """Nothing is done."""
    return Actions(
        keys=torch.zeros(count, frames, len(KEYS), dtype=torch.bool),
        look=torch.zeros(count, frames, 2, dtype=torch.float64),
    )


def held(keys: str, frames: int, count: int = 1) -> Actions:
    """Hold some keys in every frame, named as in `w+left`."""
    actions = standing(count, frames)
    for name in keys.split("+"):
        actions.keys[:, :, KEYS.index(name)] = True
    return actions


def actions_of(rows: Sequence[ActionRow]) -> Actions:
    """One walk's actions, as its file has them."""
    if not rows:
        raise ConfigError("a file of actions has no rows; it needs one for each frame")
    actions = standing(1, len(rows))
    for t, row in enumerate(rows):
        for key in row.keys:
            if key not in KEYS:
                raise ConfigError(f"no key to walk with is called {key!r}; keys are {', '.join(KEYS)}")
            actions.keys[0, t, KEYS.index(key)] = True
        actions.look[0, t] = torch.tensor((row.look_x, row.look_y), dtype=torch.float64)
    return actions


def is_held_out_track(name: str) -> bool:
    """Decided by a hash of the track's name, as combinations are by theirs."""
    digest = hashlib.sha256(f"walk/{name}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT_ONE_IN == 0


def random_tracks(
    count: int, *, frames: int, seed: int, fps: float, held_out: bool | None = False, start: int = 0
) -> Actions:
    """Tracks `start` to `start + count` of a seed. A longer track begins as the shorter one does.

    `held_out`: False never gives a track that is kept from training, True only such, None does not care.
    """
    tracks = [_track(_lots(seed, start + row, held_out), frames, fps) for row in range(count)]
    return Actions(
        keys=torch.stack([track.keys[0] for track in tracks]),
        look=torch.stack([track.look[0] for track in tracks]),
    )


def _lots(seed: int, row: int, held_out: bool | None) -> random.Random:
    attempt = 0
    while held_out is not None and is_held_out_track(f"{seed}/{row}/{attempt}") != held_out:
        attempt += 1
    return random.Random(f"walk/{seed}/{row}/{attempt}")


def _track(lots: random.Random, frames: int, fps: float) -> Actions:
    """Spells one after the other, and between them the memory of where the eye points: who turned away
    turns back."""
    track = standing(1, frames)
    turned = 0.0  # in seconds of turning, to the right
    raised = 0.0
    at = 0
    while at < frames:
        spell = round(lots.uniform(0.5, 2.2) * fps)
        part = slice(at, at + spell)
        names = set[str]()
        if lots.random() >= STANDING_SHARE:
            kind = lots.choices(("walk", "turn", "stray", "look"), (0.55, 0.2, 0.12, 0.13))[0]
            if kind == "walk":
                names.add("w")
            if kind == "stray":
                names.add(lots.choice(("a", "d", "s")))
            if kind == "turn" or (kind in ("walk", "stray") and lots.random() < 0.3):
                spell = min(spell, round(lots.uniform(0.3, 1.0) * fps))
                part = slice(at, at + spell)
                names.add(_back(lots, turned, "left", "right"))
            if kind == "look" and lots.random() < 0.5:
                spell = min(spell, round(lots.uniform(0.2, 0.6) * fps))
                part = slice(at, at + spell)
                names.add(_back(lots, raised, "down", "up"))
            elif kind == "look":
                _sweep(track.look[0, part], lots, turned, spell)
        for name in names:
            track.keys[0, part, KEYS.index(name)] = True
        seconds = spell / fps
        turned += seconds * (("right" in names) - ("left" in names))
        raised += seconds * (("up" in names) - ("down" in names))
        at += spell
    return track


def _back(lots: random.Random, turned: float, less: str, more: str) -> str:
    """Rather back to the middle than further away from it."""
    return more if lots.random() < 0.5 - 0.4 * math.tanh(2 * turned) else less


def _sweep(look_T2: Tensor, lots: random.Random, turned: float, spell: int) -> None:
    """A glance by mouse: off and back again, so that it ends where it began."""
    wide = lots.uniform(8, 28) * (1 if _back(lots, turned, "l", "r") == "r" else -1)
    tall = lots.uniform(-8, 8)
    place = torch.arange(spell + 1, dtype=torch.float64).mul(math.pi / spell).sin().square()
    step = place.diff()[: len(look_T2)]
    look_T2[:, 0] = (step * wide).round(decimals=3)
    look_T2[:, 1] = (step * tall).round(decimals=3)
