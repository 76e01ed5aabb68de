"""The front's end of a mesh: a thread that owns the line to its leader, and the only one that ever speaks on it.

    post ─► waiting (bounded) ─► send, receive ─► futures
    tell ─►

Answers come in the order of what was sent. One message may leave while the one before it is not answered, so that the mesh
finds it there when it is done. Meanwhile whoever posted does something else; that is where overlap comes from. When nothing is
to do, the mesh hears that the front still wants it. A failure ends the thread, and whoever knows that the mesh is lost may say
so while the thread waits for it: everything that waits then fails with `MeshLost`, and the line is closed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch

from millstream.core.envelope import Action, instruction
from millstream.core.errors import MeshLost, MillstreamError, WireError
from millstream.core.topology import LEADER
from millstream.wire.conditioning import KnownConditionings
from millstream.wire.framing import Answers, Frame
from millstream.wire.line import Line
from millstream.wire.packing import pack_instruction, pack_parcels, unpack_deliveries
from millstream.wire.parcel import Delivery, Parcel
from millstream.wire.process import ComingTensor, Received, Wire

log = logging.getLogger(__name__)

MAX_WAITING = 8
"""Parcels posted and not yet sent; whoever posts one more waits."""
MAX_SENT = 2
"""Messages that the leader has or will have next, unanswered."""
MOMENT_S = 0.004
"""For whoever got an answer to post the next chunk, before the thread waits for another answer and cannot send."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkAnswer:
    """What came back for one post."""

    deliveries: list[Delivery]
    held_bytes: int
    sent_s: float
    """When it left, and when it was back, by `time.perf_counter`."""
    back_s: float


@dataclass(slots=True)
class _Job:
    what: str
    frame: Frame
    sequence: int
    heard: bool
    """Whether the leader answers."""
    future: Future[LinkAnswer] = field(default_factory=Future)
    sent_s: float = 0.0
    leaving: list[ComingTensor] = field(default_factory=list)
    """Its parts, until they have left."""


