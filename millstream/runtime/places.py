"""Who is here, who waits in line, who lies in host memory: a seat for every session, from the moment it asks to its end.

Brings together what knows nothing of each other: admission (who may have a place), the scheduler (whose turn it is) and the
sessions themselves. Everything here is quick and takes no device memory; `runtime/service.py` calls it under its lock, and does
on the engine's thread whatever does take time.

    ask ─► in line ─► placed ─► its session is scheduled ─► finish
              ▲         │ idle
              └─ lift ◄─┴─ in host memory
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from millstream.core.config import StreamConfig, pixel_frames
from millstream.core.controls import AnyControl, Receipt, SetSteps, SetWindow
from millstream.core.errors import ControlError, MillstreamError, Overloaded, UnknownSession
from millstream.runtime.admission import Admission, Admitted, Answer, Queued, Refused, Request
from millstream.runtime.engine import Engine
from millstream.runtime.heap import trim_heap
from millstream.runtime.notices import Applied, Ended, Live, Tell, Waiting
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
            weight=request.weight,
            max_life_s=request.max_life_s,
            may_wait=request.may_wait,
        )
        answer = self.admission.ask(asked, time.monotonic())
        if isinstance(answer, Refused):
            raise Overloaded(answer.reason)
        seat = self.seats[request.session_id] = Seat(request, asked, request.config, tell)
        self._seat(seat, answer)
        self._tell_line()
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
        now, request = time.monotonic(), seat.request
        seat.session = session
        self.scheduler.add(request.session_id, request.terms, now, batch_key=batch_key(request.config, session.timeline))
        if seat.viewers == 0:
            self.scheduler.halt(request.session_id, "unwatched", now)
        self._welcome(seat, note)

    def lift(self, seat: Seat, *whys: Halt) -> None:
        """These reasons to stand still are gone; one in host memory asks for its place first, once none is left."""
        if seat.placed:
            for why in whys:
                self.scheduler.proceed(seat.session_id, why, time.monotonic())
            return
        seat.lifted.update(whys)
        if seat.position or not self.scheduler.halts(seat.session_id) <= seat.lifted:
            return
        answer = self.admission.ask(replace(seat.asked, returning=True, may_wait=True), time.monotonic())
        if isinstance(answer, Refused):
            self.finish(seat, Ended(cause="refused", reason=answer.reason))
        else:
            self._seat(seat, answer)
            self._tell_line()

    def stand_still(self, seat: Seat) -> None:
        """Nobody watches: it halts, and if it stands in line to come back from host memory, it need not."""
        now = time.monotonic()
        self.scheduler.halt(seat.session_id, "unwatched", now)
        seat.lifted.discard("unwatched")
        if seat.position and not self.scheduler.halts(seat.session_id) <= seat.lifted:
            seat.position = 0
            self.admission.leave(seat.session_id, now)
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

    def vacate(self, seat: Seat) -> None:
        """Its state is in host memory: others may have its place, unless it was set going again meanwhile."""
        if self.scheduler.halts(seat.session_id):
            seat.placed = False
            self.admission.leave(seat.session_id, time.monotonic())
            self._admit_waiting()

    def finish(self, seat: Seat, ended: Ended) -> None:
        """Give back everything, tell the owner, let in who waits."""
        now, name = time.monotonic(), seat.session_id
        del self.seats[name]
        if seat.session is not None:
            self.scheduler.remove(name, now)
            seat.session.close()
            trim_heap()
        if seat.placed or seat.position:
            self.admission.leave(name, now)
        seat.tell(ended)
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        for answer in self.admission.admit_waiting(time.monotonic()):
            seat = self.seats[answer.session_id]
            if isinstance(answer, Refused):
                self.finish(seat, Ended(cause="refused", reason=answer.reason))
            else:
                self._seat(seat, answer)
        self._tell_line()

    def _tell_line(self) -> None:
        """Those whose position has changed: somebody came before them, or left."""
        for queued in self.admission.waiting(time.monotonic()):
            self._seat(self.seats[queued.session_id], queued)

    def _seat(self, seat: Seat, answer: Admitted | Queued) -> None:
        if isinstance(answer, Queued):
            if answer.position != seat.position:
                seat.position = answer.position
                seat.tell(Waiting(position=answer.position, expected_wait_s=answer.expected_wait_s, reason=answer.reason))
            return
        seat.position, seat.placed = 0, True
        if seat.session is not None:
            self._welcome(seat, answer.note)
        elif seat.request.start is not None:
            self._revive(seat, answer.note)
        else:
            self._begin(seat, answer.note)

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
            self.finish(seat, Ended(cause="failed", reason=str(error)))
        else:
            self.schedule(seat, session, note)

    def _welcome(self, seat: Seat, note: str) -> None:
        """It has its place, for the first time or again."""
        for why in seat.lifted:
            self.scheduler.proceed(seat.session_id, why, time.monotonic())
        seat.lifted.clear()
        seat.tell(Live(note=note))

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
