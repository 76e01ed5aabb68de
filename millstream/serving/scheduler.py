"""Which session runs now. Pure policy: no tensors, no threads, no clock; time comes in as seconds.

The engine's loop asks `next` for a turn, does what it says, and reports `finished`:

    turn = scheduler.next(now)      # Run | Restore | Offload | End | Sleep
    ...                             # plan, submit and accept a chunk of each session of a Run
    scheduler.finished(session_id, now, frames=12, seconds=0.21)

Where frames are made apart from the chunk, it says when that `arrived`, and the next may leave, and when
they are `shown`: lateness is what a viewer sees, so it counts from there.

The rules, each in its own file:
- A chunk's deadline is the moment its viewer runs dry, and it may start once the session would not get
  further ahead than its lead (`session/pacing.py`). Earliest deadline first; if any session may run, one
  does.
- When sessions ask for more than the device has, their clocks are slowed by weight until they fit
  (`serving/overload.py`), and the deadlines are those of the slowed clocks.
- Chunks that can share a batch do, when that was measured to be faster (`serving/batching.py`) and makes
  nobody late.

A session has at most one turn under way, so its chunks keep their order. The caller may hold several turns at
once. A turn that brings no frames (of a chunk that was dropped after a cut) costs time and moves no deadline.
Who may join at all is `serving/admission.py`'s business.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from millstream.serving.batching import BatchPolicy, BatchTimes
from millstream.serving.overload import PlayingLoad, playing_rates
from millstream.serving.scheduled_session import ScheduledSession
from millstream.serving.session_life import SessionLife
from millstream.serving.turns import (
    EndTurn,
    Halt,
    Offload,
    RestoreTurn,
    Run,
    SchedulerMetrics,
    SessionMetrics,
    Sleep,
    Terms,
    Turn,
)
from millstream.session.pacing import Pace, Playout

SERVED = 0.9
"""Share of real time at which a session counts as served one by one: what a chunk takes varies, and promises
come near to all of the device."""


@dataclass(frozen=True, slots=True)
class _Ready:
    entry: ScheduledSession
    deadline: float


class Scheduler:
    def __init__(self, *, batching: BatchPolicy | None = None) -> None:
        self.batch_times = BatchTimes(batching or BatchPolicy())
        self._entries: dict[str, ScheduledSession] = {}
        self.crowded = False
        """True if the device cannot meet every session's wish: a session without viewers then makes room
        soon."""
        self._busy_s = 0.0

    def add(
        self,
        session_id: str,
        terms: Terms,
        now: float,
        *,
        batch_key: Hashable = None,
        life: SessionLife | None = None,
    ) -> None:
        """Add a session that admission let in. Sessions of equal `batch_key` may share a batch; None never
        does.

        It runs while its `life` has a place; call `place_changed` when that begins again. None: it always has
        one.
        """
        assert session_id not in self._entries, f"session {session_id} is scheduled already"
        playout = Playout(pace=terms.pace, landed_at=now)
        taken = {entry.seat for entry in self._entries.values()}
        seat = next(number for number in itertools.count() if number not in taken)
        self._entries[session_id] = ScheduledSession(
            session_id, terms, now, playout, batch_key, life or SessionLife("placed"), seat
        )

    def remove(self, session_id: str, now: float) -> SessionMetrics:
        """Forget a session, under way or not; a turn of it that is under way is not reported any more."""
        metrics = self._entries[session_id].metrics(now)
        del self._entries[session_id]
        return metrics

    def set_batch_key(self, session_id: str, batch_key: Hashable) -> None:
        """Set the batch key where the session's next unit has another phase or shape."""
        self._entries[session_id].batch_key = batch_key

    def set_pace(self, session_id: str, pace: Pace) -> None:
        """Set the rate at which chunks shown from now on play; those that the viewer has already keep their
        own."""
        entry = self._entries[session_id]
        entry.terms = replace(entry.terms, pace=pace)
        for clock in entry.clocks:
            clock.pace = pace

    def halt(self, session_id: str, why: Halt, now: float) -> None:
        """Halt a session from now on. A turn under way still lands; no miss is counted meanwhile."""
        entry = self._entries[session_id]
        if why == "unwatched" and entry.terms.unattended == "run":
            return
        entry.halts.add(why)
        entry.set_clocks(now)

    def proceed(self, session_id: str, why: Halt, now: float) -> None:
        """Remove a reason to halt; the session goes on when all are gone, and it has its place."""
        entry = self._entries[session_id]
        entry.halts.discard(why)
        entry.set_clocks(now)

    def place_changed(self, session_id: str, now: float) -> None:
        """Note that a session has its place again, or no longer."""
        self._entries[session_id].set_clocks(now)

    def halts(self, session_id: str) -> frozenset[Halt]:
        """Return why a session stands still; empty while it runs."""
        return frozenset(self._entries[session_id].halts)

    def is_between_chunks(self, session_id: str) -> bool:
        """Return whether a session runs, has no turn under way, and has its state on the device."""
        return self._entries[session_id].runs and self.is_at_rest(session_id)

    def is_at_rest(self, session_id: str) -> bool:
        """Return whether a session has no turn under way and has its state on the device, whether or not it
        runs."""
        entry = self._entries[session_id]
        return not entry.ended and entry.resident and entry.turn is None and entry.coming is None

    def next(self, now: float) -> Turn:
        """Return what to do now. What is returned counts as done or under way."""
        chore = self._chore(now)
        if chore is not None:
            return chore
        ready = self._ready(now)
        if not ready:
            return Sleep(until=self._wake())
        first = ready[0].entry
        if not first.resident:
            first.resident = True
            return RestoreTurn(session_id=first.session_id)
        batch = self._batch(ready, now)
        names = tuple(entry.session_id for entry in batch)
        run = Run(session_ids=names, batch_key=first.batch_key)
        for entry in batch:
            entry.turn = run
        return run

    def finished(self, session_id: str, now: float, *, frames: int, seconds: float) -> None:
        """Report that a session's unit is done: `frames` went out (0 for none) and the whole turn took
        `seconds` of the device.

        Where there was nothing to do, give 0 and 0 and `halt` or `remove` the session: otherwise it is given
        a turn again at once.
        """
        self.arrived(session_id, now, frames=frames, seconds=seconds)
        if frames:
            self.shown(session_id, now, frames=frames)

    def arrived(
        self, session_id: str, now: float, *, frames: int, seconds: float, fps: float | None = None
    ) -> None:
        """Report as `finished` does, with the frames yet to be `shown`. The next turn is given as if they
        were out, to this session too.

        `fps` is what these frames play at, if not at the session's pace.
        """
        entry = self._entries[session_id]
        run = entry.turn
        entry.turn = None
        assert run is not None, f"session {session_id} has no turn under way"
        assert frames >= 0, f"{frames} frames of {session_id} went out"
        assert seconds >= 0, f"a turn of {session_id} took {seconds} s"
        size = len(run.session_ids)
        # Every session of a batch reports the same turn: its time counts once, with the first.
        if session_id == run.session_ids[0] and seconds > 0 and run.batch_key is not None:
            self.batch_times.add(run.batch_key, size, seconds)
        self._busy_s += seconds / size
        entry.cost.spent_s += seconds / size
        # While no turn alone was measured, the batch's whole time stands for it: too long, so that a session
        # counts as carried by its batches until it is known better.
        entry.cost_alone.spent_s += (
            self.batch_times.seconds(run.batch_key, 1) or seconds if size > 1 else seconds
        )
        if frames:
            entry.expect(now, frames, self._rate(session_id), fps)

    def shown(self, session_id: str, now: float, *, frames: int, fps: float | None = None) -> None:
        """Report that the frames of the chunk that arrived last are out: only now does its viewer have
        them."""
        entry = self._entries[session_id]
        assert entry.coming is not None, f"no chunk of {session_id} has arrived"
        entry.land(now, frames, self._rate(session_id), fps)

    def restart(self, session_id: str, now: float, dry_at: float) -> None:
        """Restart a session's clock: its viewer has all that was made, to play until `dry_at`. A viewer with
        nothing left gets the next chunk at once, and the clock starts with that."""
        entry = self._entries[session_id]
        entry.playout = Playout(pace=entry.terms.pace, landed_at=now)
        entry.playout.resume(dry_at)
        entry.set_clocks(now)

    def dry_s(self, session_id: str, now: float) -> float:
        """Return for how many seconds the viewer has had nothing to play."""
        playout = self._entries[session_id].playout
        return playout.waited_s(now) - playout.stalled_s

    def metrics(self, now: float) -> SchedulerMetrics:
        return SchedulerMetrics(
            sessions=tuple(entry.metrics(now) for entry in self._entries.values()),
            utilisation=sum(entry.cost.load for entry in self._active()),
            busy_s=self._busy_s,
            ready=len(self._ready(now)),
        )

    def _rate(self, session_id: str) -> float:
        return self._rates().get(session_id, 1.0)  # one that is halted has none

    def _rates(self) -> dict[str, float]:
        """Return the share of real time at which each active session can be served."""
        return playing_rates(
            {
                entry.session_id: PlayingLoad(load=entry.cost.load, weight=entry.terms.weight)
                for entry in self._active()
            }
        )

    def _active(self) -> Iterator[ScheduledSession]:
        return (entry for entry in self._entries.values() if entry.runs and not entry.ended)

    def _chore(self, now: float) -> EndTurn | Offload | None:
        """Return a session to end or to offload, if any. These come before other work: each happens once, and
        makes room."""
        for entry in self._entries.values():
            if entry.turn is not None or entry.ended:
                continue
            reason = entry.over(now)
            if reason is not None:
                entry.ended = True
                return EndTurn(session_id=entry.session_id, reason=reason)
            if now >= entry.offload_at(self.crowded):
                entry.resident = False
                return Offload(session_id=entry.session_id)
        return None

    def _ready(self, now: float) -> list[_Ready]:
        """Return sessions that may run, earliest deadline first; of equals, the one that joined first."""
        return [item for item in self._due() if now >= item.entry.clock.may_start_at]

    def _due(self) -> list[_Ready]:
        """Return sessions without a turn under way by deadline, those that may not run yet included: a long
        turn keeps them waiting, too."""
        rates = self._rates()
        due = [
            _Ready(entry, entry.clock.deadline(rates[entry.session_id]))
            for entry in self._active()
            if entry.turn is None
        ]
        return sorted(due, key=lambda item: item.deadline)

    def _batch(self, ready: Sequence[_Ready], now: float) -> list[ScheduledSession]:
        """Return the first session, and those that may and should run with it."""
        key = ready[0].entry.batch_key
        if key is None:
            return [ready[0].entry]
        mates = [item for item in ready if item.entry.resident and item.entry.batch_key == key]
        assert mates[0] is ready[0], "the most urgent session is of its own batch"
        served = self._served_alone()
        due = self._due()
        single_s = self.batch_times.seconds(key, 1) or 0.0
        late_alone_s = _late_s(due, mates[:1], single_s, now, served)

        def affordable(size: int, seconds: float) -> bool:
            company = _company(mates, size)
            return len(company) == size and _late_s(due, company, seconds, now, served) <= late_alone_s

        size = self.batch_times.choose(key, len(mates), affordable)
        return [item.entry for item in _company(mates, size)]

    def _served_alone(self) -> set[str]:
        """Return sessions that would keep real time if nothing were batched: a batch must not make them late.

        For the others it is the batches that carry them, and throughput is all that counts.
        """
        demands = {
            entry.session_id: PlayingLoad(load=entry.cost_alone.load, weight=entry.terms.weight)
            for entry in self._active()
        }
        return {name for name, rate in playing_rates(demands).items() if rate >= SERVED}

    def _wake(self) -> float | None:
        """Return when something can happen by itself; None for never."""
        moments = [entry.clock.may_start_at for entry in self._active() if entry.turn is None]
        for entry in self._entries.values():
            if entry.turn is None and not entry.ended:
                moments += [entry.offload_at(self.crowded), entry.end_at]
        until = min(moments, default=math.inf)
        return until if until < math.inf else None


def _company(mates: Sequence[_Ready], size: int) -> list[_Ready]:
    """Return those of `mates` that sit with the first in one row of `size` seats, in the order of seats."""
    # Rows of seats, not the most urgent ones: a recorded call is that of certain sessions, and other company
    # at every turn would record anew at every turn.
    row = [item for item in mates if item.entry.seat // size == mates[0].entry.seat // size]
    return sorted(row, key=lambda item: item.entry.seat)


def _late_s(
    due: Sequence[_Ready], batch: Sequence[_Ready], seconds: float, now: float, served: set[str]
) -> float:
    """Return by how many seconds `served` would land late, all in all, if this batch ran first and then the
    rest in order, one by one."""
    finish = now + seconds
    together = {item.entry.session_id for item in batch}
    late_s = sum(max(0.0, finish - item.deadline) for item in batch if item.entry.session_id in served)
    for item in due:
        if item.entry.session_id not in together:
            finish = (
                max(finish, item.entry.clock.may_start_at)
                + item.entry.cost_alone.load * item.entry.terms.pace.media_s
            )
            late_s += max(0.0, finish - item.deadline) if item.entry.session_id in served else 0.0
    return late_s
