"""Prompts for whoever gives none, and others near one that is given. In words that the bundled model learnt,
so that it shows what they say."""

from __future__ import annotations

import re

EXAMPLES = (
    "a large red balloon drifts slowly over the hills at dawn",
    "a yellow boat on the sea at sunset",
    "a pink bird drifts over the forest in the fog by day",
    "a red train through the city at dusk in the snow",
    "an orange paper lantern above the city at night in the rain",
    "a large pink jellyfish drifts over the sea at night under an aurora",
)
DEFAULT_PROMPT = EXAMPLES[0]

_TIMES = ("at dawn", "at noon", "at sunset", "at night")
_WEATHERS = ("in the rain", "in the fog", "in the snow", "under a clear sky")
_COLOURS = ("red", "yellow", "green", "blue", "purple", "pink", "white")
_SAID = {  # what stands for one of them in a prompt
    _TIMES: r"(?:at|by|in) (?:dawn|sunrise|the early morning|day|noon|daylight|dusk|sunset|the "
    r"evening|night|midnight|"
    r"moonlight)",
    _WEATHERS: r"(?:in|under|among|beneath) "
    r"(?:(?:the|a|an|thick|northern|clear|fine|rainy|snowy|foggy|glowing) )*"
    r"(?:rain|shower|snow|snowflakes|fog|mist|weather|sky|aurora|lights)",
    _COLOURS: "|".join((*_COLOURS, "orange")),
}
NUM_NEAR = 4
"""How many others are suggested."""


def near(prompt: str, *, turn: int = 0) -> tuple[str, ...]:
    """Some others than this one: at another time, in other weather, of another colour, then another of the
    examples. With another `turn`, others again."""
    varied = [_varied(prompt, kind, turn) for kind in _SAID]
    others = [EXAMPLES[(turn + number) % len(EXAMPLES)] for number in range(len(EXAMPLES))]
    return tuple(dict.fromkeys(each for each in (*varied, *others) if each and each != prompt))[:NUM_NEAR]


def _varied(prompt: str, kind: tuple[str, ...], turn: int) -> str:
    """With another of its kind, or with one where it has none; empty where it cannot have one: what has a
    colour is said."""
    said = re.search(rf"\b(?:{_SAID[kind]})\b", prompt)
    choices = [each for each in kind if said is None or each != said.group()]
    chosen = choices[turn % len(choices)]
    if said is not None:
        return (
            re.sub(r"\ban $", "a ", prompt[: said.start()]) + chosen + prompt[said.end() :]
        )  # an orange one, a red one
    return "" if kind is _COLOURS else f"{prompt.rstrip(' .')} {chosen}"
