"""Admission of sessions, decided before any memory is taken: from what a session declares and what was
measured.

A session is admitted when the device can keep the least frame rate of every session with it
(`serving/promise.py`, at the conservative chunk times of `serving/chunk_times.py`) and its declared bytes fit
the budget. A device without sessions refuses none for being slow, unless it is strict: it plays at what it
can. Branches of one stream share what it was promised: a fork makes all of them slower, and no other session.
A session that never could run is refused, with what could. One that cannot run now waits in line: those
coming back from host memory first, then by weight, then by arrival. There is no overtaking: a small session
does not slip past a large one that waits, or the large one might wait for ever.

The line is bounded: when it is full a new session is refused, whatever its weight, because all that wait were
given a position. Only admission moves a session's `SessionLife`. No tensors, no threads, no clock but that of
the chunk times. Promises are only given here; `serving/scheduler.py` keeps them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from millstream.core.presets import MODELS
from millstream.serving.admission_types import (
    AdmissionConfig,
    AdmissionMetrics,
    Admitted,
    Answer,
    Obstacle,
    Queued,
    Refused,
    Request,
)
from millstream.serving.capacity_check import CapacityCheck, basis, bytes_of
from millstream.serving.chunk_times import ChunkTimes
from millstream.serving.promise import utilisation
from millstream.serving.rates import RateRequest, kept_rates
from millstream.serving.session_life import SessionLife

LIFE_SMOOTHING = 0.8
"""Share of the past in the mean time that a session keeps its place."""


@dataclass(slots=True)
class _Entry:
    request: Request
    life: SessionLife
    since: float
    """When it asked, or got its place."""
    fps: float
    """Frames a second it plays at."""
    was_late: bool = False
    """True if its last chunk came when its viewer had nothing left to play."""


class Admission(CapacityCheck):
    def __init__(self, config: AdmissionConfig) -> None:
        super().__init__(config, ChunkTimes())
        self._entries: dict[str, _Entry] = {}
        """All sessions that have not ended, except those refused at once."""
        self._line: list[_Entry] = []
        self._stay_s: float | None = None
        self._refused = 0

    def ask(self, request: Request, now: float) -> Answer:
        """Admit, queue or refuse a new session. Answers at once and takes nothing but a reservation."""
        assert request.session_id not in self._entries, "a session asks once"
        entry = _Entry(request, SessionLife(), now, request.pace.fps)
        answer = self._answer(entry, now)
        if not isinstance(answer, Refused):
            self._entries[request.session_id] = entry
        return answer

    def come_back(self, session_id: str, now: float) -> Answer:
        """Ask again for a place for a parked session. If refused, it is still parked."""
        entry = self._entries[session_id]
        assert entry.life.state == "parked", f"a session that is {entry.life.state} need not come back"
        return self._answer(entry, now)

    def step_out(self, session_id: str) -> None:
        """Take a session that stood in line to come back out of the line, for now."""
        entry = self._entries[session_id]
        assert entry.life.state == "returning", (
            f"a session that is {entry.life.state} does not stand in line to come back"
        )
        entry.life.become("parked")
        self._line.remove(entry)

    def park(self, session_id: str, now: float) -> None:
        """Free the place of a session that has moved to host memory. Ask `next_in` which may come now."""
        entry = self._entries[session_id]
        assert entry.life.placed, f"a session that is {entry.life.state} has no place to give up"
        entry.life.become("parked")
        self._note_stay(entry, now)

    def remove(self, session_id: str, now: float) -> None:
        """Remove a session that has ended, in whatever state. Ask `next_in` which may come now."""
        entry = self._entries.pop(session_id)
        if entry.life.placed:
            self._note_stay(entry, now)
        if entry.life.in_line:
            self._line.remove(entry)
        entry.life.become("ended")

    def life(self, session_id: str) -> SessionLife:
        """Return the session's life, which all other parts read."""
        return self._entries[session_id].life

    def revise(self, request: Request) -> str | None:
        """Give a session other terms. Return why it cannot have them, or None if they are now its own.

        For a session without a place this only checks whether it could ever have one: it asks again when it
        comes back.
        """
        alone = not self._entries[request.session_id].life.placed
        obstacle = self.obstacle(request, ()) if alone else self.obstacle_instead(request)
        if obstacle is not None:
            return obstacle.reason
        self._entries[request.session_id].request = request
        return None

    def obstacle_instead(self, request: Request) -> Obstacle | None:
        """Why a session cannot be what is asked, in the place that it has; None if it can."""
        others = [each for each in self._present if each.session_id != request.session_id]
        return self.obstacle(request, others)

    def next_in(self, now: float) -> Admitted | Refused | None:
        """The first in line, if it may come in or never can. One that is refused stands there until
        `remove` is called for it."""
        if not self._line:
            return None
        head = self._line[0]
        never = self.obstacle(head.request, ())
        if never is not None:
            return self._refuse(head.request, never, never=True)
        if not self.fits(head.request, self._present):
            return None
        del self._line[0]
        return self._admit(head, now)

    @property
    def has_line(self) -> bool:
        return bool(self._line)

    @property
    def has_room_for_next(self) -> bool:
        """True if a session waits and could come in now."""
        return bool(self._line) and self.fits(self._line[0].request, self._present)

    def waiting(self, now: float) -> tuple[Queued, ...]:
        """Return all sessions in line, with their position and wait as they are now."""
        waits = self._expected_waits_s(now)
        return tuple(
            Queued(
                session_id=entry.request.session_id,
                position=before + 1,
                expected_wait_s=waits[before],
                reason=_behind(before) if before else self._why_it_waits(entry.request),
            )
            for before, entry in enumerate(self._line)
        )

    def kept_rates(self) -> dict[str, float]:
        """Return the rates that sessions with a place could play at; empty while one of them was not
        measured."""
        bids = self.bids(self._present)
        if bids is None:
            return {}
        if len(bids) == 1:
            bids = [replace(bids[0], seconds=self._margin(*self._present) * bids[0].seconds)]
        rates = kept_rates(bids, self.promises)
        return {request.session_id: fps for request, fps in zip(self._present, rates, strict=True)}

    def regain(self, session_id: str) -> Request:
        """Note that a session has had its own rate for a while and need not yield any more. Return its new
        request."""
        entry = self._entries[session_id]
        entry.request = replace(entry.request, yields=False)
        return entry.request

    def grant(self, session_id: str, fps: float) -> str:
        """Set the rate it plays at from now on. Return the reason."""
        entry = self._entries[session_id]
        assert fps > 0, f"{session_id} would play {fps} frames a second"
        entry.fps = fps
        return self._note(entry)

    def chunk_s(self, session_id: str) -> float | None:
        """Return the seconds that a chunk of a session is expected to take where it has all of the promised
        share of the device to itself; None if unknown."""
        request = self._entries[session_id].request
        estimate = self.times.estimate(request.geometry)
        return None if estimate is None else self._margin(request) * estimate.seconds / self.config.share

    def started_slowly(self, session_id: str, seconds: float) -> bool:
        """Return whether its first chunk took longer than expected while it has a margin: later chunks do
        more work and will take longer, too."""
        request = self._entries[session_id].request
        estimate = self.times.estimate(request.geometry)
        return self._margin(request) > 1 and estimate is not None and seconds > estimate.seconds

    def note_late(self, session_id: str, late: bool) -> None:
        """Note whether its last chunk was late."""
        self._entries[session_id].was_late = late

    def slack_s(self, session_id: str) -> float:
        """Return by how many seconds a chunk of it has lately exceeded the expected time."""
        estimate = self.times.estimate(self._entries[session_id].request.geometry)
        return 0.0 if estimate is None else estimate.slowest_s - estimate.seconds

    @property
    def free_bytes(self) -> int:
        """Bytes of the memory for sessions that no session was promised."""
        return self.config.memory_bytes - bytes_of(self._present)

    def metrics(self) -> AdmissionMetrics:
        placed = self._placed
        bids = self.bids(self._present)
        claims = (
            None if bids is None else [bid.at(entry.fps) for bid, entry in zip(bids, placed, strict=True)]
        )
        return AdmissionMetrics(
            admitted=len(placed),
            waiting=len(self._line),
            promised=None if claims is None else utilisation(claims),
            memory_bytes=bytes_of(self._present),
            refused=self._refused,
        )

    @property
    def _placed(self) -> list[_Entry]:
        return [entry for entry in self._entries.values() if entry.life.placed]

    @property
    def _present(self) -> tuple[Request, ...]:
        return tuple(entry.request for entry in self._placed)

    def _margin(self, request: Request) -> float:
        """Return the factor on the measured time of a chunk. It is `config.margin` for a session that is
        alone and not strict: until it is measured with a viewer, since it may then be slower than it was
        without one; and once it was late, since its viewer has nothing buffered and a machine that becomes
        busy may become busier. Otherwise 1."""
        estimate = self.times.estimate(request.geometry)
        was_late = self._entries[request.session_id].was_late
        unsure = was_late or (estimate is not None and not estimate.proven)
        return self.config.margin if unsure and request.rate != "strict" and len(self._placed) == 1 else 1.0

    def _answer(self, entry: _Entry, now: float) -> Answer:
        request = entry.request
        comes_back = entry.life.state == "parked"
        never = self.obstacle(request, ())
        if never is not None:
            return self._refuse(request, never, never=True)
        position = sum(_rank(other) <= _rank(entry) for other in self._line)
        obstacle = self.obstacle(request, self._present) if position == 0 else Obstacle(_behind(position))
        if obstacle is None:
            return self._admit(entry, now)
        if not (request.may_wait or comes_back):
            return self._refuse(request, obstacle, can_wait=len(self._line) < self.config.max_waiting)
        if len(self._line) >= self.config.max_waiting and not comes_back:
            full = (
                f"{obstacle.reason}; all {self.config.max_waiting} places in line are taken: try again later"
            )
            return self._refuse(request, Obstacle(full, obstacle.fps))
        entry.life.become("returning" if comes_back else "waiting")
        self._line.insert(position, entry)
        return self.waiting(now)[position]

    def _admit(self, entry: _Entry, now: float) -> Admitted:
        entry.life.become("placed")
        entry.since = now
        request = entry.request
        session_id = entry.request.session_id
        self._entries[session_id] = entry
        entry.fps = self.kept_rates().get(session_id, request.pace.fps)
        bids = self.bids([request])
        share = None if bids is None else bids[0].at(entry.fps).share
        return Admitted(session_id=session_id, share=share, fps=entry.fps, note=self._note(entry))

    def _note(self, entry: _Entry) -> str:
        """Return which rate it has and why."""
        request = entry.request
        fps = entry.fps
        estimate = self.times.estimate(request.geometry)
        if estimate is None:
            return f"nothing is measured for {request.geometry.model} yet: it runs alone until something is"
        took = f"a chunk takes {estimate.seconds:.2f} s{basis(estimate)}"
        if fps < request.pace.fps:
            rather = "" if request.rate == "auto" else f" instead of {request.pace.fps:g}"
            beside = " beside other sessions" if len(self._present) > 1 else ""
            until = ", until there is room for its own rate again" if request.yields else ""
            now = ""
            but = ""
            if self._margin(request) > 1:
                now, but = (
                    (" for now", " and was late")
                    if entry.was_late
                    else (" at first", " with nobody watching")
                )
            return (
                f"plays {fps:g} frames a second{rather}{now}, which this device keeps{beside}{until}: "
                f"{took}{but}"
            )
        share = RateRequest(seconds=estimate.seconds, pace=request.pace, wish=request.wish()).at(fps).share
        model = request.geometry.model
        why = ""
        if request.rate == "auto":
            own = MODELS[model].stream.fps if model in MODELS else None
            why = f", the rate {model} was made for" if fps == own else ", the most it may have"
        return f"plays {fps:g} frames a second{why}: takes {share:.2f} of the device, {took}"

    def _refuse(
        self, request: Request, obstacle: Obstacle, *, can_wait: bool = False, never: bool = False
    ) -> Refused:
        self._refused += 1
        return Refused(
            session_id=request.session_id,
            reason=obstacle.reason,
            fps=obstacle.fps,
            can_wait=can_wait,
            never=never,
        )

    def _why_it_waits(self, request: Request) -> str:
        obstacle = self.obstacle(request, self._present)
        return "there is room: it is next" if obstacle is None else obstacle.reason

    def _note_stay(self, entry: _Entry, now: float) -> None:
        stay = now - entry.since
        past = self._stay_s
        self._stay_s = stay if past is None else LIFE_SMOOTHING * past + (1 - LIFE_SMOOTHING) * stay

    def _expected_waits_s(self, now: float) -> list[float | None]:
        """Return the expected wait of each session in line: sessions leave as expected of them until those
        before it and the session itself have room."""
        if not self._line:
            return []
        present = [
            (self._expected_stay_s(entry.request, now - entry.since), entry.request) for entry in self._placed
        ]
        needs = self.needs([*self._present, *(entry.request for entry in self._line)])
        waits = list[float | None]()
        time = 0.0
        for entry in self._line:
            while present and not self.fits(entry.request, [other for _, other in present], needs):
                first = min(present, key=lambda pair: pair[0])
                present.remove(first)
                time = max(time, first[0])
            waits.append(time if time < math.inf else None)
            present.append((time + self._expected_stay_s(entry.request, 0.0), entry.request))
        return waits

    def _expected_stay_s(self, request: Request, age_s: float) -> float:
        """Return how many seconds longer a session stays: one that has stayed long is as likely to go as one
        that just came, unless a limit ends it."""
        limit = math.inf if request.max_life_s is None else max(0.0, request.max_life_s - age_s)
        return min(limit, math.inf if self._stay_s is None else self._stay_s)


def _rank(entry: _Entry) -> tuple[bool, float]:
    """Smaller goes first; of equals, who came first."""
    return (entry.life.state not in ("parked", "returning"), -entry.request.weight)


def _behind(others: int) -> str:
    return f"{others} waiting before it: wait or try again later"
