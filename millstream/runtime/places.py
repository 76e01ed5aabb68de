"""Who is here, who waits in line, who lies in host memory: a seat for every session, from the moment it asks to its end.

Brings together what knows nothing of each other: admission (who may have a place), the scheduler (whose turn it is) and the
sessions themselves. Everything here is quick and takes no device memory; `runtime/service.py` calls it under its lock, and does
on the engine's thread whatever does take time.

A session's state is its `Life` (`runtime/life.py`), which admission moves and everybody reads; nothing here keeps another.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from millstream.core.config import StreamConfig, pixel_frames
from millstream.core.controls import AnyControl, Receipt, SetSteps, SetWindow
from millstream.core.errors import ControlError, MillstreamError, Overloaded, UnknownSession
from millstream.runtime.admission import Admission
from millstream.runtime.admission_types import Admitted, Answer, Queued, Refused, Request
from millstream.runtime.chunk import Chunk
from millstream.runtime.engine import Engine
from millstream.runtime.flights import Landing
from millstream.runtime.heap import trim_heap
from millstream.runtime.notices import Applied, Ended, Live, Pictured, Rated, Tell, Waiting
from millstream.runtime.pacing import Pace
from millstream.runtime.rates import next_rate
from millstream.runtime.scheduler import Scheduler
from millstream.runtime.seats import OpenRequest, Seat, batch_key, geometry
from millstream.runtime.session import Session
from millstream.runtime.turns import Halt


class Places:
    def __init__(
        self,
        engine: Engine,
        *,
        admission: Admission,
        scheduler: Scheduler,
        session_bytes: Callable[[StreamConfig], int],
        revive: Callable[[Seat, str], None],
    ) -> None:
        """`revive` has the engine's thread make a saved session, and `schedule` it with the note it is given."""
        self.admission = admission
        self.scheduler = scheduler
        self.seats: dict[str, Seat] = {}
        self._engine = engine
        self._session_bytes = session_bytes
        self._revive = revive

    def ask(self, request: OpenRequest, tell: Tell) -> Answer:
        """A place for a new session; raises `Overloaded` when it cannot even wait for one."""
        asked = Request(
            session_id=request.session_id,
            geometry=geometry(self._engine.spec, request.config),
            pace=request.pace,
            memory_bytes=self._session_bytes(request.config),
            rate=request.rate,
            weight=request.weight,
            max_life_s=request.max_life_s,
            may_wait=request.may_wait,
        )
        now = time.monotonic()
        answer = self.admission.ask(asked, now)
        if isinstance(answer, Refused):
            raise Overloaded(answer.reason, fps=answer.fps, can_wait=answer.can_wait)
        life = self.admission.life(request.session_id)
        seat = self.seats[request.session_id] = Seat(request, asked, request.config, tell, life, request.pace.fps, now)
        self._answered(seat, answer)
        self._admit_waiting()
        return answer

    def find(self, session_id: str) -> Seat:
        if session_id not in self.seats:
            raise UnknownSession(f"there is no session {session_id}; it may have ended")
        return self.seats[session_id]

    def holds(self, seat: Seat) -> bool:
        """Whether it has not ended."""
        return self.seats.get(seat.session_id) is seat

    def has_input(self, seat: Seat) -> bool:
        """Whether there is enough of it for the next chunk, where it takes one."""
        feed, session = seat.request.feed, seat.session
        if feed is None or session is None:
            return True
        return feed.can_give(pixel_frames(session.timeline.start_frame, seat.request.config.frames_per_chunk))

    def goes_on(self, seat: Seat) -> bool:
        """Whether its next chunk can be planned before its last one is shown: no control is due, and its input is there."""
        return seat.session is not None and seat.session.timeline.undisturbed and self.has_input(seat)

    def control(self, seat: Seat, control: AnyControl, at_chunk: int | None) -> Receipt:
        """Queue a change, once what it costs is promised."""
        if seat.session is None:
            raise ControlError("the session is not live yet; steer it when it is")
        if seat.closing is not None:  # what is acknowledged applies, or is kept
            raise ControlError("the session is ending; start a new one")
        before = seat.asked, seat.config
        self._promise(seat, control)
        try:
            return seat.session.control(control, at_chunk=at_chunk)
        except MillstreamError:
            seat.asked, seat.config = before  # what was not taken is not paid for
            self.admission.revise(seat.asked)
            raise

    def schedule(self, seat: Seat, session: Session, note: str) -> None:
        """Its session is there: it has its turns from now on. Raises `Overloaded` if what waits in it breaks a promise."""
        for waiting in session.timeline.state().waiting:
            self._promise(seat, waiting.control)
        now, request, name = time.monotonic(), seat.request, seat.session_id
        seat.session = session
        key = batch_key(request.config, session.timeline)
        terms = replace(request.terms, pace=self._pace(seat))
        self.scheduler.add(name, terms, now, batch_key=key, life=seat.life)
        if seat.viewers == 0:
            self.scheduler.halt(name, "unwatched", now)
        seat.tell(Live(note=note, fps=seat.fps))

    def lift(self, seat: Seat, *whys: Halt) -> None:
        """These reasons to stand still are gone; one in host memory asks for its place, once none is left."""
        for why in whys:
            self.scheduler.proceed(seat.session_id, why, time.monotonic())
        if seat.life.state == "parked" and not self.scheduler.halts(seat.session_id):
            answer = self.admission.come_back(seat.session_id, time.monotonic())
            if isinstance(answer, Refused):
                self.finish(seat, Ended(cause="refused", reason=answer.reason))
            else:
                self._answered(seat, answer)
                self._admit_waiting()

    def stand_still(self, seat: Seat) -> None:
        """Nobody watches: it halts, and if it stands in line to come back from host memory, it need not."""
        self.scheduler.halt(seat.session_id, "unwatched", time.monotonic())
        if seat.life.state == "returning" and self.scheduler.halts(seat.session_id):
            self.admission.step_out(seat.session_id)
            seat.told_position = 0
            self._admit_waiting()

    def rest(self, seat: Seat, session: Session) -> None:
        """A turn in which it planned nothing is over: it waits for its input, is paused, or ends."""
        now, applied = time.monotonic(), session.timeline.take_receipts()
        self.scheduler.finished(seat.session_id, now, frames=0, seconds=0.0)
        if applied:
            seat.tell(Applied(receipts=applied))
        if session.timeline.stopped:
            seat.closing = Ended(cause="stopped", reason="stopped by its owner")
        elif session.ended:
            seat.closing = Ended(cause="input over", reason="its input has ended")
        elif session.timeline.paused:
            self.scheduler.halt(seat.session_id, "paused", now)
        else:
            self.scheduler.halt(seat.session_id, "starved", now)

    def arrived(self, landing: Landing) -> None:
        """A chunk is back, and the next may leave."""
        seat, now = self.seats[landing.session.id], time.monotonic()
        assert seat.session is not None, f"{seat.label} was never let in"
        assert landing.turn_s is not None, f"{seat.label} had no turn"
        landing.teaches = self._engine.one_offs == seat.one_offs
        seconds, fps = landing.turn_s if landing.teaches else 0.0, self._chunk_fps(seat, landing.num_frames)
        self.scheduler.arrived(seat.session_id, now, frames=landing.num_frames, seconds=seconds, fps=fps)
        self.scheduler.set_batch_key(seat.session_id, batch_key(seat.request.config, seat.session.timeline))

    def shown(self, landing: Landing, chunk: Chunk) -> None:
        """Its pictures are made: learn from what it took, then hand it over at the rate that this leaves."""
        seat, now = self.seats[landing.session.id], time.monotonic()
        assert seat.session is not None, f"{seat.label} was never let in"
        lateness_s = self.scheduler.dry_s(seat.session_id, now)
        if chunk.index > 0 and landing.teaches:
            shape = geometry(self._engine.spec, seat.request.config, seat.session.timeline)
            self.admission.times.add(shape, landing.chunk_s)
            self.tune()
            if self.admission.has_room_for_next:
                self._admit_waiting()
        fps = self._chunk_fps(seat, landing.num_frames)
        if landing.num_frames:
            self.scheduler.shown(seat.session_id, now, frames=landing.num_frames, fps=fps)
        seat.tell(Pictured(chunk=chunk, media_s=seat.media_s, fps=fps, lateness_s=lateness_s))
        seat.media_s += len(chunk.frames) / fps

    def vacate(self, seat: Seat) -> None:
        """Its state is in host memory: others may have its place, unless it was set going again meanwhile."""
        if self.scheduler.halts(seat.session_id):
            now = time.monotonic()
            self.admission.park(seat.session_id, now)
            self.scheduler.place_changed(seat.session_id, now)
            self._admit_waiting()

    def finish(self, seat: Seat, ended: Ended) -> None:
        """Give back everything, tell the owner, let in who waits."""
        self._close(seat, ended)
        self._admit_waiting()

    def close_all(self, ended: Ended) -> None:
        """Everything is over for everybody: nobody is let in any more."""
        for seat in list(self.seats.values()):
            self._close(seat, ended)

    def tune(self) -> None:
        """Let each session play at the rate that the device keeps, by what was measured last."""
        now = time.monotonic()
        for name, kept_fps in self.admission.kept_rates().items():
            seat = self.seats[name]
            fps = next_rate(seat.fps, kept_fps, now - seat.fps_since)
            if fps != seat.fps:
                seat.fps, seat.fps_since = fps, now
                seat.tell(Rated(note=self.admission.grant(name, fps), fps=fps))
            if seat.session is not None:
                self.scheduler.set_pace(name, self._pace(seat))

    def _chunk_fps(self, seat: Seat, num_frames: int) -> float:
        """An epoch's first chunk has fewer frames and leaves less time for the next: it plays slower where that is needed."""
        pace, chunk_s = seat.request.pace, self.admission.chunk_s(seat.session_id)
        if seat.request.rate == "strict" or not chunk_s or not num_frames:
            return seat.fps
        if seat.fps < pace.fps:  # as much as the device keeps
            return seat.fps * num_frames / pace.chunk_frames
        return min(seat.fps, num_frames / chunk_s)

    def _pace(self, seat: Seat) -> Pace:
        """At the rate it has; further ahead, by a chunk at most, where chunk times vary."""
        pace = seat.request.pace.at(seat.fps)
        slack_s = self.admission.slack_s(seat.session_id) if seat.request.has_slack else 0.0
        return seat.request.pace.at(seat.fps, slack_s=min(slack_s, pace.media_s))

    def _close(self, seat: Seat, ended: Ended) -> None:
        now, name = time.monotonic(), seat.session_id
        del self.seats[name]
        if seat.session is not None:
            self.scheduler.remove(name, now)
            seat.session.close()
            trim_heap()
        self.admission.leave(name, now)
        seat.tell(ended)

    def _admit_waiting(self) -> None:
        """Those who leave the line, in order: let in, or refused because they never could be."""
        while (answer := self.admission.next_in(time.monotonic())) is not None:
            seat = self.seats[answer.session_id]
            if isinstance(answer, Refused):
                self._close(seat, Ended(cause="refused", reason=answer.reason))
            else:
                self._answered(seat, answer)
        self._tell_line()

    def _tell_line(self) -> None:
        """Those whose position has changed: somebody came before them, or left."""
        waiting = self.admission.waiting(time.monotonic())
        self.scheduler.crowded = bool(waiting)
        for queued in waiting:
            self._answered(self.seats[queued.session_id], queued)

    def _answered(self, seat: Seat, answer: Admitted | Queued) -> None:
        if isinstance(answer, Queued):
            if answer.position != seat.told_position:
                seat.told_position = answer.position
                seat.tell(Waiting(position=answer.position, expected_wait_s=answer.expected_wait_s, reason=answer.reason))
            return
        now = time.monotonic()
        seat.told_position, seat.fps, seat.fps_since = 0, answer.fps, now
        if seat.session is not None:
            self.scheduler.place_changed(seat.session_id, now)
            seat.tell(Live(note=answer.note, fps=seat.fps))
        elif seat.request.start is not None:
            self._revive(seat, answer.note)
        else:
            self._begin(seat, answer.note)
        self.tune()

    def _begin(self, seat: Seat, note: str) -> None:
        """A new session, at once: it takes no memory before its first chunk."""
        request = seat.request
        try:
            session = self._engine.session(
                request.prompts,
                config=request.config,
                frames=request.feed,
                journal=request.journal,
                session_id=request.session_id,
            )
        except MillstreamError as error:
            self._close(seat, Ended(cause="failed", reason=str(error)))
        else:
            self.schedule(seat, session, note)

    def _promise(self, seat: Seat, control: AnyControl) -> None:
        """More steps or a larger window must fit beside the promises given to others."""
        if not isinstance(control, (SetSteps, SetWindow)):
            return
        control.check()
        changes = (
            {"steps": control.steps} if isinstance(control, SetSteps) else {"window": control.window, "sink": control.sink}
        )
        config = replace(seat.config, **changes)
        asked = replace(seat.asked, geometry=geometry(self._engine.spec, config), memory_bytes=self._session_bytes(config))
        refusal = self.admission.revise(asked)
        if refusal is not None:
            raise Overloaded(refusal)
        seat.asked, seat.config = asked, config
