"""Script of a person: a seeded, endless sequence of acts, with pauses for thought in between.

Acts are dealt from a shuffled deck, deck after deck, so that even a short run has some of each. Pure data:
`person.py` performs them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from millstream.core.controls import AnyControl, Cut, SetPrompt, SetSeed, Switch
from millstream.core.errors import ConfigError
from millstream.core.examples import EXAMPLES

NONSENSE = (
    "{",
    "[]",
    '"hello"',
    '{"type": "sing"}',
    '{"type": "ping", "t": "now"}',
    '{"type": "control", "control": 7}',
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptedChange:
    """Steer."""

    control: AnyControl


@dataclass(frozen=True, kw_only=True, slots=True)
class Rest:
    """Pause, look at the picture, go on."""

    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Leave:
    """Lose the connection and come back to the session."""

    seconds: float
    abruptly: bool
    """Without a goodbye, in the middle of whatever is being sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Idle:
    """Stay connected and read nothing."""

    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SendGarbage:
    """Send something that the protocol does not know."""

    text: str


Act = ScriptedChange | Rest | Leave | Idle | SendGarbage
Deal = Callable[[random.Random, Sequence[str]], Act]
"""Makes one card's act from chance and the prompts there are."""


def _switch(mode: Switch) -> Deal:
    return lambda chance, prompts: ScriptedChange(
        control=SetPrompt(prompt=chance.choice(prompts), mode=mode, chunks=chance.randint(1, 4))
    )


def _cut(chance: random.Random, prompts: Sequence[str]) -> Act:
    return ScriptedChange(control=Cut())


def _seed(chance: random.Random, prompts: Sequence[str]) -> Act:
    return ScriptedChange(control=SetSeed(seed=chance.randrange(2**31)))


def _rest(chance: random.Random, prompts: Sequence[str]) -> Act:
    return Rest(seconds=chance.uniform(0.5, 2.0))


def _step_out(chance: random.Random, prompts: Sequence[str]) -> Act:
    return Leave(seconds=chance.uniform(0.1, 2.0), abruptly=False)


def _vanish(chance: random.Random, prompts: Sequence[str]) -> Act:
    return Leave(seconds=chance.uniform(0.1, 2.0), abruptly=True)


def _doze(chance: random.Random, prompts: Sequence[str]) -> Act:
    return Idle(seconds=chance.uniform(1.0, 4.0))


def _babble(chance: random.Random, prompts: Sequence[str]) -> Act:
    return SendGarbage(text=chance.choice(NONSENSE))


SWITCHES: tuple[Deal, ...] = (_switch("recompute"), _switch("blend"), _switch("keep"), _switch("cut"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Behaviour:
    """A kind of person."""

    think_s: tuple[float, float]
    """Between acts."""
    deck: tuple[Deal, ...] = field(repr=False)
    formats: tuple[str, ...] = ("webp", "jpeg")
    small_buffers: bool = False
    """True if the server is to notice at once when this person does not read."""


TEMPERS = {
    "calm": Behaviour(think_s=(2.0, 5.0), deck=(*SWITCHES, _cut, _rest)),
    "busy": Behaviour(think_s=(0.3, 1.5), deck=(*SWITCHES, *SWITCHES, _cut, _seed, _rest, _step_out)),
    "rude": Behaviour(
        think_s=(0.1, 1.0),
        deck=(*SWITCHES, _cut, _seed, _rest, _step_out, _vanish, _vanish, _doze, _doze, _babble),
        formats=("raw",),
        small_buffers=True,
    ),
}


def temper(name: str) -> Behaviour:
    if name not in TEMPERS:
        raise ConfigError(f"there is no script {name!r}; there are {', '.join(TEMPERS)}")
    return TEMPERS[name]


def acts(temper: Behaviour, prompts: Sequence[str], *, seed: int, person: int) -> Iterator[tuple[float, Act]]:
    """Seconds of thought, then an act; without end, and the same for the same seed and person."""
    chance = random.Random(f"{seed}/{person}")
    while True:
        for deal in chance.sample(temper.deck, len(temper.deck)):
            yield chance.uniform(*temper.think_s), deal(chance, prompts or EXAMPLES)
