"""The front's end of a mesh: two threads that own the line to its leader. One sends and the other receives;
no other thread uses it.

    post ─► waiting (bounded) ─► sender ─► line ─► leader
    tell ─►                      futures ◄─ link ◄─┘

Answers come in the order of what was sent. One message may leave while the one before it is not answered, so
that the mesh finds it there when it is done. Meanwhile the poster does something else; that is where overlap
comes from. A device begins to copy what is posted to pinned host memory at the post, on a stream of its own;
the sender waits for that copy and for nothing else of the device, and the link's thread for nothing at all:
what it receives stays in pinned memory, for the poster. When there is nothing to do, the mesh is sent a sign
that the front still wants it. A failure ends both threads, and any thread that knows that the mesh is lost
may call `lose` while they wait for it: everything that waits then fails with `MeshLost`, and the line is
closed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from millstream.core.envelope import Action, instruction
from millstream.core.errors import MeshLost, MillstreamError, WireError
from millstream.ops.host import HostCopy
from millstream.wire.conditioning import KnownConditionings
from millstream.wire.framing import Answers, Frame, on_host
from millstream.wire.line import Line
from millstream.wire.packing import pack_instruction, pack_parcels, unpack_deliveries
from millstream.wire.parcel import Delivery, Parcel
from millstream.wire.process import Received, Wire

log = logging.getLogger(__name__)

MAX_WAITING = 8
"""Most parcels posted and not yet sent; posting one more waits."""
MAX_SENT = 2
"""Messages that the leader has or will have next, unanswered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkAnswer:
    """Answer to one post, in host memory."""

    deliveries: list[Delivery]
    held_bytes: int
    """Bytes of keys, values and prompts that sessions hold on the leader."""


@dataclass(slots=True)
class _Job:
    what: str
    frame: Frame
    copies: list[HostCopy]
    """Its tensors, on their way to the host."""
    sequence: int
    heard: bool
    """True if the leader answers this message."""
    future: Future[LinkAnswer] = field(default_factory=Future)


