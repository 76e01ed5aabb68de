"""Who is here, who waits in line, who lies in host memory: an entry for every session, from the moment it asks to its end.

Brings together what knows nothing of each other: admission (who may have a place), the scheduler (whose turn it is) and the
sessions themselves. Everything here is quick and takes no device memory; `serving/service.py` calls it under its lock, and does
on the engine's thread whatever does take time.

A session's state is its `Life` (`serving/life.py`), which admission moves and everybody reads; nothing here keeps another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from millstream.core.config import StreamConfig, pixel_frames
from millstream.core.controls import AnyControl, Receipt, SetSteps, SetWindow
from millstream.core.errors import ControlError, MillstreamError, Overloaded, UnknownSession
from millstream.engine.engine import Engine
from millstream.engine.flights import Landing
from millstream.serving.admission import Admission
from millstream.serving.admission_types import Admitted, Answer, Queued, Refused, Request
from millstream.serving.chunk_times import Geometry
from millstream.serving.hand_over import HandOver
from millstream.serving.heap import trim_heap
from millstream.serving.notices import Applied, Ended, Live, Pictured, Rated, Tell, Waiting
from millstream.serving.rates import RISE_AFTER_S, next_rate
from millstream.serving.scheduler import Scheduler
from millstream.serving.session_entry import Has, OpenRequest, SessionEntry, batch_key, geometry
from millstream.serving.turns import Halt
from millstream.session.chunk import Chunk
from millstream.session.pacing import Pace
from millstream.session.session import Session
from millstream.session.timeline import TimelineState

LEARN_S = 0.03
"""So often at most admission hears what chunks took, and rates follow: chunks of a few milliseconds are told in one go."""
LATE = 0.1
"""Of a chunk's playing time: what comes later than that costs its session some of its rate."""
MAX_CATCH_UP = 64
"""Chunks."""


