"""Vocabulary of the world, and what goes with what. Plain names; an id is a name's place in its tuple.

What goes with what:

- Air things (balloon, bird, kite, lantern, plane, umbrella) fly over every land; umbrellas do not fly over
  the sea.
- Boats, fish and whales keep to the water of the sea, jellyfish hover over it; every thing may float in
  space.
- Trains run over land (not sea, not forest) along one track, so they only drift.
- Comets need a dark sky: night over land and sea, any time in space.
- Aurora needs dusk or night. It does not snow in the desert. In space the weather is clear, or aurora: a
  glowing ribbon.
- In space the time of day is the light of the nearest star: rose at dawn, blue by day, ember at dusk, deep
  navy at night.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

SETTINGS = ("hills", "sea", "desert", "city", "forest", "space")
TIMES = ("dawn", "day", "dusk", "night")
WEATHERS = ("clear", "rain", "snow", "fog", "aurora")
THINGS = (
    "balloon", "boat", "bird", "fish", "lantern", "kite", "comet", "train", "whale", "plane", "jellyfish", "umbrella",
)  # fmt: skip
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "white")
SIZES = ("small", "large")
MOTIONS = ("drifting", "rising", "falling", "circling", "bobbing")
SPEEDS = ("slow", "fast")

CLASSES = {
    "setting": SETTINGS,
    "time": TIMES,
    "weather": WEATHERS,
    "thing": THINGS,
    "colour": COLOURS,
    "motion": MOTIONS,
}
"""The attributes a clip is judged by."""

HELD_OUT_ONE_IN = 20
"""One combination in so many, picked by a hash of its names, is kept from training."""

_LAND = frozenset({"hills", "desert", "city", "forest"})
_HOMES = {
    "balloon": _LAND | {"sea", "space"},
    "boat": frozenset({"sea", "space"}),
    "bird": _LAND | {"sea", "space"},
    "fish": frozenset({"sea", "space"}),
    "lantern": _LAND | {"sea", "space"},
    "kite": _LAND | {"sea", "space"},
    "comet": _LAND | {"sea", "space"},
    "train": frozenset({"hills", "desert", "city", "space"}),
    "whale": frozenset({"sea", "space"}),
    "plane": _LAND | {"sea", "space"},
    "jellyfish": frozenset({"sea", "space"}),
    "umbrella": _LAND | {"space"},
}
_WAYS = {
    "balloon": MOTIONS,
    "boat": ("drifting", "bobbing"),
    "bird": ("drifting", "rising", "circling", "bobbing"),
    "fish": ("drifting", "circling", "bobbing"),
    "lantern": MOTIONS,
    "kite": ("drifting", "rising", "falling", "circling", "bobbing"),
    "comet": ("drifting", "rising", "falling", "circling"),
    "train": ("drifting",),
    "whale": ("drifting", "bobbing"),
    "plane": ("drifting", "rising", "falling", "circling"),
    "jellyfish": ("rising", "falling", "drifting", "bobbing"),
    "umbrella": ("drifting", "rising", "falling", "bobbing"),
}
SWIMMERS = frozenset({"boat", "fish", "whale"})
"""They keep to the water where there is some."""
RUNNERS = frozenset({"train"})
"""They keep to the ground where there is some."""


class Combination(NamedTuple):
    """The attributes a scene is told apart by, as ids."""

    setting: int
    time: int
    weather: int
    thing: int
    colour: int


def weathers_of(setting: str, time: str) -> tuple[str, ...]:
    allowed = ("clear", "aurora") if setting == "space" else WEATHERS
    dark = time in ("dusk", "night")
    return tuple(
        name for name in allowed if (name != "aurora" or dark) and (name, setting) != ("snow", "desert")
    )


def things_of(setting: str, time: str) -> tuple[str, ...]:
    dark = time == "night" or setting == "space"
    return tuple(name for name in THINGS if setting in _HOMES[name] and (name != "comet" or dark))


def motions_of(thing: str) -> tuple[str, ...]:
    return _WAYS[thing]


def can_share(first: str, second: str) -> bool:
    """There is one track; and a comet beside a comet looks like one smudge."""
    return first != second or first not in ("train", "comet")


def is_held_out(combination: Combination) -> bool:
    """Decided by names, so that reordering a vocabulary or adding to it moves nothing."""
    names = (
        names[i] for names, i in zip((SETTINGS, TIMES, WEATHERS, THINGS, COLOURS), combination, strict=True)
    )
    digest = hashlib.sha256("/".join(names).encode()).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT_ONE_IN == 0


@cache
def combinations() -> tuple[Combination, ...]:
    """Every combination that goes together, in order: those of one setting, time and weather lie side by
    side."""
    return tuple(_combinations())


def _combinations() -> Iterator[Combination]:
    for s, setting in enumerate(SETTINGS):
        for t, time in enumerate(TIMES):
            for weather in weathers_of(setting, time):
                for thing in things_of(setting, time):
                    for colour in range(len(COLOURS)):
                        yield Combination(s, t, WEATHERS.index(weather), THINGS.index(thing), colour)
