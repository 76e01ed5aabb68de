"""Check that a session fits beside others on one device: by the bytes it declares and the measured chunk
times.

Arithmetic without a line or lives: `serving/admission.py` decides by it which sessions come in, and a fleet
(`fleet/policy/`) where.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from millstream.core.config import GIB
from millstream.core.errors import ConfigError
from millstream.serving.admission_types import AdmissionConfig, Obstacle, Request
from millstream.serving.chunk_times import ChunkTimes, Estimate, Geometry
from millstream.serving.promise import DeviceClaim, keep_time, longest_blocker, pressures, utilisation
from millstream.serving.rates import RateRequest

GUESS = 2.0
"""Factor by which an estimate scaled from another geometry may be off: no session is refused for less."""


class SessionClaims(NamedTuple):
    """Claims of one session on the device."""

    least: DeviceClaim | None
    """At its least frame rate; None where nothing is measured."""
    yielded: DeviceClaim | None
    """Claim at the lowest rate that a yielding session goes down to, at its least rate for any other; None
    where nothing is measured."""
    too_long: bool
    """True if a chunk of it takes longer than any chunk may."""


class CapacityCheck:
    """One device's room: what it has and how long chunks take on it."""

    def __init__(self, config: AdmissionConfig, times: ChunkTimes) -> None:
        self.config = config
        self.times = times
        self.longest_chunk_s = config.longest_chunk_s
        """Raised where the server's own stream takes that long."""

    def allow_chunks_of(self, geometry: Geometry) -> None:
        """Raise the limit on a chunk's time, where needed, so that what the server itself streams is never
        too long."""
        estimate = self.times.estimate(geometry)
        if estimate is not None:
            self.longest_chunk_s = max(self.longest_chunk_s, GUESS * estimate.seconds)

    def fits(
        self, request: Request, others: Sequence[Request], needs: Mapping[str, SessionClaims] | None = None
    ) -> bool:
        """Return whether the least frame rates and bytes of all sessions can be promised with this session
        beside the others; if it yields, the rates of those that do not yield. `needs` are those of all these
        sessions, for callers that ask about many at once."""
        if request.memory_bytes > self.config.memory_bytes - bytes_of(others):
            return False
        needs = self.needs([*others, request]) if needs is None else needs
        if needs[request.session_id].too_long:
            return False
        claims = [claim for each in (*others, request) if (claim := needs[each.session_id].least) is not None]
        known = len(claims) == len(others) + 1
        has_strangers = any(other.family != request.family for other in others)
        if not has_strangers and not (known and request.wish().strict):
            return True
        if known and request.yields:
            whole = [needs[each.session_id].least for each in others if not each.yields]
            yielding = [needs[each.session_id].yielded for each in (*others, request) if each.yields]
            return self.promises([claim for claim in whole if claim], [claim for claim in yielding if claim])
        return known and self.promises(claims)

    def needs(self, requests: Iterable[Request]) -> dict[str, SessionClaims]:
        """Return the need of each session, by its name."""
        requests = tuple(requests)
        branches = Counter(request.family for request in requests)
        return {request.session_id: self.need(request, branches[request.family]) for request in requests}

    def need(self, request: Request, branches: int = 1) -> SessionClaims:
        estimate = self.times.estimate(request.geometry)
        if estimate is None:
            return SessionClaims(None, None, False)
        bid = self._bid(request, estimate, branches)
        guess = 1 if estimate.scaled_from is None else GUESS
        first_s = self.first_s(request)
        too_long = estimate.seconds > self.longest_chunk_s * guess or first_s > self.longest_chunk_s * GUESS
        return SessionClaims(bid.at_least(), bid.yielded(), too_long)

    def first_s(self, request: Request) -> float:
        """Return the seconds of an epoch's first chunk that has steps of its own, scaled from those of
        others; 0 where it has none."""
        if request.first_geometry is None:
            return 0.0
        estimate = self.times.estimate(request.first_geometry)
        return 0.0 if estimate is None else estimate.seconds

    def _bid(self, request: Request, estimate: Estimate, branches: int) -> RateRequest:
        return RateRequest(
            seconds=estimate.seconds,
            pace=request.pace,
            wish=request.wish(branches),
            first_s=self.first_s(request),
        )

    def promises(self, claims: Sequence[DeviceClaim], yielding: Sequence[DeviceClaim] = ()) -> bool:
        """Return whether `claims` can be kept beside those that yield. A chunk of `claims` may come later,
        once, by as much as a chunk of a yielding session takes."""
        return utilisation([*claims, *yielding]) <= self.config.share and keep_time(claims)

    def obstacle(self, request: Request, others: Sequence[Request]) -> Obstacle | None:
        """Why this session cannot run beside the others; None if it can."""
        if self.fits(request, others):
            return None
        free = self.config.memory_bytes - bytes_of(others)
        if request.memory_bytes > free:
            return Obstacle(
                f"needs {request.memory_bytes / GIB:.2f} GiB and {max(0, free) / GIB:.2f} of "
                f"{self.config.memory_bytes / GIB:.2f} is free: choose a smaller window or size"
                + " or wait"
                * bool(others)
            )
        estimate = self.times.estimate(request.geometry)
        bids = self.bids([*others, request])
        if estimate is None or bids is None:
            return Obstacle(
                "chunk times are still being measured: wait for the first chunks of the session that runs"
            )
        if self.need(request).too_long:
            takes_s = max(estimate.seconds, self.first_s(request))
            return Obstacle(
                f"a chunk of it would take {takes_s:.0f} s, and {self.longest_chunk_s:.0f} s is the longest "
                f"here: choose a smaller size or fewer steps{basis(estimate)}"
            )
        obstacle = self._time_obstacle(bids[-1], [each.at_least() for each in bids[:-1]])
        return Obstacle(obstacle.reason + basis(estimate), obstacle.fps)

    def _time_obstacle(self, bid: RateRequest, claims: Sequence[DeviceClaim]) -> Obstacle:
        claim = bid.at_least()
        fps = self._fitting_fps(bid, claims)
        free = self.config.share - utilisation(claims)
        way = f"lower the frame rate to {fps:g}" if fps else "choose a smaller size or fewer steps"
        if claim.share > free:
            need = f"needs {claim.share:.2f} of the device and {max(0.0, free):.2f} is free"
        else:
            together = [*claims, claim]
            _, number = max((pressure, number) for number, pressure in enumerate(pressures(together)))
            blocked = together[number]
            longest = longest_blocker(blocked, together)
            need = (
                f"a chunk due within {blocked.pace.window_s:.2f} s could wait {longest:.2f} s for "
                "another "
                "session's"
            )
        return Obstacle(f"{need}: {way}" + " or wait" * bool(claims), fps)

    def _fitting_fps(self, bid: RateRequest, claims: Sequence[DeviceClaim]) -> float | None:
        """The highest whole frame rate below its least that would be admitted."""
        for fps in range(math.ceil(bid.wish.least) - 1, 0, -1):
            try:
                slower = replace(bid.at_least(), pace=replace(bid.pace, fps=fps))
            except ConfigError:  # a chunk at this rate plays longer than the lead that was asked for
                return None
            if self.promises([*claims, slower]):
                return float(fps)
        return None

    def bids(self, requests: Iterable[Request]) -> list[RateRequest] | None:
        """None when one of them is not measured: it then counts as the whole device."""
        requests = tuple(requests)
        bids = list[RateRequest]()
        branches = Counter(request.family for request in requests)
        for request in requests:
            estimate = self.times.estimate(request.geometry)
            if estimate is None:
                return None
            bids.append(self._bid(request, estimate, branches[request.family]))
        return bids


def bytes_of(requests: Sequence[Request]) -> int:
    return sum(request.memory_bytes for request in requests)


def basis(estimate: Estimate) -> str:
    return "" if estimate.scaled_from is None else f" (scaled from {estimate.scaled_from})"