class SessionTable:
    def __init__(
        self,
        engine: Engine,
        *,
        admission: Admission,
        scheduler: Scheduler,
        session_bytes: Callable[[StreamConfig], int],
        revive: Callable[[SessionEntry, str], None],
    ) -> None:
        """`revive` has the engine's thread make a saved session, and `schedule` it with the note it is given."""
        self.admission = admission
        self.scheduler = scheduler
        self.entries: dict[str, SessionEntry] = {}
        self.hand_over = HandOver()
        """As it was measured last."""
        self._engine = engine
        self._session_bytes = session_bytes
        self._revive = revive
        self._measured: list[tuple[Geometry, float]] = []
        """What chunks took that admission has not heard of."""
        self._learned_at = -math.inf

    def price(self, request: OpenRequest) -> Request:
        """What a session would take, as admission is asked."""
        return Request(
            session_id=request.session_id,
            geometry=geometry(self._engine.spec, request.config),
            pace=request.pace,
            memory_bytes=self._session_bytes(request.config),
            rate=request.rate,
            weight=request.weight,
            max_life_s=request.max_life_s,
            may_wait=request.may_wait,
            tree=request.tree,
            yields=request.yields,
        )

    def ask(self, request: OpenRequest, tell: Tell) -> Answer:
        """A place for a new session; raises `Overloaded` when it cannot even wait for one."""
        asked, now = self.price(request), time.monotonic()
        self._learn()
        answer = self.admission.ask(asked, now)
        if isinstance(answer, Refused):
            raise Overloaded(answer.reason, fps=answer.fps, can_wait=answer.can_wait)
        life = self.admission.life(request.session_id)
        entry = self.entries[request.session_id] = SessionEntry(
            request, asked, request.config, tell, life, request.pace.fps, now, media_s=request.media_s
        )
        self._answered(entry, answer)
        self._admit_waiting()
        return answer

    def check(self, request: OpenRequest, instead_of: str) -> None:
        """Raises `Overloaded` if this session could not be in the place of that one, or ever, if it may wait."""
        self.find(instead_of)
        self._learn()
        asked = replace(self.price(request), session_id=instead_of)
        obstacle = self.admission.obstacle(asked, ()) if request.may_wait else self.admission.obstacle_instead(asked)
        if obstacle is not None:
            raise Overloaded(obstacle.reason, fps=obstacle.fps)

    def find(self, session_id: str) -> SessionEntry:
        if session_id not in self.entries:
            raise UnknownSession(f"there is no session {session_id}; it may have ended")
        return self.entries[session_id]

    def holds(self, entry: SessionEntry) -> bool:
        """Whether it has not ended."""
        return self.entries.get(entry.session_id) is entry

    def has_input(self, entry: SessionEntry) -> bool:
        """Whether there is enough of it for the next chunk, where it takes one."""
        feed, session = entry.request.feed, entry.session
        if feed is None or session is None:
            return True
        return feed.can_give(pixel_frames(session.timeline.start_frame, entry.request.config.frames_per_chunk))

    def goes_on(self, entry: SessionEntry) -> bool:
        """Whether its next chunk can be planned before its last one is shown: no control is due, and its input is there."""
        return entry.session is not None and entry.session.undisturbed and self.has_input(entry)

    def control(self, entry: SessionEntry, control: AnyControl, at_chunk: int | None) -> Receipt:
        """Queue a change, once what it costs is promised."""
        if entry.session is None:
            raise ControlError("the session is not live yet; steer it when it is")
        if entry.closing is not None:  # what is acknowledged applies, or is kept
            raise ControlError("the session is ending; start a new one")
        before = entry.asked, entry.config
        self._promise(entry, control)
        try:
            return entry.session.control(control, at_chunk=at_chunk)
        except MillstreamError:
            entry.asked, entry.config = before  # what was not taken is not paid for
            self.admission.revise(entry.asked)
            raise

    def schedule(self, entry: SessionEntry, session: Session, note: str) -> None:
        """Its session is there: it has its turns from now on. Raises `Overloaded` if what waits in it breaks a promise."""
        assert self.holds(entry), f"{entry.label} has ended"
        for waiting in session.timeline.state().waiting:
            self._promise(entry, waiting.control)
        now, request, name = time.monotonic(), entry.request, entry.session_id
        entry.session = session
        key = batch_key(request.config, session.timeline)
        terms = replace(request.terms, pace=self._pace(entry))
        self.scheduler.add(name, terms, now, batch_key=key, life=entry.life)
        self.catch_up(entry, request.has)
        if entry.viewers == 0:
            self.scheduler.halt(name, "unwatched", now)
        entry.tell(Live(note=note, fps=entry.fps))

    def catch_up(self, entry: SessionEntry, has: Has) -> None:
        """One that was brought back makes what its viewer has already without waiting to be watched: not more than it can
        have missed, whatever is said. Then it is as far ahead of the viewer as it was."""
        if entry.request.start is None or entry.session is None or entry.has.chunk >= 0 or has.chunk < 0:
            return
        following = entry.session.timeline.chunk_index
        entry.has = has._replace(chunk=min(has.chunk, following + MAX_CATCH_UP))
        if entry.has.chunk < following:
            self.scheduler.restart(entry.session_id, time.monotonic(), has.dry_at)

    def lift(self, entry: SessionEntry, *whys: Halt) -> None:
        """These reasons to stand still are gone; one in host memory asks for its place, once none is left."""
        for why in whys:
            self.scheduler.proceed(entry.session_id, why, time.monotonic())
        if entry.life.state == "parked" and not self.scheduler.halts(entry.session_id):
            answer = self.admission.come_back(entry.session_id, time.monotonic())
            if isinstance(answer, Refused):
                self.finish(entry, Ended(cause="refused", reason=answer.reason))
            else:
                self._answered(entry, answer)
                self._admit_waiting()

    def stand_still(self, entry: SessionEntry) -> None:
        """Nobody watches: it halts, and if it stands in line to come back from host memory, it need not."""
        self.scheduler.halt(entry.session_id, "unwatched", time.monotonic())
        if entry.life.state == "returning" and self.scheduler.halts(entry.session_id):
            self.admission.step_out(entry.session_id)
            entry.told_position = 0
            self._admit_waiting()

    def rest(self, entry: SessionEntry, session: Session) -> None:
        """A turn in which it planned nothing is over: it waits for its input, is paused, or ends."""
        now, applied = time.monotonic(), session.timeline.take_receipts()
        self.scheduler.finished(entry.session_id, now, frames=0, seconds=0.0)
        if applied:
            entry.tell(Applied(receipts=applied))
        if session.timeline.stopped:
            entry.closing = Ended(cause="stopped", reason="stopped by its owner")
        elif session.ended:
            entry.closing = Ended(cause="input over", reason="its input has ended")
        elif session.timeline.paused:
            self.scheduler.halt(entry.session_id, "paused", now)
        else:
            self.scheduler.halt(entry.session_id, "starved", now)

    def arrived(self, landing: Landing) -> None:
        """A chunk is back, and the next may leave."""
        entry, now = self.entries[landing.session.id], time.monotonic()
        assert entry.session is not None, f"{entry.label} was never let in"
        assert landing.turn_s is not None, f"{entry.label} had no turn"
        landing.teaches = self._engine.one_offs == entry.one_offs
        seconds, fps = landing.turn_s if landing.teaches else 0.0, self._chunk_fps(entry, landing.num_frames)
        self.scheduler.arrived(entry.session_id, now, frames=landing.num_frames, seconds=seconds, fps=fps)
        self.scheduler.set_batch_key(entry.session_id, batch_key(entry.request.config, entry.session.timeline))

    def shown(self, landing: Landing, chunk: Chunk) -> None:
        """Its pictures are made: learn from what it took, then hand it over at the rate that this leaves."""
        entry, now = self.entries[landing.session.id], time.monotonic()
        assert entry.session is not None, f"{entry.label} was never let in"
        lateness_s = self.scheduler.dry_s(entry.session_id, now)
        self.admission.note_late(entry.session_id, lateness_s > LATE * entry.request.pace.at(entry.fps).media_s)
        if landing.teaches:
            self._note_time(entry, landing, is_first=chunk.index == 0)
        fps = self._chunk_fps(entry, landing.num_frames)
        if landing.num_frames:
            self.scheduler.shown(entry.session_id, now, frames=landing.num_frames, fps=fps)
            if chunk.index <= entry.has.chunk:
                self.scheduler.restart(entry.session_id, now, entry.has.dry_at if chunk.index == entry.has.chunk else now)
        entry.tell(Pictured(chunk=chunk, media_s=entry.media_s, fps=fps, lateness_s=lateness_s))
        assert fps > 0, f"a chunk of {entry.label} plays {fps} frames a second"
        entry.media_s += len(chunk.frames) / fps

    def vacate(self, entry: SessionEntry) -> None:
        """Its state is in host memory: others may have its place, unless it was set going again meanwhile."""
        if self.scheduler.halts(entry.session_id):
            now = time.monotonic()
            self.admission.park(entry.session_id, now)
            self.scheduler.place_changed(entry.session_id, now)
            self._admit_waiting()

    def finish(self, entry: SessionEntry, ended: Ended) -> None:
        """Give back everything, tell the owner, let in who waits."""
        self._close(entry, ended)
        self._admit_waiting()

    def close_all(self, ended: Ended) -> None:
        """Everything is over for everybody: nobody is let in any more."""
        for entry in list(self.entries.values()):
            self._close(entry, ended)

    def tune(self) -> None:
        """Let each session play at the rate that the device keeps, by what was measured last."""
        now = time.monotonic()
        for name, kept_fps in self.admission.kept_rates().items():
            entry = self.entries[name]
            fps = next_rate(entry.fps, kept_fps, now - entry.fps_since)
            if fps != entry.fps:
                entry.fps, entry.fps_since = fps, now
                entry.tell(Rated(note=self.admission.grant(name, fps), fps=fps))
            if entry.asked.yields and fps >= entry.asked.wish().least and now - entry.fps_since >= RISE_AFTER_S:
                entry.asked = self.admission.regain(name)
            if entry.session is not None:
                self.scheduler.set_pace(name, self._pace(entry))
        self._note_crowd()

    def _note_crowd(self) -> None:
        """Somebody waits for a place, or plays slower than they wish: who stands still unwatched is in their way."""
        self.scheduler.crowded = self.admission.has_line or any(
            entry.fps < entry.asked.pace.fps and entry.session is not None and not self.scheduler.halts(name)
            for name, entry in self.entries.items()
        )

    def _note_time(self, entry: SessionEntry, landing: Landing, *, is_first: bool) -> None:
        """What a chunk took. A stream's first costs less than others: it says something where it took longer than they do."""
        assert entry.session is not None, f"{entry.label} was never let in"
        shape = geometry(self._engine.spec, entry.request.config, entry.session.timeline)
        seconds, now = self.hand_over.slowest_s(landing, self._alone_s(entry, landing)), time.monotonic()
        if not is_first:
            self._measured.append((shape, seconds))
        elif self.admission.started_slowly(entry.session_id, seconds):
            self.admission.times.add(shape, seconds, is_trial=True)
        else:
            return
        if now - self._learned_at >= LEARN_S:
            self._learned_at = now
            self._learn()
            self.tune()
            if self.admission.has_room_for_next:
                self._admit_waiting()

    def _learn(self) -> None:
        """Have admission hear of all that was measured."""
        for shape, seconds in self._measured:
            self.admission.times.add(shape, seconds)
        self._measured.clear()

    def _alone_s(self, entry: SessionEntry, landing: Landing) -> float:
        """What a chunk takes by itself. What shared calls save is nobody's to be promised, for sessions do not always meet; nor
        is anybody told less for what a trial of them lost."""
        assert entry.session is not None, f"{entry.label} was never let in"
        key = batch_key(entry.request.config, entry.session.timeline)
        alone_s = self.scheduler.batch_times.seconds(key, 1) if landing.together > 1 else None
        return landing.chunk_s if alone_s is None else alone_s

    def _chunk_fps(self, entry: SessionEntry, num_frames: int) -> float:
        """An epoch's first chunk has fewer frames and leaves less time for the next: it plays slower where that is needed."""
        pace, chunk_s = entry.request.pace, self.admission.chunk_s(entry.session_id)
        if entry.request.rate == "strict" or not chunk_s or not num_frames:
            return entry.fps
        if entry.fps < pace.fps:  # as much as the device keeps
            return entry.fps * num_frames / pace.chunk_frames
        return min(entry.fps, num_frames / chunk_s)

    def _pace(self, entry: SessionEntry) -> Pace:
        """At the rate it has; further ahead, by a chunk at most, where chunk times vary."""
        pace = entry.request.pace.at(entry.fps)
        slack_s = self.admission.slack_s(entry.session_id) if entry.request.has_slack else 0.0
        return entry.request.pace.at(entry.fps, slack_s=min(slack_s, pace.media_s))

    def _close(self, entry: SessionEntry, ended: Ended) -> None:
        now, name = time.monotonic(), entry.session_id
        assert self.holds(entry), f"{entry.label} has ended already"
        del self.entries[name]
        if entry.session is not None:
            self.scheduler.remove(name, now)
            entry.session.close()
            trim_heap()
        self.admission.leave(name, now)
        entry.tell(ended)

    def _admit_waiting(self) -> None:
        """Those who leave the line, in order: let in, or refused because they never could be."""
        while (answer := self.admission.next_in(time.monotonic())) is not None:
            entry = self.entries[answer.session_id]
            if isinstance(answer, Refused):
                self._close(entry, Ended(cause="refused", reason=answer.reason))
            else:
                self._answered(entry, answer)
        self._tell_line()

    def _tell_line(self) -> None:
        """Those whose position has changed: somebody came before them, or left."""
        for queued in self.admission.waiting(time.monotonic()):
            self._answered(self.entries[queued.session_id], queued)
        self._note_crowd()

    def _answered(self, entry: SessionEntry, answer: Admitted | Queued) -> None:
        if isinstance(answer, Queued):
            if answer.position != entry.told_position:
                entry.told_position = answer.position
                entry.tell(Waiting(position=answer.position, expected_wait_s=answer.expected_wait_s, reason=answer.reason))
            return
        now = time.monotonic()
        entry.told_position, entry.fps, entry.fps_since = 0, answer.fps, now
        if entry.session is not None:
            self.scheduler.place_changed(entry.session_id, now)
            entry.tell(Live(note=answer.note, fps=entry.fps))
        elif entry.request.start is not None:
            self._revive(entry, answer.note)
        else:
            self._begin(entry, answer.note)
        self.tune()

    def _begin(self, entry: SessionEntry, note: str) -> None:
        """A new session, at once: it takes no memory before its first chunk."""
        request = entry.request
        try:
            session = self._engine.session(
                request.prompts,
                config=request.config,
                frames=request.feed,
                journal=request.journal,
                session_id=request.session_id,
            )
        except MillstreamError as error:
            self._close(entry, Ended(cause="failed", reason=str(error)))
        else:
            self.schedule(entry, session, note)

    def _promise(self, entry: SessionEntry, control: AnyControl) -> None:
        """More steps or a larger window must fit beside the promises given to others."""
        if not isinstance(control, (SetSteps, SetWindow)):
            return
        control.check()
        changes = (
            {"steps": control.steps} if isinstance(control, SetSteps) else {"window": control.window, "sink": control.sink}
        )
        self._revise(entry, replace(entry.config, **changes))

    def promise_stream(self, entry: SessionEntry, timeline: TimelineState) -> None:
        """What a session needs that goes back, to when its steps or window were others, must fit too."""
        changes = dict(steps=timeline.steps, window=timeline.window, sink=timeline.sink)
        self._revise(entry, replace(entry.config, **changes))  # type: ignore[arg-type]

    def _revise(self, entry: SessionEntry, config: StreamConfig) -> None:
        asked = replace(entry.asked, geometry=geometry(self._engine.spec, config), memory_bytes=self._session_bytes(config))
        refusal = self.admission.revise(asked)
        if refusal is not None:
            raise Overloaded(refusal)
        entry.asked, entry.config = asked, config
