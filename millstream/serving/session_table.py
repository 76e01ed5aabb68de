"""Entry of every session, on the device, in line or in host memory, from the moment it asks to its end.

Brings together parts that know nothing of each other: admission (which sessions may have a place), the
scheduler (whose turn it is) and the sessions themselves. Everything here is quick and takes no device memory;
`serving/service.py` calls it under its lock, and does on the engine's thread whatever does take time.

A session's state is its `SessionLife` (`serving/session_life.py`), which admission moves and all others read;
nothing here keeps another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from millstream.core.config import StreamConfig, pixel_frames
from millstream.core.controls import AnyControl, Receipt, SetImage, SetSteps, SetWindow
from millstream.core.errors import ControlError, MillstreamError, Overloaded, UnknownSession
from millstream.engine.engine import Engine
from millstream.serving.admission import Admission
from millstream.serving.admission_types import Admitted, Answer, Queued, Refused, Request
from millstream.serving.chunk_times import Geometry
from millstream.serving.delivery_cost import DeliveryCost
from millstream.serving.heap import trim_heap
from millstream.serving.notices import Applied, Ended, Live, Rated, Tell, Waiting
from millstream.serving.rates import RISE_AFTER_S, next_rate
from millstream.serving.scheduler import Scheduler
from millstream.serving.session_entry import OpenRequest, SessionEntry, ViewerPosition, batch_key, geometry
from millstream.serving.turns import Halt
from millstream.session.chunk import Chunk, PendingChunk
from millstream.session.pacing import Pace
from millstream.session.session import Session
from millstream.session.timeline import TimelineState, shaped_by

LEARN_S = 0.03
"""Seconds between two updates of admission with chunk times, after which rates follow: chunks of a few
milliseconds are reported in one go."""
LATE = 0.1
"""Share of a chunk's playing time: a chunk that is later than that costs its session some of its rate."""
PICTURE_ID = "image"
"""Id of the control by which a session begins from a picture."""
MAX_CATCH_UP = 64
"""Most chunks that a session makes again for a viewer that has them."""


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
        """`revive` has the engine's thread make a saved session, and `schedule` it with the note it is
        given."""
        self.admission = admission
        self.scheduler = scheduler
        self.entries: dict[str, SessionEntry] = {}
        self.hand_over = DeliveryCost()
        """Cost of passing a chunk on, as measured last."""
        self._engine = engine
        self._session_bytes = session_bytes
        self._revive = revive
        self._measured: list[tuple[Geometry, float]] = []
        """Chunk times that admission has not received yet, by geometry."""
        self._learned_at = -math.inf

    def price(self, request: OpenRequest) -> Request:
        """Return a session's request to admission: what it would take."""
        return Request(
            session_id=request.session_id,
            geometry=geometry(self._engine.spec, request.config),
            first_geometry=Geometry.of_first(self._engine.spec, request.config),
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
        """Ask for a place for a new session; raise `Overloaded` when it cannot even wait for one."""
        asked = self.price(request)
        now = time.monotonic()
        self._learn()
        answer = self.admission.ask(asked, now)
        if isinstance(answer, Refused):
            raise Overloaded(answer.reason, fps=answer.fps, can_wait=answer.can_wait, never=answer.never)
        life = self.admission.life(request.session_id)
        entry = self.entries[request.session_id] = SessionEntry(
            request, asked, request.config, tell, life, request.pace.fps, now, media_s=request.media_s
        )
        self._answered(entry, answer)
        self._admit_waiting()
        return answer

    def check(self, request: OpenRequest, instead_of: str) -> None:
        """Raise `Overloaded` if this session could not be in the place of that one, or ever, if it may
        wait."""
        self.find(instead_of)
        self._learn()
        asked = replace(self.price(request), session_id=instead_of)
        obstacle = (
            self.admission.obstacle(asked, ()) if request.may_wait else self.admission.obstacle_instead(asked)
        )
        if obstacle is not None:
            raise Overloaded(obstacle.reason, fps=obstacle.fps)

    def find(self, session_id: str) -> SessionEntry:
        if session_id not in self.entries:
            raise UnknownSession(f"there is no session {session_id}; it may have ended")
        return self.entries[session_id]

    def holds(self, entry: SessionEntry) -> bool:
        """Return whether a session has not ended."""
        return self.entries.get(entry.session_id) is entry

    def has_input(self, entry: SessionEntry) -> bool:
        """Return whether there is enough input for its next chunk; true for a session without input."""
        feed = entry.request.feed
        session = entry.session
        if feed is None or session is None:
            return True
        return feed.can_give(
            pixel_frames(session.timeline.start_frame, entry.request.config.frames_per_chunk)
        )

    def goes_on(self, entry: SessionEntry) -> bool:
        """Return whether its next chunk can be planned before its last one is shown: no control is due, and
        its input is there."""
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
            # Not `Session.control`, which shows its own prompt for an empty one: here the client is told.
            return entry.session.timeline.queue(control, at_chunk=at_chunk)
        except MillstreamError:
            entry.asked, entry.config = before  # what was not taken is not paid for
            self.admission.revise(entry.asked)
            raise

    def schedule(self, entry: SessionEntry, session: Session, note: str) -> None:
        """Schedule a session that is ready: it has its turns from now on. Raise `Overloaded` if a control
        that waits in it breaks a promise."""
        assert self.holds(entry), f"{entry.label} has ended"
        for waiting in session.timeline.state().waiting:
            self._promise(entry, waiting.control)
        now = time.monotonic()
        request = entry.request
        name = entry.session_id
        entry.session = session
        key = batch_key(request.config, session.timeline)
        terms = replace(request.terms, pace=self._pace(entry))
        self.scheduler.add(name, terms, now, batch_key=key, life=entry.life)
        self.catch_up(entry, request.has)
        if entry.viewers == 0:
            self.scheduler.halt(name, "unwatched", now)
        entry.tell(Live(note=note, fps=entry.fps))

    def catch_up(self, entry: SessionEntry, has: ViewerPosition) -> None:
        """Have a session that was brought back make again what its viewer has already, without waiting to be
        watched: not more than it can have missed, whatever is claimed. Then it is as far ahead of the viewer
        as it was."""
        if entry.request.start is None or entry.session is None or entry.has.chunk >= 0 or has.chunk < 0:
            return
        following = entry.session.timeline.chunk_index
        entry.has = has._replace(chunk=min(has.chunk, following + MAX_CATCH_UP))
        timeline = entry.session.timeline
        timeline.open_from = max(timeline.open_from, entry.has.chunk + 1)
        if entry.has.chunk < following:
            self.scheduler.restart(entry.session_id, time.monotonic(), has.dry_at)

    def lift(self, entry: SessionEntry, *whys: Halt) -> None:
        """Remove reasons to stand still; a session in host memory asks for its place, once none is left."""
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
        """Halt a session without viewers; if it stands in line to come back from host memory, it leaves the
        line."""
        self.scheduler.halt(entry.session_id, "unwatched", time.monotonic())
        if entry.life.state == "returning" and self.scheduler.halts(entry.session_id):
            self.admission.step_out(entry.session_id)
            entry.told_position = 0
            self._admit_waiting()

    def rest(self, entry: SessionEntry, session: Session) -> None:
        """End a turn in which a session planned nothing: it waits for its input, is paused, or ends."""
        now = time.monotonic()
        applied = session.timeline.take_receipts()
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

    def arrived(self, pending: PendingChunk) -> None:
        """Note that a chunk is back, and the next may leave."""
        entry = self.entries[pending.session.id]
        now = time.monotonic()
        assert entry.session is not None, f"{entry.label} was never let in"
        assert pending.turn_s is not None, f"{entry.label} had no turn"
        envelope = pending.envelope
        from_picture = envelope.begin_from is not None or bool(envelope.towards)
        # an epoch's first chunk may have steps of its own
        of_its_own = envelope.starts_epoch and entry.session.timeline.first_steps is not None
        is_typical = not from_picture and not of_its_own
        pending.is_typical = is_typical and self._engine.one_offs == entry.one_offs
        seconds = pending.turn_s if pending.is_typical else 0.0
        fps = self._chunk_fps(entry, pending.num_frames)
        self.scheduler.arrived(entry.session_id, now, frames=pending.num_frames, seconds=seconds, fps=fps)
        self.scheduler.set_batch_key(
            entry.session_id, batch_key(entry.request.config, entry.session.timeline)
        )

    def shown(self, pending: PendingChunk, chunk: Chunk) -> None:
        """Hand over a chunk whose frames are made, after learning from its time, at the rate that this
        leaves."""
        entry = self.entries[pending.session.id]
        now = time.monotonic()
        assert entry.session is not None, f"{entry.label} was never let in"
        lateness_s = self.scheduler.dry_s(entry.session_id, now)
        self.admission.note_late(
            entry.session_id, lateness_s > LATE * entry.request.pace.at(entry.fps).media_s
        )
        if pending.is_typical:
            self._note_time(entry, pending, is_first=chunk.index == 0)
        fps = self._chunk_fps(entry, pending.num_frames)
        if pending.num_frames:
            self.scheduler.shown(entry.session_id, now, frames=pending.num_frames, fps=fps)
            if chunk.index <= entry.has.chunk:
                self.scheduler.restart(
                    entry.session_id, now, entry.has.dry_at if chunk.index == entry.has.chunk else now
                )
        entry.tell(replace(chunk, media_s=entry.media_s, fps=fps, late_s=lateness_s))
        assert fps > 0, f"a chunk of {entry.label} plays {fps} frames a second"
        entry.media_s += len(chunk.frames) / fps

    def vacate(self, entry: SessionEntry) -> None:
        """Give up the place of a session whose state is in host memory, unless it was set going again
        meanwhile."""
        if self.scheduler.halts(entry.session_id):
            now = time.monotonic()
            self.admission.park(entry.session_id, now)
            self.scheduler.place_changed(entry.session_id, now)
            self._admit_waiting()

    def finish(self, entry: SessionEntry, ended: Ended) -> None:
        """Give back everything, send the owner the end, let in waiting sessions."""
        self._close(entry, ended)
        self._admit_waiting()

    def close_all(self, ended: Ended) -> None:
        """End all sessions; no session is let in any more."""
        for entry in list(self.entries.values()):
            self._close(entry, ended)

    def tune(self) -> None:
        """Let each session play at the rate that the device keeps, by what was measured last."""
        now = time.monotonic()
        for name, kept_fps in self.admission.kept_rates().items():
            entry = self.entries[name]
            fps = next_rate(entry.fps, kept_fps, now - entry.fps_since)
            if fps != entry.fps:
                entry.fps = fps
                entry.fps_since = now
                entry.tell(Rated(note=self.admission.grant(name, fps), fps=fps))
            if (
                entry.asked.yields
                and fps >= entry.asked.wish().least
                and now - entry.fps_since >= RISE_AFTER_S
            ):
                entry.asked = self.admission.regain(name)
            if entry.session is not None:
                self.scheduler.set_pace(name, self._pace(entry))
        self._note_crowd()

    def _note_crowd(self) -> None:
        """Note whether a session waits for a place, or plays slower than it wishes: sessions that stand still
        without viewers are then in the way."""
        self.scheduler.crowded = self.admission.has_line or any(
            entry.fps < entry.asked.pace.fps and entry.session is not None and not self.scheduler.halts(name)
            for name, entry in self.entries.items()
        )

    def _note_time(self, entry: SessionEntry, pending: PendingChunk, *, is_first: bool) -> None:
        """Record the time of a chunk. A stream's first chunk costs less than others: it is recorded only
        where it took longer than expected of them."""
        assert entry.session is not None, f"{entry.label} was never let in"
        shape = geometry(self._engine.spec, entry.request.config, entry.session.timeline)
        seconds = self.hand_over.slowest_s(pending, self._alone_s(entry, pending))
        now = time.monotonic()
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
        """Pass all measured chunk times on to admission."""
        for shape, seconds in self._measured:
            self.admission.times.add(shape, seconds)
        self._measured.clear()

    def _alone_s(self, entry: SessionEntry, pending: PendingChunk) -> float:
        """Return the seconds a chunk takes by itself. Savings of shared calls are promised to no session, for
        sessions do not always meet; nor is a promise lowered for what a trial of them lost."""
        assert entry.session is not None, f"{entry.label} was never let in"
        key = batch_key(entry.request.config, entry.session.timeline)
        alone_s = self.scheduler.batch_times.seconds(key, 1) if pending.batch_size > 1 else None
        return pending.chunk_s if alone_s is None else alone_s

    def _chunk_fps(self, entry: SessionEntry, num_frames: int) -> float:
        """Return the rate of a chunk. An epoch's first has fewer frames and leaves less time for the next: it
        plays slower where that is needed."""
        pace = entry.request.pace
        chunk_s = self.admission.chunk_s(entry.session_id)
        if entry.request.rate == "strict" or not chunk_s or not num_frames:
            return entry.fps
        if entry.fps < pace.fps:  # as much as the device keeps
            return entry.fps * min(1.0, num_frames / pace.chunk_frames)
        return min(entry.fps, num_frames / chunk_s)

    def _pace(self, entry: SessionEntry) -> Pace:
        """Return the pace at the rate it has; further ahead, by a chunk at most, where chunk times vary."""
        pace = entry.request.pace.at(entry.fps)
        slack_s = self.admission.slack_s(entry.session_id) if entry.request.has_slack else 0.0
        return entry.request.pace.at(entry.fps, slack_s=min(slack_s, pace.media_s))

    def _close(self, entry: SessionEntry, ended: Ended) -> None:
        now = time.monotonic()
        name = entry.session_id
        assert self.holds(entry), f"{entry.label} has ended already"
        del self.entries[name]
        if entry.session is not None:
            self.scheduler.remove(name, now)
            entry.session.close()
            trim_heap()
        self.admission.remove(name, now)
        entry.tell(ended)

    def _admit_waiting(self) -> None:
        """Take sessions out of the line, in order: let in, or refused because they never could run."""
        while (answer := self.admission.next_in(time.monotonic())) is not None:
            entry = self.entries[answer.session_id]
            if isinstance(answer, Refused):
                self._close(entry, Ended(cause="refused", reason=answer.reason))
            else:
                self._answered(entry, answer)
        self._tell_line()

    def _tell_line(self) -> None:
        """Send a notice to sessions whose position has changed: another session came before them, or left."""
        for queued in self.admission.waiting(time.monotonic()):
            self._answered(self.entries[queued.session_id], queued)
        self._note_crowd()

    def _answered(self, entry: SessionEntry, answer: Admitted | Queued) -> None:
        if isinstance(answer, Queued):
            if answer.position != entry.told_position:
                entry.told_position = answer.position
                entry.tell(
                    Waiting(
                        position=answer.position, expected_wait_s=answer.expected_wait_s, reason=answer.reason
                    )
                )
            return
        now = time.monotonic()
        entry.told_position = 0
        entry.fps = answer.fps
        entry.fps_since = now
        if entry.session is not None:
            self.scheduler.place_changed(entry.session_id, now)
            entry.tell(Live(note=answer.note, fps=entry.fps))
        elif entry.request.start is not None:
            self._revive(entry, answer.note)
        else:
            self._begin(entry, answer.note)
        self.tune()

    def _begin(self, entry: SessionEntry, note: str) -> None:
        """Begin a new session, at once: it takes no memory before its first chunk."""
        request = entry.request
        try:
            session = self._engine.session(
                request.prompts,
                config=request.config,
                frames=request.feed,
                journal=request.journal,
                session_id=request.session_id,
            )
            if request.picture is not None:
                session.timeline.queue(SetImage(id=PICTURE_ID, picture=request.picture))
        except MillstreamError as error:
            self._close(entry, Ended(cause="failed", reason=str(error)))
        else:
            self.schedule(entry, session, note)

    def _promise(self, entry: SessionEntry, control: AnyControl) -> None:
        """Check that more steps or a larger window fit beside the promises given to others."""
        if not isinstance(control, (SetSteps, SetWindow)):
            return
        if isinstance(control, SetSteps):
            config = replace(
                entry.config,
                steps=control.steps,
                first_steps=control.first_steps or entry.config.first_steps,
            )
        else:
            config = replace(entry.config, window=control.window, sink=control.sink)
        self._revise(entry, config)

    def promise_stream(self, entry: SessionEntry, timeline: TimelineState) -> None:
        """Check that a session that goes back, to when its steps or window were others, still fits, and
        promise it that."""
        self._revise(entry, shaped_by(entry.config, timeline))

    def _revise(self, entry: SessionEntry, config: StreamConfig) -> None:
        asked = replace(
            entry.asked,
            geometry=geometry(self._engine.spec, config),
            first_geometry=Geometry.of_first(self._engine.spec, config),
            memory_bytes=self._session_bytes(config),
        )
        refusal = self.admission.revise(asked)
        if refusal is not None:
            raise Overloaded(refusal)
        entry.asked = asked
        entry.config = config
