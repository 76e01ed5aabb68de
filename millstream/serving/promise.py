"""Arithmetic of the promise, without state: can all sessions keep their frame rate on one device?

A session is a stream of chunks. Each takes `seconds` of the device, may start `window_s` before its viewer
has nothing left to play, and the next comes a chunk's playing time later. The scheduler runs earliest
deadline first and does not interrupt a chunk. Such a set keeps every deadline if, at the window W of each
session,

    sum over sessions whose window is at most W of  seconds / min(media, window)
    + the longest chunk among the others / W        (it may just have begun)                  <=  1

where of a session whose window is at most W, only what its epoch's first chunk takes longer than `seconds` is
among the longest chunks: all else of it is in the sum. Sessions are taken to begin epochs one at a time.

With leads of two chunks or more the sum is plain utilisation, seconds / media. The second term is why a slow
chunk of one session can break another's promise on a device that is half idle. It is the demand-bound test
for non-preemptive earliest deadline first (Jeffay, Stanat and Martel 1991), with each session's demand
bounded by its density. It speaks of full chunks: an epoch's short first one leaves its viewer less time, who
may then wait once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from millstream.session.pacing import Pace


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceClaim:
    """One session's chunks: how long each takes and at what pace they are needed."""

    seconds: float
    pace: Pace
    first_s: float = 0.0
    """Seconds of an epoch's first chunk, where that takes longer: it comes seldom, and others wait for it."""

    @property
    def longest_s(self) -> float:
        """Seconds for which it may hold the device."""
        return max(self.seconds, self.first_s)

    @property
    def extra_s(self) -> float:
        """Seconds by which an epoch's first chunk takes longer than others."""
        return self.longest_s - self.seconds

    @property
    def share(self) -> float:
        """Share of the device that it takes."""
        return self.seconds / min(self.pace.media_s, self.pace.window_s)


def utilisation(claims: Sequence[DeviceClaim]) -> float:
    return sum(claim.share for claim in claims)


def keep_time(claims: Sequence[DeviceClaim]) -> bool:
    """Return whether no chunk can be late while chunks take no longer than claimed."""
    return all(pressure <= 1 for pressure in pressures(claims))


def pressures(claims: Sequence[DeviceClaim]) -> list[float]:
    """Return the left side above at each claim's window. Called whenever a session comes, goes or is
    measured: it sorts once."""
    windows = [claim.pace.window_s for claim in claims]
    alike = [
        list(group)
        for _, group in groupby(sorted(range(len(claims)), key=windows.__getitem__), windows.__getitem__)
    ]
    found = [0.0] * len(claims)
    urgent = 0.0
    longest = 0.0
    for group in reversed(alike):
        for number in group:
            found[number] = longest
        longest = max(longest, *(claims[number].longest_s for number in group))
    extras: list[tuple[float, int]] = []
    """The two largest: a session does not wait for its own."""
    for group in alike:
        urgent += sum(claims[number].share for number in group)
        extras = sorted([*extras, *((claims[number].extra_s, number) for number in group)])[-2:]
        for number in group:
            extra = max((extra for extra, owner in extras if owner != number), default=0.0)
            found[number] = max(found[number], extra) / windows[number] + urgent
    return found


def longest_blocker(claim: DeviceClaim, claims: Sequence[DeviceClaim]) -> float:
    """Return the seconds of the longest chunk that may be under way when a chunk of this claim becomes more
    urgent."""
    window_s = claim.pace.window_s
    others = [other for other in claims if other is not claim]
    waits = [other.longest_s if other.pace.window_s > window_s else other.extra_s for other in others]
    return max(waits, default=0.0)
