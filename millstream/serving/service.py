"""One engine that serves many sessions: a thread owns the model and gives each session its turns.

Everything that touches the model happens on that thread. Others may open, steer, watch and close sessions
from any thread; those calls answer at once, because they touch only policy (`serving/session_table.py`,
timelines), under one lock (`serving/shared_table.py`) that is never held while the model works. What happens
in a turn is in `serving/turn_runner.py`.

    open ─► SessionTable ─► turn ─► Session.decide ─► ChunkPipeline ─► notices
              ▲                                       │
              └────────── a place is free ◄───────────┘

Over a mesh and on a GPU the next chunk, of whichever session has its turn, leaves before the last one's
frames are here. A chunk at which a control is due, or whose input is not there, is planned after them; so
is everything that is not a chunk. So each session is sent the same notices, in the same order, as if it were
served chunk by chunk.

Knows no sockets. The notices to a session's owner are in `serving/notices.py`.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from copy import copy
from functools import partial
from typing import Any

import torch

from millstream.core.config import StreamConfig
from millstream.core.controls import AnyControl, Receipt, Resume, SetPrompt, Stop
from millstream.core.errors import ChunkCut, MeshGivenUp, Overloaded, UnknownSession
from millstream.engine.engine import Engine
from millstream.serving.admission import Admission
from millstream.serving.admission_types import AdmissionConfig, Answer
from millstream.serving.batching import BatchPolicy
from millstream.serving.chunk_time_probe import ChunkTimeProbe
from millstream.serving.delivery_cost import DeliveryCost
from millstream.serving.look_ahead import LookAhead
from millstream.serving.notices import SHUTTING_DOWN, Ended, Tell, last_word
from millstream.serving.prefix_sharing import PrefixSharing
from millstream.serving.previews import Previewed, PreviewMaker
from millstream.serving.scheduler import Scheduler
from millstream.serving.service_metrics import ServiceMetrics, ServiceStatus
from millstream.serving.session_entry import OpenRequest, PendingDraft, ViewerPosition
from millstream.serving.shared_table import SharedTable
from millstream.serving.turn_runner import TurnRunner
from millstream.serving.turns import Sleep, Turn
from millstream.session.forks import restart_at
from millstream.session.session import Session
from millstream.session.timeline import TimelineState
from millstream.session.trail import Restart

log = logging.getLogger(__name__)

SWITCH_S = 1e-4
"""Seconds that another thread may go on in Python while the engine's thread waits to run. The engine's thread
gives Python up at every operation on a tensor: at Python's own 5 ms, a server that is busy answering takes
three times as long over a chunk."""
DRAFT_S = 30.0
"""Seconds for which a draft is kept after it was last typed."""
GRACE_S = 5.0
"""Seconds for a chunk under way to finish when everything is to stop; then it is cut off."""


class Service:
    def __init__(
        self,
        engine: Engine,
        *,
        admission: AdmissionConfig,
        session_bytes: Callable[[StreamConfig], int],
        batch: int = 1,
        look_ahead: bool = False,
    ) -> None:
        """Up to `batch` sessions share their model calls where that was measured to be faster. Their latents
        then equal those they would have alone to rounding, not to the bit, so it is for those who do not
        replay. With `look_ahead`, chunks that are likely to be asked for are made while the device is idle,
        unless calls are shared: to the bit, or not at all."""
        self.engine = engine
        self.ready = threading.Event()
        self.failure: BaseException | None = None
        """Exception that ended the thread, if anything but `close` did."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called on a failure, once all sessions have been sent their end: without its thread a service is of
        no use."""
        self._shared = SharedTable(
            engine,
            admission=Admission(admission),
            scheduler=Scheduler(batching=BatchPolicy(max_size=batch)),
            session_bytes=session_bytes,
        )
        self.table = self._shared.table
        """Session table, touched under its lock only."""
        self._probe = ChunkTimeProbe(
            engine, self.table.admission, self.table.scheduler.batch_times, session_bytes
        )
        self._ended = False
        """True once all sessions have been sent their end."""
        self.ahead = LookAhead(engine, self.table, is_on=look_ahead and batch == 1)
        """Look-ahead, for which idle time is used."""
        self.previews = PreviewMaker(engine, self.table, self.ahead)
        """Preview maker, which is given idle time before look-ahead: clients wait for previews."""
        sharing = PrefixSharing(engine, self.table, is_on=batch == 1)
        self._turns = TurnRunner(engine, self._shared, self.ahead, sharing)
        self._thread = threading.Thread(target=self._run, name="millstream-engine", daemon=True)
        self._warm_up: Sequence[StreamConfig] = ()
        if engine.mesh is not None:
            engine.mesh.attend(partial(self._shared.soon, engine.mesh.mend))  # even if no session streams

    @property
    def trouble(self) -> str:
        """Reason why no session can be served at the moment; empty if all is well."""
        if not self.ready.is_set():
            return "the engine has ended" if self._shared.is_over else "the model is warming up"
        return "" if self.engine.mesh is None else self.engine.mesh.trouble

    def start(self, warm_up: Sequence[StreamConfig] = ()) -> None:
        """Begin, with a few chunks of each of these configurations, so that their times are known; then be
        `ready`."""
        self._warm_up = warm_up
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()

    def close(self, timeout_s: float = 30.0) -> bool:
        """End all sessions and the thread. Return whether the thread has ended: a chunk under way is
        finished, or cut at a model call if it takes long, and only a single call that takes longer than
        `timeout_s` is not waited for. All sessions are sent their end all the same."""
        with self._shared:
            self._shared.is_over = True
            self._shared.notify()
        if self.engine.mesh is not None:
            self.engine.mesh.interrupt()
        finishing_s = min(GRACE_S, timeout_s / 2)
        for patience_s in (finishing_s, timeout_s - finishing_s):
            if self._thread.is_alive():
                self._thread.join(patience_s)
            if self.has_ended:
                return True
            with self._shared:
                if not self._ended:
                    self.engine.brake.pull()
        log.warning("a model call did not end within %g s", timeout_s)
        with self._shared:
            for entry in self.table.entries.values():
                entry.tell(SHUTTING_DOWN)
        return False

    @property
    def has_ended(self) -> bool:
        """True once its thread has ended."""
        return not self._thread.is_alive()

    def open(self, request: OpenRequest, tell: Tell) -> Answer:
        """Ask for a session; it starts by itself when it is let in. Raises `Overloaded` when it cannot be."""
        request.check_terms()
        with self._shared:
            self._shared.refuse_when_over()
            try:
                answer = self.table.ask(request, tell)
            except Overloaded:
                if self._probe.are_due(request.config):
                    self._shared.soon(partial(self._probe.again, request.config))
                raise
            self._shared.notify()
            return answer

    def check(self, request: OpenRequest, *, instead_of: str) -> None:
        """Raise why this session could not be in the place of that one, if so; change nothing."""
        request.check_terms()
        with self._shared:
            self._shared.refuse_when_over()
            self.table.check(request, instead_of)

    def control(self, session_id: str, control: AnyControl, *, at_chunk: int | None = None) -> Receipt:
        """Queue a change for the next chunk that has not been planned."""
        with self._shared:
            entry = self.table.find(session_id)
            receipt = self.table.control(entry, control, at_chunk)
            if isinstance(control, Resume):
                self._shared.lift(entry, "paused")
            elif isinstance(control, SetPrompt):
                entry.draft = None  # it is no draft any more
            elif isinstance(control, Stop):
                self._shared.lift(entry, "paused", "unwatched", "starved")
            return receipt

    def draft(self, session_id: str, control: SetPrompt | None) -> None:
        """Set what the session's owner is about to ask for, so that it can be made ahead; None: nothing.
        Changes nothing of the session."""
        if control is not None:
            control.check()
        with self._shared:
            until = time.monotonic() + DRAFT_S
            self.table.find(session_id).draft = None if control is None else PendingDraft(control, until)
            self._shared.notify()

    def preview(self, session_id: str, controls: Sequence[SetPrompt]) -> Future[Previewed]:
        """Make small pictures of what these controls would make of it, as far as the device has time. Changes
        nothing of the session."""
        with self._shared:
            self._shared.refuse_when_over()
            future = self.previews.ask(self.table.find(session_id), controls, time.monotonic())
            self._shared.notify()
            return future

    def watch(self, session_id: str) -> None:
        """Add a viewer; the first sets an unattended session going."""
        with self._shared:
            entry = self.table.find(session_id)
            entry.viewers += 1
            if entry.session is not None:
                self._shared.lift(entry, "unwatched")

    def unwatch(self, session_id: str) -> None:
        """Remove a viewer. Do nothing for a session that has ended."""
        with self._shared:
            entry = self.table.entries.get(session_id)
            if entry is None:
                return
            entry.viewers -= 1
            assert entry.viewers >= 0, f"{session_id} lost a viewer it did not have"
            if entry.viewers == 0 and entry.session is not None:
                self.table.stand_still(entry)
                self._shared.notify()

    def timeline(self, session_id: str) -> TimelineState | None:
        """Return the session's timeline as its controls have made it by now; None before it has its place,
        and once it has ended."""
        with self._shared:
            entry = self.table.entries.get(session_id)
            return None if entry is None or entry.session is None else entry.session.timeline.state()

    def fed(self, session_id: str) -> None:
        """Note that its feed has new frames, or has ended."""
        with self._shared:
            entry = self.table.entries.get(session_id)
            if entry is not None and entry.session is not None and self.table.has_input(entry):
                self._shared.lift(entry, "starved")

    def hand_over_takes(self, hand_over: DeliveryCost) -> None:
        """Set the measured cost of passing a chunk on; admission counts it from the next chunk on."""
        with self._shared:
            self.table.hand_over = hand_over

    def catch_up(self, session_id: str, has: ViewerPosition) -> None:
        """Note which media a viewer who comes back has already."""
        with self._shared:
            self.table.catch_up(self.table.find(session_id), has)

    def hold(self, session_id: str) -> None:
        """Plan no more of its chunks: it moves to another server."""
        with self._shared:
            self.session(session_id)  # raises where it waits for its place
            self.table.scheduler.halt(session_id, "leaving", time.monotonic())

    def let_go_on(self, session_id: str) -> None:
        """Plan its chunks again: it stays on this server. Do nothing for a session that has ended."""
        with self._shared:
            entry = self.table.entries.get(session_id)
            if entry is not None and entry.session is not None:
                self._shared.lift(entry, "leaving")

    def end(self, session_id: str, reason: str = "closed by its owner") -> None:
        """End a session once its turn is over. Do nothing for one that has ended."""
        with self._shared:
            entry = self.table.entries.get(session_id)
            if entry is None:
                return
            entry.closing = entry.closing or Ended(cause="closed", reason=reason)
            if entry.session is None:
                self.table.finish(entry, entry.closing)
            self._shared.notify()

    def on_engine(self, session_id: str, job: Callable[[Session], Any]) -> Future[Any]:
        """Do something with a session between turns, on the thread that owns it."""
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return  # the caller does not wait any more
            try:
                future.set_result(job(self.session(session_id)))
            except Exception as error:  # the caller's to know, not the thread's
                future.set_exception(error)

        with self._shared:
            self._shared.refuse_when_over()
            self._shared.add_job(run)
        return future

    def rewind(self, session_id: str, chunk: int) -> Future[Restart]:
        """Have a session go back to before a chunk that it keeps, between turns."""

        def go_back(session: Session) -> Restart:
            with self._shared:  # so that no control reaches it meanwhile
                entry = self.table.find(session_id)
                restart = restart_at(session, chunk)
                self.table.promise_stream(entry, restart.timeline)
                restart = session.go_back(restart)
                self._shared.lift(entry, "paused")
                return restart

        return self.on_engine(session_id, go_back)

    def session(self, session_id: str) -> Session:
        """Return a live session, to be used on the engine's thread only."""
        entry = self.table.entries.get(session_id)
        if entry is None or entry.session is None:
            raise UnknownSession(
                f"there is no live session {session_id}; it waits for its place or has ended"
            )
        return entry.session

    def status(self) -> ServiceStatus:
        """Return what a gateway goes by that shares sessions out among several of these."""
        with self._shared:
            admission = self.table.admission
            asked = {name: entry.asked for name, entry in self.table.entries.items()}
            return ServiceStatus(room=admission.config, chunk_s=admission.times.estimates(), asked=asked)

    def metrics(self) -> ServiceMetrics:
        device = self.engine.device
        with self._shared:
            return ServiceMetrics(
                scheduler=self.table.scheduler.metrics(time.monotonic()),
                admission=self.table.admission.metrics(),
                session_bytes=self.engine.held_bytes(),
                device_bytes=torch.cuda.memory_allocated(device) if device.type == "cuda" else 0,
                look_ahead=copy(self.ahead.metrics),
                shared={name: entry.shared for name, entry in self.table.entries.items()},
                paused=frozenset(name for name, entry in self.table.entries.items() if entry.paused),
            )

    # Below: the engine's thread, or under the lock.

    def _run(self) -> None:
        try:
            self._probe.warm_up(self._warm_up)
            self.ready.set()
            while (turn := self._next()) is not None:
                self._turns.run(turn)
            self._turns.show()
        except BaseException as error:
            if not (
                self._shared.is_over and isinstance(error, MeshGivenUp | ChunkCut)
            ):  # neither is a failure of a server that stops
                self.failure = error
                log.exception("the engine's thread has failed")
        finally:
            self.ready.clear()
            with self._shared:
                self._shared.is_over = True
                self.table.close_all(last_word(self.failure))
                self.ahead.close()
                self.previews.close()
                self.engine.brake.release()
                self._ended = True
                while self._shared.jobs:
                    self._shared.jobs.popleft()()  # tells who waits that it is over
            if self.failure is not None:
                self.on_failure()

    def _next(self) -> Turn | Callable[[], None] | None:
        """Return what to do now; wait until there is something, such as frames to make. None when it is all
        over."""
        with self._shared:
            while not self._shared.is_over:
                self.ahead.prune()
                self.previews.prune(time.monotonic())
                if self._shared.jobs:
                    return self._shared.jobs.popleft()
                turn = self._turns.finish_closing() or self.table.scheduler.next(time.monotonic())
                if not isinstance(turn, Sleep) or self._turns.any_unshown:
                    return turn
                now = time.monotonic()
                work = self.previews.next(now, turn.until) or self.ahead.next_guess(now, turn.until)
                if work is not None:
                    return work
                until = min(self.previews.until, math.inf if turn.until is None else turn.until)
                self._shared.wait(None if until == math.inf else max(0.0, until - time.monotonic()))
            return None