class MeshLink:
    def __init__(
        self,
        join: Callable[[], Line],
        *,
        device: torch.device,
        heartbeat_s: float,
        why_lost: Callable[[str], MeshLost] = MeshLost,
    ) -> None:
        """`join` makes the line, on the thread that will use it; `why_lost` may know better why that failed."""
        self.ready = threading.Event()
        """The line is there, or never will be."""
        self.lost: MeshLost | None = None
        """Why nothing more can be asked of this mesh."""
        self.when_lost: Callable[[], None] = lambda: None
        """Told once, on whichever thread finds out."""
        self.waiting_since: float | None = None
        """Since when, by `time.monotonic`, the leader owes an answer."""
        self._join, self._device, self._heartbeat_s, self._why_lost = join, device, heartbeat_s, why_lost
        self._changed = threading.Condition()
        self._waiting: deque[_Job] = deque()
        self._sent: deque[_Job] = deque()
        self._closing = self._said_goodbye = False
        self._sequence = 0
        self._known = KnownConditionings()
        self._line: Line | None = None
        self._thread = threading.Thread(target=self._run, name="millstream-link", daemon=True)
        self._thread.start()

    def post(self, parcels: Sequence[Parcel]) -> Future[LinkAnswer]:
        """Chunks that share their model calls. What cannot be sent is refused here; where too many wait, this waits too."""
        for parcel in parcels:
            parcel.validate()
        with self._changed:
            self._changed.wait_for(lambda: self.lost is not None or len(self._waiting) < MAX_WAITING)
            known = self._known.copy()
            frame = pack_parcels(known.strip(parcels), sequence=self._sequence + 1)
            self._known = known
            calls = ", ".join(str(parcel.envelope.call_id) for parcel in parcels)
            return self._put(f"call {calls}", frame, heard=True)

    def tell(self, action: Action, session_id: str = "", *, fork_id: str = "", heard: bool = False) -> Future[LinkAnswer]:
        """An instruction. Never waits: there are no more of them than sessions."""
        with self._changed:
            envelope = instruction(action, self._sequence + 1, session_id, fork_id=fork_id)
            return self._put(action, pack_instruction(envelope, sequence=self._sequence + 1), heard=heard)

    def lose(self, lost: MeshLost) -> None:
        """Nothing more can be asked of this mesh. Who waits for it learns so now, wherever the thread is."""
        with self._changed:
            if self.lost is not None:
                return
            self.lost = lost
            for job in (*self._sent, *self._waiting):
                job.future.set_exception(lost)
            self._waiting.clear()
            self._changed.notify_all()
            if self._line is not None:
                self._line.hang_up()
        self.ready.set()
        self.when_lost()

    def leave(self, timeout_s: float) -> bool:
        """Ask the mesh to leave. Whether it was told by then."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Let go of the mesh, whatever it does. No thread is left."""
        self.lose(MeshLost("the mesh was closed"))
        self._thread.join()

    def _put(self, what: str, frame: Frame, *, heard: bool) -> Future[LinkAnswer]:
        self._sequence += 1
        job = _Job(what, frame, self._sequence, heard)
        if self.lost is not None:
            job.future.set_exception(self.lost)
        else:
            self._waiting.append(job)
            self._changed.notify_all()
        return job.future

    # Below: the thread.

    def _run(self) -> None:
        try:
            line = self._join()
            try:
                self._speak(line)
            finally:
                line.close()
        except BaseException as error:
            if self.lost is None:
                self.lose(self._why_lost(_plain(error)))

    def _speak(self, line: Line) -> None:
        """Until goodbye is said, or the mesh is lost."""
        with self._changed:
            self._line = line
        self.ready.set()
        wire = Wire(line, LEADER)
        while not self._said_goodbye and self.lost is None:
            self._send(wire)
            self._hear(wire)
        self.lose(MeshLost("the mesh was closed"))

    def _send(self, wire: Wire) -> None:
        """What waits, as far as the leader takes it; a sign of life, or a goodbye, when nothing does."""
        with self._changed:
            pause_s = MOMENT_S if self._sent else self._heartbeat_s
            self._changed.wait_for(
                lambda: self.lost is not None or self._waiting or (self._closing and not self._sent), timeout=pause_s
            )
            if self.lost is not None:
                return
            if not self._waiting and not self._sent:
                self._said_goodbye = self._closing
                self.tell("SHUTDOWN" if self._closing else "NOOP")
            while self._waiting and len(self._sent) < MAX_SENT:
                self._sent.append(self._waiting.popleft())
            self._changed.notify_all()
        for job in self._sent:
            if not job.leaving:
                log.debug("message %s, %s: header leaves", job.sequence, job.what)
                job.sent_s, job.leaving = time.perf_counter(), wire.begin(job.frame)
                self.waiting_since = self.waiting_since or time.monotonic()

    def _hear(self, wire: Wire) -> None:
        """Wait until the oldest message is answered, or has left where no answer comes."""
        if not self._sent or self.lost is not None:
            return
        job = self._sent[0]
        assert job.leaving, f"message {job.sequence} is waited for and has not left"
        answer = self._answer(wire.receive(), job) if job.heard else None
        for part in job.leaving:
            part.wait()
        with self._changed:
            self._sent.popleft()
            self.waiting_since = time.monotonic() if self._sent else None
            if answer is not None and self.lost is None:
                job.future.set_result(answer)

    def _answer(self, received: Received, job: _Job) -> LinkAnswer:
        answers = received.message
        if not isinstance(answers, Answers) or answers.sequence != job.sequence:
            raise WireError(f"message {job.sequence} was answered by {answers!r:.80}")
        if answers.fatal:
            raise WireError(f"the mesh could not go on: {answers.fatal}")
        kept = {name: tensor.to(self._device, copy=True) for name, tensor in received.tensors.items()}
        return LinkAnswer(
            deliveries=unpack_deliveries(answers, kept),
            held_bytes=answers.held_bytes,
            sent_s=job.sent_s,
            back_s=time.perf_counter(),
        )


def _plain(error: BaseException) -> str:
    if isinstance(error, MillstreamError):
        return str(error)
    first = (str(error) or type(error).__name__).splitlines()[0]
    return f"the connection failed: {first:.120}"
