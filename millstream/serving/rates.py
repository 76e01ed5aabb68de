"""Frame rates that sessions get: as much as the device keeps for all of them, shared evenly.

A session names the most it wants and the least down to which it makes room for others. Each has at least
that, or was not let in. One that came back after its server's death is let in for less, and goes below its
least before any other does. When a device turns out slower than it was when they were let in, those that are
not strict are slowed alike below it.

Arithmetic without state: `serving/admission.py` says what can be promised, `serving/session_table.py` asks
after every chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millstream.core.config import MIN_FPS
from millstream.serving.promise import DeviceClaim
from millstream.session.pacing import Pace, RateKind

AUTO_LEAST_FPS = 4.0
"""Frames a second below which a rate that is chosen here does not go to make room for another session."""
YIELDS_TO = 0.25
"""Share of its least rate down to which a session that came back after its server's death makes room for
others: chunks play four times as long, which is slow and not yet a standstill."""
HALVINGS = 12
"""Times that the interval in which a rate is looked for is halved: down to a four-thousandth of it."""
WORTHWHILE = 0.04
"""Share of a rate by which it must change for a change to be made."""
RISE_AFTER_S = 8.0
"""Seconds before a rate that was changed goes up again; it goes down at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RateWish:
    most: float
    least: float
    strict: bool = False
    """True if it is rather late than slower than its least."""
    yields: bool = False
    """True if it goes below its least before others do."""

    def __post_init__(self) -> None:
        assert 0 < self.least <= self.most, f"from {self.least} to {self.most} frames a second"

    @staticmethod
    def of(kind: RateKind, fps: float, *, branches: int = 1, yields: bool = False) -> RateWish:
        """Return the wish of one of several branches, which makes room for the others: all together have what
        one had. A strict one never yields."""
        if kind == "strict":
            return RateWish(most=fps, least=fps, strict=True)
        least = min(AUTO_LEAST_FPS, fps) if kind == "auto" else fps
        return RateWish(most=fps, least=max(MIN_FPS, least / branches), yields=yields)

    def yielded(self, share: float) -> float:
        """Return its rate where sessions that yield have this share of what they may lose; the least of any
        other session."""
        lost = (1 - YIELDS_TO) * (1 - share) if self.yields else 0.0
        return max(MIN_FPS, (1 - lost) * self.least)


@dataclass(frozen=True, kw_only=True, slots=True)
class RateRequest:
    """Frame rates that a session wants, and what a chunk of it costs."""

    seconds: float
    pace: Pace
    """Pace at the most it wants."""
    wish: RateWish
    first_s: float = 0.0
    """Seconds of an epoch's first chunk, where that takes longer."""

    def at(self, fps: float) -> DeviceClaim:
        return DeviceClaim(seconds=self.seconds, pace=self.pace.at(fps), first_s=self.first_s)

    def at_least(self) -> DeviceClaim:
        return self.at(self.wish.least)

    def yielded(self) -> DeviceClaim:
        """Return the claim with which it is let in beside others, if it yields."""
        return self.at(self.wish.yielded(0.0))


Promises = Callable[[Sequence[DeviceClaim], Sequence[DeviceClaim]], bool]
"""Function that tests whether the first claims can all be kept, beside the second, which yield."""


def kept_rates(bids: Sequence[RateRequest], promises: Promises) -> list[float]:
    """Return a rate for each, the highest that can be promised to all. Strict sessions have theirs, whether
    it can be promised or not."""

    def within(room: float) -> list[float]:
        return [bid.wish.least + room * (bid.wish.most - bid.wish.least) for bid in bids]

    def yielded(share: float) -> list[float]:
        return [bid.wish.yielded(share) for bid in bids]

    def below(share: float) -> list[float]:
        return [
            bid.wish.least if bid.wish.strict else max(MIN_FPS, share * bid.wish.yielded(0.0)) for bid in bids
        ]

    def held(rates: Sequence[float]) -> bool:
        whole, yielding = (
            [bid.at(fps) for bid, fps in zip(bids, rates, strict=True) if bid.wish.yields == yields]
            for yields in (False, True)
        )
        return promises(whole, yielding)

    for choose in (within, yielded, below):
        share = _largest(lambda share, choose=choose: held(choose(share)))  # type: ignore[misc]
        if share is not None:
            return [readable(fps, bid.wish) for bid, fps in zip(bids, choose(share), strict=True)]
    return below(0.0)


def next_rate(now_fps: float, kept_fps: float, held_s: float) -> float:
    """Return the rate that a session plays at next, where it has played at `now_fps` for `held_s` seconds and
    `kept_fps` can be kept."""
    if kept_fps < now_fps * (1 - WORTHWHILE) or (
        kept_fps > now_fps * (1 + WORTHWHILE) and held_s >= RISE_AFTER_S
    ):
        return kept_fps
    return now_fps


def readable(fps: float, wish: RateWish) -> float:
    """Round a rate down so that it reads well: to halves, or to tenths where a half would be more than a
    twentieth; never more than was kept."""
    if fps >= wish.most:
        return wish.most
    steps = 2 if fps >= 10 else 10
    return max(MIN_FPS, math.floor(fps * steps) / steps)


def _largest(holds: Callable[[float], bool]) -> float | None:
    """Return the largest share from 0 to 1 for which it holds; None if it does not hold for 0."""
    if holds(1.0):
        return 1.0
    if not holds(0.0):
        return None
    low = 0.0
    high = 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
