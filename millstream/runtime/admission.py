"""Who may join: answered from what a session declares and what was measured, before any memory is taken.

A session is admitted when the device can keep everybody's frame rate with it (`runtime/promise.py`, at the
conservative chunk times of `runtime/chunk_times.py`) and its declared bytes fit the budget. One that never could is
refused; one that cannot now waits in line, those coming back from host memory first, then by weight, then by arrival.
Nobody overtakes: a small session does not slip past a large one that waits, or the large one might wait for ever.

The line is bounded: when it is full a newcomer is refused, whatever its weight, because everybody in it was told a
position. No tensors, no threads, no clock. Promises are only given here; `runtime/scheduler.py` keeps them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from millstream.core.errors import ConfigError
from millstream.runtime.chunk_times import ChunkTimes, Estimate, Geometry
from millstream.runtime.pacing import Pace
from millstream.runtime.promise import Claim, keep_time, longest_blocker, pressure, utilisation

LIFE_SMOOTHING = 0.8
"""Share of the past in the mean time that a session keeps its place."""
GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class AdmissionConfig:
    memory_bytes: int
    """For all sessions together: what the device has beside weights and working memory."""
    share: float = 0.9
    """How much of the device may be promised."""
    max_waiting: int = 16
    """Places in line; 0 refuses at once."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"share must be above 0 and at most 1, got {self.share}")
        if self.memory_bytes <= 0 or self.max_waiting < 0:
            raise ConfigError(f"need memory and 0 or more places in line, got {self.memory_bytes} B and {self.max_waiting}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    session_id: str
    geometry: Geometry
    pace: Pace
    memory_bytes: int
    """Device memory it will hold; `planner/memory.py` knows the formulas."""
    weight: float = 1.0
    max_life_s: float | None = None
    may_wait: bool = True
    returning: bool = False
    """Whether it was here before and waits in host memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Admitted:
    """Its share and its bytes are reserved until it leaves."""

    session_id: str
    share: float | None
    """Of the device; None while nothing is measured for its model."""
    note: str
    """How its share was found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Queued:
    session_id: str
    position: int
    """1 is next."""
    expected_wait_s: float | None
    """From life limits and from how long sessions stayed so far; None while neither is known."""
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    session_id: str
    reason: str


Answer = Admitted | Queued | Refused


@dataclass(frozen=True, kw_only=True, slots=True)
class AdmissionMetrics:
    admitted: int
    waiting: int
    promised: float | None
    """Share of the device; None while a session runs that nothing is measured for."""
    memory_bytes: int
    refused: int
    """Since the start."""


@dataclass(frozen=True, slots=True)
class _Place:
    request: Request
    since: float


class Admission:
    def __init__(self, config: AdmissionConfig) -> None:
        self.config = config
        self.times = ChunkTimes()
        self._admitted: dict[str, _Place] = {}
        self._line: list[Request] = []
        self._stay_s: float | None = None
        self._refused = 0

    def ask(self, request: Request, now: float) -> Answer:
        """Admit, queue or refuse. Answers at once and takes nothing but a reservation."""
        assert not self._knows(request.session_id), f"session {request.session_id} has asked already"
        never = self._obstacle(request, ())
        if never is not None:
            return self._refuse(request, never)
        position = sum(_rank(other) <= _rank(request) for other in self._line)
        obstacle = self._obstacle(request, self._present) if position == 0 else _behind(position)
        if obstacle is None:
            return self._admit(request, now)
        if not request.may_wait:
            return self._refuse(request, obstacle)
        if len(self._line) >= self.config.max_waiting:
            return self._refuse(request, f"{obstacle}; all {self.config.max_waiting} places in line are taken: try again later")
        self._line.insert(position, request)
        return self.waiting(now)[position]

    def revise(self, request: Request) -> str | None:
        """A session asks for other terms: why it cannot have them, or None and they are its own.

        One without a place is only told whether it could ever have one: it asks again when it comes back.
        """
        place = self._admitted.get(request.session_id)
        others = [] if place is None else [each for each in self._present if each.session_id != request.session_id]
        obstacle = self._obstacle(request, others)
        if obstacle is not None:
            return obstacle
        if place is not None:
            self._admitted[request.session_id] = replace(place, request=request)
        self._line = [_on_new_terms(each, request) for each in self._line]
        return None

    def leave(self, session_id: str, now: float) -> None:
        """A session has ended, moved to host memory, or given up waiting. Ask `admit_waiting` who may come now."""
        place = self._admitted.pop(session_id, None)
        if place is None:
            assert self._knows(session_id), f"session {session_id} is neither here nor in line"
            self._line = [request for request in self._line if request.session_id != session_id]
            return
        stay, past = now - place.since, self._stay_s
        self._stay_s = stay if past is None else LIFE_SMOOTHING * past + (1 - LIFE_SMOOTHING) * stay

    def admit_waiting(self, now: float) -> tuple[Admitted | Refused, ...]:
        """Those who leave the line, in order. One that turns out never to fit is refused, so as not to block the rest."""
        answers: list[Admitted | Refused] = []
        while self._line:
            head = self._line[0]
            never = self._obstacle(head, ())
            if never is None and not self._fits(head, self._present):
                break
            del self._line[0]
            answers.append(self._admit(head, now) if never is None else self._refuse(head, never))
        return tuple(answers)

    def waiting(self, now: float) -> tuple[Queued, ...]:
        """Everybody in line, with the position and the wait as they are now."""
        waits = self._expected_waits_s(now)
        return tuple(
            Queued(
                session_id=request.session_id,
                position=before + 1,
                expected_wait_s=waits[before],
                reason=_behind(before) if before else self._obstacle(request, self._present) or "there is room: it is next",
            )
            for before, request in enumerate(self._line)
        )

    def metrics(self) -> AdmissionMetrics:
        claims = self._claims(self._present)
        return AdmissionMetrics(
            admitted=len(self._admitted),
            waiting=len(self._line),
            promised=None if claims is None else utilisation(claims),
            memory_bytes=_bytes(self._present),
            refused=self._refused,
        )

    @property
    def _present(self) -> tuple[Request, ...]:
        return tuple(place.request for place in self._admitted.values())

    def _knows(self, session_id: str) -> bool:
        return session_id in self._admitted or any(request.session_id == session_id for request in self._line)

    def _admit(self, request: Request, now: float) -> Admitted:
        self._admitted[request.session_id] = _Place(request, now)
        estimate = self.times.estimate(request.geometry)
        if estimate is None:
            note = f"nothing is measured for {request.geometry.model} yet: it runs alone until something is"
            return Admitted(session_id=request.session_id, share=None, note=note)
        share = Claim(seconds=estimate.seconds, pace=request.pace).share
        return Admitted(session_id=request.session_id, share=share, note=f"takes {share:.2f} of the device{_basis(estimate)}")

    def _refuse(self, request: Request, reason: str) -> Refused:
        self._refused += 1
        return Refused(session_id=request.session_id, reason=reason)

    def _fits(self, request: Request, others: Sequence[Request]) -> bool:
        """Whether everybody's frame rate and bytes can be promised with this session beside the others."""
        if request.memory_bytes > self.config.memory_bytes - _bytes(others):
            return False
        claims = self._claims([*others, request])
        return not others if claims is None else self._promises(claims)

    def _promises(self, claims: Sequence[Claim]) -> bool:
        return utilisation(claims) <= self.config.share and keep_time(claims)

    def _obstacle(self, request: Request, others: Sequence[Request]) -> str | None:
        """Why this session cannot run beside the others, in one line with the way out; None if it can."""
        if self._fits(request, others):
            return None
        free = self.config.memory_bytes - _bytes(others)
        if request.memory_bytes > free:
            return (
                f"needs {request.memory_bytes / GIB:.2f} GiB and {max(0, free) / GIB:.2f} of "
                f"{self.config.memory_bytes / GIB:.2f} is free: choose a smaller window or size" + " or wait" * bool(others)
            )
        estimate, claims = self.times.estimate(request.geometry), self._claims(others)
        if estimate is None or claims is None:
            return "chunk times are still being measured: wait for the first chunks of the session that runs"
        return self._time_obstacle(Claim(seconds=estimate.seconds, pace=request.pace), claims) + _basis(estimate)

    def _time_obstacle(self, claim: Claim, claims: Sequence[Claim]) -> str:
        fps, free = self._fitting_fps(claim, claims), self.config.share - utilisation(claims)
        way = f"lower the frame rate to {fps}" if fps else "choose a smaller size or fewer steps"
        if claim.share > free:
            need = f"needs {claim.share:.2f} of the device and {max(0.0, free):.2f} is free"
        else:
            together = [*claims, claim]
            blocked = max(together, key=lambda each: pressure(each, together))
            longest = longest_blocker(blocked, together)
            need = f"a chunk due within {blocked.pace.window_s:.2f} s could wait {longest:.2f} s for another session's"
        return f"{need}: {way}" + " or wait" * bool(claims)

    def _fitting_fps(self, claim: Claim, claims: Sequence[Claim]) -> int | None:
        """The highest whole frame rate below the one asked for that would be admitted."""
        for fps in range(int(-(-claim.pace.fps // 1)) - 1, 0, -1):
            try:
                slower = replace(claim, pace=replace(claim.pace, fps=fps))
            except ConfigError:  # a chunk at this rate plays longer than the lead that was asked for
                return None
            if self._promises([*claims, slower]):
                return fps
        return None

    def _claims(self, requests: Sequence[Request]) -> list[Claim] | None:
        """None when one of them is not measured: it then counts as the whole device."""
        claims: list[Claim] = []
        for request in requests:
            estimate = self.times.estimate(request.geometry)
            if estimate is None:
                return None
            claims.append(Claim(seconds=estimate.seconds, pace=request.pace))
        return claims

    def _expected_waits_s(self, now: float) -> list[float | None]:
        """For everybody in line: let sessions leave as expected of them until those before and this one have room."""
        present = [
            (self._expected_stay_s(place.request, now - place.since), place.request) for place in self._admitted.values()
        ]
        waits, time = list[float | None](), 0.0
        for request in self._line:
            while present and not self._fits(request, [other for _, other in present]):
                first = min(present, key=lambda pair: pair[0])
                present.remove(first)
                time = max(time, first[0])
            waits.append(time if time < math.inf else None)
            present.append((time + self._expected_stay_s(request, 0.0), request))
        return waits

    def _expected_stay_s(self, request: Request, age_s: float) -> float:
        """How much longer: people who have stayed are as likely to go as people who just came, unless a limit ends it."""
        limit = math.inf if request.max_life_s is None else max(0.0, request.max_life_s - age_s)
        return min(limit, math.inf if self._stay_s is None else self._stay_s)


def _rank(request: Request) -> tuple[bool, float]:
    """Smaller goes first; of equals, who came first."""
    return (not request.returning, -request.weight)


def _on_new_terms(waiting: Request, revised: Request) -> Request:
    if waiting.session_id != revised.session_id:
        return waiting
    return replace(waiting, geometry=revised.geometry, memory_bytes=revised.memory_bytes)


def _behind(others: int) -> str:
    return f"{others} waiting before it: wait or try again later"


def _bytes(requests: Sequence[Request]) -> int:
    return sum(request.memory_bytes for request in requests)


def _basis(estimate: Estimate) -> str:
    return "" if estimate.scaled_from is None else f" (scaled by tokens from {estimate.scaled_from})"
