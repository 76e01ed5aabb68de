"""Captions of scenes: varied ones out of a closed vocabulary, and one plain caption each.

A caption always names the setting and the things; any other attribute is left out about one time in seven.
Every phrase belongs to one value of one attribute, so what a caption mentions can be read back: `mentioned`.
Nothing here knows pixels.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import cache

from millstream.train.data.scene import Scenes
from millstream.train.data.vocabulary import (
    COLOURS,
    MOTIONS,
    RUNNERS,
    SETTINGS,
    SIZES,
    SPEEDS,
    SWIMMERS,
    THINGS,
    TIMES,
    WEATHERS,
)

LEFT_OUT = 0.15
"""How often an attribute that may be left out is."""

Phrases = Mapping[str, tuple[str, ...]]

SETTING_PHRASES: Phrases = {
    "hills": ("the hills", "rolling hills", "grassy hills", "a meadow"),
    "sea": ("the sea", "the ocean", "the waves"),
    "desert": ("the desert", "sand dunes", "the sands"),
    "city": ("the city", "a city skyline", "tall buildings", "a town"),
    "forest": ("the forest", "the woods", "pine trees"),
    "space": ("space", "outer space", "the cosmos"),
}
TIME_PHRASES: Phrases = {
    "dawn": ("at dawn", "at sunrise", "in the early morning"),
    "day": ("by day", "at noon", "in daylight"),
    "dusk": ("at dusk", "at sunset", "in the evening"),
    "night": ("at night", "at midnight", "by moonlight"),
}
WEATHER_PHRASES: Phrases = {
    "clear": ("in clear weather", "under a clear sky", "in fine weather"),
    "rain": ("in the rain", "in rainy weather", "in a shower"),
    "snow": ("in the snow", "in snowy weather", "among snowflakes"),
    "fog": ("in the fog", "in thick mist", "in foggy weather"),
    "aurora": ("under an aurora", "under northern lights", "beneath a glowing aurora"),
}
THING_PHRASES: Phrases = {
    "balloon": ("balloon", "hot air balloon"),
    "boat": ("boat", "sailboat", "sailing boat"),
    "bird": ("bird", "songbird"),
    "fish": ("fish",),
    "lantern": ("lantern", "paper lantern"),
    "kite": ("kite", "diamond kite"),
    "comet": ("comet", "shooting star"),
    "train": ("train", "steam train"),
    "whale": ("whale",),
    "plane": ("paper plane", "paper airplane"),
    "jellyfish": ("jellyfish", "jelly"),
    "umbrella": ("umbrella", "parasol"),
}
COLOUR_PHRASES: Phrases = {
    "red": ("red", "crimson", "scarlet"),
    "orange": ("orange", "amber"),
    "yellow": ("yellow", "golden", "lemon"),
    "green": ("green", "emerald"),
    "blue": ("blue", "azure"),
    "purple": ("purple", "violet"),
    "pink": ("pink", "rose"),
    "white": ("white", "ivory", "pale"),
}
SIZE_PHRASES: Phrases = {"small": ("small", "little", "tiny"), "large": ("large", "big", "huge")}
MOTION_PHRASES: Phrases = {
    "drifting": ("drifting", "gliding", "travelling"),
    "rising": ("rising", "climbing", "going up"),
    "falling": ("falling", "descending", "coming down"),
    "circling": ("circling", "looping", "going in circles"),
    "bobbing": ("bobbing", "swaying", "going up and down"),
}
VERBS = {
    "drifting": "drifts", "gliding": "glides", "travelling": "travels", "rising": "rises", "climbing": "climbs",
    "falling": "falls", "descending": "descends", "circling": "circles", "looping": "loops", "bobbing": "bobs",
    "swaying": "sways", "going": "goes", "coming": "comes", "moving": "moves",
}  # fmt: skip
SPEED_PHRASES: Phrases = {"slow": ("slowly", "gently", "lazily"), "fast": ("quickly", "swiftly", "fast")}

_TABLES: dict[str, tuple[tuple[str, ...], Phrases]] = {
    "setting": (SETTINGS, SETTING_PHRASES),
    "time": (TIMES, TIME_PHRASES),
    "weather": (WEATHERS, WEATHER_PHRASES),
    "thing": (THINGS, THING_PHRASES),
    "colour": (COLOURS, COLOUR_PHRASES),
    "size": (SIZES, SIZE_PHRASES),
    "motion": (MOTIONS, MOTION_PHRASES),
    "speed": (SPEEDS, SPEED_PHRASES),
}
_PLACES = {
    "fly": ("over", "above"),
    "swim": ("on", "across"),
    "run": ("through", "across"),
    "float": ("in", "through"),
}
_JOINS = ("and", "with", "beside", "together with")


def captions(scenes: Scenes, *, seed: int) -> list[str]:
    """One caption a scene; the same seed, the same captions, and a scene's does not depend on its neighbours'
    number."""
    return [_varied(ids, random.Random(f"{seed}/{i}")) for i, ids in enumerate(_rows(scenes))]


def canonical_captions(scenes: Scenes) -> list[str]:
    """One plain caption a scene, with everything in it."""
    return [canonical(ids) for ids in _rows(scenes)]


def canonical(ids: Mapping[str, int]) -> str:
    """The first phrase of everything, in one order."""
    said = {name: phrases[names[ids[name]]][0] for name, (names, phrases) in _TABLES.items()}
    things = _with_article(said["size"], said["colour"], said["thing"])
    if ids["second"]:
        things += " and " + _with_article(
            SIZES[ids["size2"]], COLOURS[ids["colour2"]], THING_PHRASES[THINGS[ids["thing2"]]][0]
        )
    place = f"{_preposition(ids)[0]} {said['setting']}"
    return f"{things} {said['motion']} {said['speed']} {place} {said['time']} {said['weather']}"


def mentioned(caption: str) -> dict[str, tuple[int, ...]]:
    """Return the ids of all attributes that a caption mentions: one each, and for an attribute of two things
    the first thing's and then the second's. The longest phrase wins."""
    words = caption.replace(",", " ").split()
    found = dict[str, tuple[int, ...]]()
    i = 0
    while i < len(words):
        for length in range(min(5, len(words) - i), 0, -1):
            meaning = _meanings().get(tuple(words[i : i + length]))
            if meaning is not None:
                name, value = meaning
                found[name] = (*found.get(name, ()), value)
                break
        else:
            length = 1
        i += length
    return found


def _rows(scenes: Scenes) -> Iterator[dict[str, int]]:
    names = (*_TABLES, "second", "thing2", "colour2", "size2")
    columns = [getattr(scenes, name).tolist() for name in names]
    for values in zip(*columns, strict=True):
        yield {name: int(value) for name, value in zip(names, values, strict=True)}


def _varied(ids: Mapping[str, int], lots: random.Random) -> str:
    said: dict[str, str] = {}
    for name, (names, phrases) in _TABLES.items():
        kept = name in ("setting", "thing") or lots.random() >= LEFT_OUT
        said[name] = lots.choice(phrases[names[ids[name]]]) if kept else ""
    things = _with_article(said["size"], said["colour"], said["thing"])
    if ids["second"]:
        things = f"{things} {lots.choice(_JOINS)} {_second(ids, lots)}"
    moves = _moves(said["motion"], said["speed"], lots, many=bool(ids["second"]))
    place = f"{lots.choice(_preposition(ids))} {said['setting']}"
    around = [said["time"], said["weather"]]
    lots.shuffle(around)
    scene = [part for part in around if part]
    order = lots.randrange(4)
    if order == 0:
        return _joined(f"{things} {moves} {place}", *scene)
    if order == 1 and scene:
        return _joined(*scene, ",", f"{things} {moves} {place}")
    if order == 2:
        return _joined(place, *scene, ",", f"{things} {moves}")
    return _joined(f"{things} {moves}", *scene[:1], place, *scene[1:])


def _second(ids: Mapping[str, int], lots: random.Random) -> str:
    size = lots.choice(SIZE_PHRASES[SIZES[ids["size2"]]]) if lots.random() >= LEFT_OUT else ""
    tint = lots.choice(COLOUR_PHRASES[COLOURS[ids["colour2"]]])
    return _with_article(size, tint, lots.choice(THING_PHRASES[THINGS[ids["thing2"]]]))


def _moves(motion: str, speed: str, lots: random.Random, *, many: bool) -> str:
    """A verb or a participle, and an adverb on either side of it."""
    if speed and not motion:
        motion = "moving"  # says nothing of how
    if motion and not many and lots.random() < 0.4:
        first, _, rest = motion.partition(" ")
        motion = f"{VERBS[first]} {rest}".strip()
    return f"{speed} {motion}" if lots.random() < 0.3 and speed != "fast" else f"{motion} {speed}"


def _preposition(ids: Mapping[str, int]) -> tuple[str, ...]:
    setting = SETTINGS[ids["setting"]]
    thing = THINGS[ids["thing"]]
    if setting == "space":
        return _PLACES["float"]
    return _PLACES["swim" if thing in SWIMMERS else "run" if thing in RUNNERS else "fly"]


def _with_article(*words: str) -> str:
    text = " ".join(word for word in words if word)
    return f"{'an' if text[0] in 'aeiou' else 'a'} {text}"


def _joined(*parts: str) -> str:
    return " ".join(" ".join(part for part in parts if part).split()).replace(" ,", ",")


@cache
def _meanings() -> dict[tuple[str, ...], tuple[str, int]]:
    """Which attribute and value each phrase stands for."""
    found: dict[tuple[str, ...], tuple[str, int]] = {}
    for attribute, (names, phrases) in _TABLES.items():
        for i, name in enumerate(names):
            for phrase in phrases[name]:
                first, *rest = phrase.split()
                for spelled in {first, VERBS.get(first, first)}:
                    key = (spelled, *rest)
                    assert key not in found, f"{phrase!r} means two things"
                    found[key] = (attribute, i)
    return found


def _words() -> Iterator[str]:
    yield from ("a", "an", "moving", "moves")
    for phrase in _meanings():
        yield from phrase
    for text in (*_JOINS, *(word for words in _PLACES.values() for word in words)):
        yield from text.split()


WORDS: tuple[str, ...] = tuple(sorted(set(_words())))
"""Every word a caption can have."""