class MeshLink:
    def __init__(
        self,
        join: Callable[[], Line],
        *,
        heartbeat_s: float,
        why_lost: Callable[[str], MeshLost] = MeshLost,
    ) -> None:
        """`join` makes the line, on the link's thread; `why_lost` may know better why that failed."""
        self.ready = threading.Event()
        """Set when the line is there, or never will be."""
        self.lost: MeshLost | None = None
        """Why nothing more can be asked of this mesh."""
        self.when_lost: Callable[[], None] = lambda: None
        """Called once, on the thread that finds out."""
        self.waiting_since: float | None = None
        """Since when, by `time.monotonic`, the leader owes an answer."""
        self._join = join
        self._heartbeat_s = heartbeat_s
        self._why_lost = why_lost
        self._changed = threading.Condition()
        self._waiting: deque[_Job] = deque()
        self._sent: deque[_Job] = deque()
        """Jobs that were sent and that the leader still has to answer."""
        self._closing = False
        self._sequence = 0
        self._known = KnownConditionings()
        self._line: Line | None = None
        self._thread = threading.Thread(target=self._run, name="millstream-link", daemon=True)
        self._thread.start()

    def post(self, parcels: Sequence[Parcel]) -> Future[LinkAnswer]:
        """Post chunks that share their model calls. What cannot be sent is refused here; where too many wait,
        this waits too."""
        for parcel in parcels:
            parcel.validate()
        with self._changed:
            while len(self._waiting) >= MAX_WAITING and self.lost is None:
                self._changed.wait()
            stripped, known = self._known.strip(parcels)
            frame = pack_parcels(stripped, sequence=self._sequence + 1)
            self._known = known  # nothing of it was refused
            calls = ", ".join([str(parcel.envelope.call_id) for parcel in parcels])
            return self._put(f"call {calls}", frame, heard=True)

    def tell(
        self, action: Action, session_id: str = "", *, fork_id: str = "", heard: bool = False
    ) -> Future[LinkAnswer]:
        """Send an instruction. Never waits: there are no more of them than sessions."""
        with self._changed:
            envelope = instruction(action, self._sequence + 1, session_id, fork_id=fork_id)
            return self._put(action, pack_instruction(envelope, sequence=self._sequence + 1), heard=heard)

    def lose(self, lost: MeshLost) -> None:
        """End the link: nothing more can be asked of this mesh. Everything that waits for it fails now,
        wherever the threads are."""
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

    def send_shutdown(self, timeout_s: float) -> bool:
        """Ask the mesh to leave. Return whether the request was sent in time."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Close the line, whatever the mesh does, and end both threads."""
        self.lose(MeshLost("the mesh was closed"))
        self._thread.join()

    def _put(self, what: str, frame: Frame, *, heard: bool) -> Future[LinkAnswer]:
        self._sequence += 1
        copies = [] if frame.memory else [HostCopy(tensor, beside=True) for tensor in frame.tensors]
        job = _Job(what, frame, copies, self._sequence, heard)
        if self.lost is not None:
            job.future.set_exception(self.lost)
        else:
            self._waiting.append(job)
            self._changed.notify_all()
        return job.future

    def _fail(self, error: BaseException) -> None:
        if self.lost is None:
            self.lose(self._why_lost(_plain(error)))

    # Below: the link's thread.

    def _run(self) -> None:
        try:
            line = self._join()
        except BaseException as error:
            self._fail(error)
            return
        with self._changed:
            self._line = line
        sender = threading.Thread(
            target=self._send_all, args=(Wire(line),), name="millstream-send", daemon=True
        )
        sender.start()
        self.ready.set()
        try:
            self._hear_all(Wire(line))
        except BaseException as error:
            self._fail(error)
        sender.join()
        line.close()

    def _hear_all(self, wire: Wire) -> None:
        while self.lost is None:
            received = wire.receive()
            with self._changed:
                if self.lost is not None:
                    return
                answers = _believed(received, self._sent[0].sequence if self._sent else None)
                job = self._sent.popleft()
                self.waiting_since = time.monotonic() if self._sent else None
                if (
                    self._waiting or self._closing
                ):  # else the sender has nothing to wake up for, before the caller
                    self._changed.notify_all()
            deliveries = unpack_deliveries(answers, received.tensors)
            held_bytes = answers.held_bytes
            job.future.set_result(LinkAnswer(deliveries=deliveries, held_bytes=held_bytes))

    # Below: the sender's thread.

    def _send_all(self, wire: Wire) -> None:
        try:
            while (job := self._next()) is not None:
                frame = on_host(job.frame, [copy.wait() for copy in job.copies]) if job.copies else job.frame
                log.debug("message %s, %s: header leaves", job.sequence, job.what)
                wire.send(frame)
                if job.what == "SHUTDOWN":
                    self.lose(MeshLost("the mesh was closed"))
        except BaseException as error:
            self._fail(error)

    def _next(self) -> _Job | None:
        """Return the job to send next, as far as the leader takes it; where nothing waits, a sign of life, or
        a goodbye. None when the link is over."""
        with self._changed:
            while self.lost is None:
                if self._waiting and len(self._sent) < MAX_SENT:
                    return self._taken()
                if self._closing and not self._sent:  # a mesh that leaves answers nothing more
                    self.tell("SHUTDOWN")  # takes this thread's lock again, and is what the next round sends
                elif not self._changed.wait(self._heartbeat_s) and not (self._waiting or self._sent):
                    self.tell("NOOP")
            return None

    def _taken(self) -> _Job:
        job = self._waiting.popleft()
        if job.heard:
            self._sent.append(job)
            self.waiting_since = self.waiting_since or time.monotonic()
        self._changed.notify_all()
        return job


def _believed(received: Received, asked: int | None) -> Answers:
    """Return the answer to message `asked`, the oldest that has none."""
    answers = received.message
    if isinstance(answers, Answers) and answers.fatal:
        raise WireError(f"the mesh could not go on: {answers.fatal}")
    if not isinstance(answers, Answers) or answers.sequence != asked:
        raise WireError(f"message {asked} was answered by {answers!r:.80}")
    return answers


def _plain(error: BaseException) -> str:
    if isinstance(error, MillstreamError):
        return str(error)
    first = (str(error) or type(error).__name__).splitlines()[0]
    return f"the connection failed: {first:.120}"
