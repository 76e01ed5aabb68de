"""One engine at work for many people: a thread that owns the model and gives each session its turns.

Everything that touches the model happens on that thread. Others may open, steer, watch and close sessions from any
thread; those calls answer at once, because they touch only policy (`serving/session_table.py`, timelines), under one lock
that is never held while the model works. What happens in a turn is in `serving/turn_taker.py`.

    open ─► SessionTable ─► turn ─► Session.decide ─► ChunkPipeline ─► notices
              ▲                                       │
              └────────── a place is free ◄───────────┘

Over a mesh and on a GPU the next chunk, of whoever's turn it is, leaves before the last one's pictures are here. One
that a control is due at, or whose input is not there, is planned after them; so is everything that is not a chunk. So each
session is told what it would be told chunk by chunk, in the same order.

Knows no sockets. What a session's owner hears is in `serving/notices.py`.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections import deque
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
from millstream.serving.alike import Alike
from millstream.serving.batching import BatchPolicy
from millstream.serving.hand_over import HandOver
from millstream.serving.look_ahead import LookAhead
from millstream.serving.notices import SHUTTING_DOWN, Ended, Tell, last_word
from millstream.serving.previews import Previewed, PreviewMaker
from millstream.serving.reviver import Reviver
from millstream.serving.scheduler import Scheduler
from millstream.serving.service_metrics import ServiceMetrics, Standing
from millstream.serving.session_entry import Has, OpenRequest, PendingDraft, SessionEntry
from millstream.serving.session_table import SessionTable
from millstream.serving.trials import Trials
from millstream.serving.turn_taker import TurnTaker
from millstream.serving.turns import Halt, Sleep, Turn
from millstream.session.forks import restart_at
from millstream.session.session import Session
from millstream.session.timeline import TimelineState
from millstream.session.trail import Restart

log = logging.getLogger(__name__)

SWITCH_S = 1e-4
"""How long another thread may go on in Python while the engine's wants to. It asks anew after every operation on a tensor: at
Python's own 5 ms, a server that is busy answering takes three times as long over a chunk."""
DRAFT_S = 30.0
"""For so long a draft stands that nothing more is typed of."""
GRACE_S = 5.0
"""For a chunk under way when everything is to stop; then it is cut off."""


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
        """Up to `batch` sessions share their model calls where that was measured to be faster. Their latents then equal those
        they would have alone to rounding, not to the bit, so it is for those who do not replay. With `look_ahead`, chunks that
        are likely to be asked for are made while the device is idle, unless calls are shared: to the bit, or not at all."""
        self.engine = engine
        self.ready = threading.Event()
        self.failure: BaseException | None = None
        """What ended the thread, if anything but `close` did."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called then, when everybody has been told: without its thread a service is of no use to anybody."""
        self.table = SessionTable(
            engine,
            admission=Admission(admission),
            scheduler=Scheduler(batching=BatchPolicy(max_size=batch)),
            session_bytes=session_bytes,
            revive=lambda entry, note: self._reviver.begin(entry, note),
        )
        """Touched under the lock only."""
        self._trials = Trials(engine, self.table.admission, self.table.scheduler.batch_times, session_bytes)
        self._jobs: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._over = self._ended = False
        self.ahead = LookAhead(engine, self.table, is_on=look_ahead and batch == 1)
        """What idle time goes into."""
        self.previews = PreviewMaker(engine, self.table, self.ahead)
        """And this, before it: somebody waits for them."""
        alike = Alike(engine, self.table, is_on=batch == 1)
        self._turns = TurnTaker(engine, self.table, self.ahead, alike, self._changed, is_over=lambda: self._over)
        self._reviver = Reviver(engine, self.table, self._changed, self._turns.ending_alone, soon=self._soon)
        self._thread = threading.Thread(target=self._run, name="millstream-engine", daemon=True)
        self._warm_up: Sequence[StreamConfig] = ()
        if engine.mesh is not None:
            engine.mesh.attend(partial(self._soon, engine.mesh.mend))  # even if nobody streams

    @property
    def trouble(self) -> str:
        """Why nobody can be served at the moment; empty if all is well."""
        if not self.ready.is_set():
            return "the engine has ended" if self._over else "the model is warming up"
        return "" if self.engine.mesh is None else self.engine.mesh.trouble

    def start(self, warm_up: Sequence[StreamConfig] = ()) -> None:
        """Begin, with a few chunks of each of these configurations, so that their times are known; then be `ready`."""
        self._warm_up = warm_up
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()

    def close(self, timeout_s: float = 30.0) -> bool:
        """End all sessions and the thread. Whether it has ended: a chunk under way is finished, or cut at a model call if it
        takes long, and only a single call that takes longer than `timeout_s` is not waited for. Everybody is told all the same.
        """
        with self._changed:
            self._over = True
            self._changed.notify_all()
        if self.engine.mesh is not None:
            self.engine.mesh.interrupt()
        finishing_s = min(GRACE_S, timeout_s / 2)
        for patience_s in (finishing_s, timeout_s - finishing_s):
            if self._thread.is_alive():
                self._thread.join(patience_s)
            if self.has_ended:
                return True
            with self._changed:
                if not self._ended:
                    self.engine.brake.pull()
        log.warning("a model call did not end within %g s", timeout_s)
        with self._changed:
            for entry in self.table.entries.values():
                entry.tell(SHUTTING_DOWN)
        return False

    @property
    def has_ended(self) -> bool:
        """Whether its thread is gone."""
        return not self._thread.is_alive()

    def open(self, request: OpenRequest, tell: Tell) -> Answer:
        """Ask for a session; it starts by itself when it is let in. Raises `Overloaded` when it cannot be."""
        request.terms  # noqa: B018 - raises what is wrong with them
        with self._changed:
            self._refuse_when_over()
            try:
                answer = self.table.ask(request, tell)
            except Overloaded:
                if self._trials.are_due(request.config):
                    self._soon(partial(self._trials.again, request.config))
                raise
            self._changed.notify_all()
            return answer

    def check(self, request: OpenRequest, *, instead_of: str) -> None:
        """Raises why this session could not be in the place of that one; nothing changes."""
        request.terms  # noqa: B018 - raises what is wrong with them
        with self._changed:
            self._refuse_when_over()
            self.table.check(request, instead_of)

    def control(self, session_id: str, control: AnyControl, *, at_chunk: int | None = None) -> Receipt:
        """Queue a change for the next chunk that has not been planned."""
        with self._changed:
            entry = self.table.find(session_id)
            receipt = self.table.control(entry, control, at_chunk)
            if isinstance(control, Resume):
                self._lift(entry, "paused")
            elif isinstance(control, SetPrompt):
                entry.draft = None  # it is no draft any more
            elif isinstance(control, Stop):
                self._lift(entry, "paused", "unwatched", "starved")
            return receipt

    def draft(self, session_id: str, control: SetPrompt | None) -> None:
        """What its owner is about to ask for, so that it can be made ahead; None: nothing. Changes nothing of the session."""
        if control is not None:
            control.check()
        with self._changed:
            until = time.monotonic() + DRAFT_S
            self.table.find(session_id).draft = None if control is None else PendingDraft(control, until)
            self._changed.notify_all()

    def preview(self, session_id: str, controls: Sequence[SetPrompt]) -> Future[Previewed]:
        """Small pictures of what these would make of it, as far as the device has time. Changes nothing of the session."""
        with self._changed:
            self._refuse_when_over()
            future = self.previews.ask(self.table.find(session_id), controls, time.monotonic())
            self._changed.notify_all()
            return future

    def watch(self, session_id: str) -> None:
        """One more viewer; the first sets an unattended session going."""
        with self._changed:
            entry = self.table.find(session_id)
            entry.viewers += 1
            if entry.session is not None:
                self._lift(entry, "unwatched")

    def unwatch(self, session_id: str) -> None:
        """One viewer less. Of a session that has ended: nothing."""
        with self._changed:
            entry = self.table.entries.get(session_id)
            if entry is None:
                return
            entry.viewers -= 1
            assert entry.viewers >= 0, f"{session_id} lost a viewer it did not have"
            if entry.viewers == 0 and entry.session is not None:
                self.table.stand_still(entry)
                self._changed.notify_all()

    def timeline(self, session_id: str) -> TimelineState | None:
        """What its controls have made of it by now; None before it has its place, and once it has ended."""
        with self._changed:
            entry = self.table.entries.get(session_id)
            return None if entry is None or entry.session is None else entry.session.timeline.state()

    def fed(self, session_id: str) -> None:
        """Its feed has new frames, or has ended."""
        with self._changed:
            entry = self.table.entries.get(session_id)
            if entry is not None and entry.session is not None and self.table.has_input(entry):
                self._lift(entry, "starved")

    def hand_over_takes(self, hand_over: HandOver) -> None:
        """What passing a chunk on was measured to take; admission counts it from the next chunk on."""
        with self._changed:
            self.table.hand_over = hand_over

    def catch_up(self, session_id: str, has: Has) -> None:
        """Whoever comes back to it has this already."""
        with self._changed:
            self.table.catch_up(self.table.find(session_id), has)

    def hold(self, session_id: str) -> None:
        """Plan no more of its chunks: it moves to another server."""
        with self._changed:
            self.session(session_id)  # raises where it waits for its place
            self.table.scheduler.halt(session_id, "leaving", time.monotonic())

    def let_go_on(self, session_id: str) -> None:
        """It stays. Of one that has ended: nothing."""
        with self._changed:
            entry = self.table.entries.get(session_id)
            if entry is not None and entry.session is not None:
                self._lift(entry, "leaving")

    def end(self, session_id: str, reason: str = "closed by its owner") -> None:
        """End a session once its turn is over. Of one that has ended: nothing."""
        with self._changed:
            entry = self.table.entries.get(session_id)
            if entry is None:
                return
            entry.closing = entry.closing or Ended(cause="closed", reason=reason)
            if entry.session is None:
                self.table.finish(entry, entry.closing)
            self._changed.notify_all()

    def on_engine(self, session_id: str, job: Callable[[Session], Any]) -> Future[Any]:
        """Do something with a session between turns, on the thread that owns it."""
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return  # whoever asked does not wait any more
            try:
                future.set_result(job(self.session(session_id)))
            except Exception as error:  # the caller's to know, not the thread's
                future.set_exception(error)

        with self._changed:
            self._refuse_when_over()
            self._jobs.append(run)
            self._changed.notify_all()
        return future

    def rewind(self, session_id: str, chunk: int) -> Future[Restart]:
        """Have a session go back to before a chunk that it keeps, between turns."""

        def go_back(session: Session) -> Restart:
            with self._changed:  # so that nobody steers it meanwhile
                entry, restart = self.table.find(session_id), restart_at(session, chunk)
                self.table.promise_stream(entry, restart.timeline)
                restart = session.go_back(restart)
                self._lift(entry, "paused")
                return restart

        return self.on_engine(session_id, go_back)

    def session(self, session_id: str) -> Session:
        """One that is live; to be used on the engine's thread only."""
        entry = self.table.entries.get(session_id)
        if entry is None or entry.session is None:
            raise UnknownSession(f"there is no live session {session_id}; it waits for its place or has ended")
        return entry.session

    def standing(self) -> Standing:
        """What somebody goes by who shares sessions out among several of these."""
        with self._changed:
            admission = self.table.admission
            asked = {name: entry.asked for name, entry in self.table.entries.items()}
            return Standing(room=admission.config, chunk_s=admission.times.estimates(), asked=asked)

    def metrics(self) -> ServiceMetrics:
        device = self.engine.device
        with self._changed:
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
            self._trials.warm_up(self._warm_up)
            self.ready.set()
            while (turn := self._next()) is not None:
                self._turns.take(turn)
            self._turns.show()
        except BaseException as error:
            if not (self._over and isinstance(error, MeshGivenUp | ChunkCut)):  # neither is a failure of a server that stops
                self.failure = error
                log.exception("the engine's thread has failed")
        finally:
            self.ready.clear()
            with self._changed:
                self._over = True
                self.table.close_all(last_word(self.failure))
                self.ahead.close()
                self.previews.close()
                self.engine.brake.release()
                self._ended = True
                while self._jobs:
                    self._jobs.popleft()()  # tells who waits that it is over
            if self.failure is not None:
                self.on_failure()

    def _next(self) -> Turn | Callable[[], None] | None:
        """What to do now; waits until there is something, be it pictures to make. None when it is all over."""
        with self._changed:
            while not self._over:
                self.ahead.prune()
                self.previews.prune(time.monotonic())
                if self._jobs:
                    return self._jobs.popleft()
                turn = self._turns.finish_closing() or self.table.scheduler.next(time.monotonic())
                if not isinstance(turn, Sleep) or self._turns.any_unshown:
                    return turn
                now = time.monotonic()
                work = self.previews.next(now, turn.until) or self.ahead.next_guess(now, turn.until)
                if work is not None:
                    return work
                until = min(self.previews.until, math.inf if turn.until is None else turn.until)
                self._changed.wait(None if until == math.inf else max(0.0, until - time.monotonic()))
            return None

    def _soon(self, job: Callable[[], None]) -> None:
        """On the engine's thread, between turns; never, once it is all over."""
        with self._changed:
            self._jobs.append(lambda: None if self._over else job())
            self._changed.notify_all()

    def _lift(self, entry: SessionEntry, *whys: Halt) -> None:
        self.table.lift(entry, *whys)
        self._changed.notify_all()

    def _refuse_when_over(self) -> None:
        if self._over:
            raise Overloaded("the server is shutting down; try another one")
