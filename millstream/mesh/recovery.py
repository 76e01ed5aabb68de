"""A transport over a mesh that is started again when it is lost, and goes on as if nothing had happened.

The front holds the clean latents of every session's window, so nothing that was confirmed to a user is lost
with a mesh: chunks under way are sent again, and the first chunk that a session sends to a new mesh brings
its window along, to be rebuilt there. Exact while the window still holds all of the epoch; afterwards equal
to a recompute at that chunk, since keys made when older frames were still there cannot be made again without
them.

Meshes may die while they are brought back, any number of times in a row up to a bound; after it the mesh is
given up, for good. One thread posts, lands and mends; `trouble` and `interrupt` are for others.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from millstream.core.envelope import Action
from millstream.core.errors import EnvelopeRefused, MeshError, MeshGivenUp, MeshLost
from millstream.core.undo import undone_by
from millstream.mesh.link import LinkAnswer, MeshLink
from millstream.ops.host import brought
from millstream.wire.parcel import Delivery, Parcel

log = logging.getLogger(__name__)

HOST = torch.device("cpu")
MAX_ATTEMPTS = 2
"""Meshes that one chunk may bring down; then it is the chunk."""
MAX_KILLED = 5
"""Meshes that one chunk may lose where ranks were killed or stopped from outside: that is seldom the chunk's
doing."""
MAX_LOSSES = 8
"""Meshes lost one after the other without a chunk in between: then it is not bad luck."""
STEADY_S = 60.0
"""A mesh that stood for so long was sound, chunk or no chunk."""
PAUSES_S = (0.0, 0.0, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds before the first, second, ... start in a row: what is short, memory perhaps, may be released
meanwhile."""


class Recoverable(Protocol):
    """Interface of a session that can be recovered."""

    id: str

    def mend(self, parcel: Parcel) -> Parcel:
        """Return a planned chunk of the session, for a mesh that knows nothing of it."""


class Mesh(Protocol):
    """One start of a mesh."""

    link: MeshLink

    def wait(self) -> None:
        """Wait until the mesh is ready. Raises `MeshLost` if it will never be."""

    def lose(self, lost: MeshLost) -> None: ...

    def weights(self) -> bytes: ...

    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class RecoverablePost:
    """Chunks that were posted together. `result` waits for them, over as many meshes as it takes."""

    transport: MeshTransport
    parcels: list[Parcel]
    flushes: str = ""
    """The session whose staggered chunks it ends; it brings none itself."""
    sent: list[Future[LinkAnswer]] = field(default_factory=list)
    """Its messages to the mesh that is there now."""
    attempts: int = 0
    """Meshes that were lost while they had it."""
    faults: int = 0
    """Meshes among them that were not ended from outside."""

    def done(self) -> bool:
        return all(future.done() for future in self.sent)

    def ahead(self) -> list[Tensor]:
        return []  # made elsewhere

    def result(self) -> list[Delivery]:
        return self.transport.land(self)


class MeshTransport:
    def __init__(self, launch: Callable[[], Mesh], device: torch.device = HOST) -> None:
        """Latents go on to `device`. Recovers nothing until the ranks have been checked once: what fails
        before that fails again."""
        self._launch = launch
        self._device = device
        self._checked = False
        self._closing = threading.Event()
        self._weights = b""
        self._mending = ""
        """Reason why a mesh is being brought back, or cannot be."""
        self._given_up = False
        self._when_lost: Callable[[], None] = lambda: None
        self._mesh = self._launched()
        self._stands_since = time.monotonic()
        self._posts: deque[RecoverablePost] = deque()
        self._staggered: dict[str, dict[int, Parcel]] = {}
        """By session and call, what was sent and has no result yet, though its message may be answered."""
        self._sessions: weakref.WeakValueDictionary[str, Recoverable] = weakref.WeakValueDictionary()
        self._cold: set[str] = set()
        """Sessions that were on an earlier mesh and have sent nothing to this one."""
        self._copies: set[str] = set()
        """Forks that this mesh holds, of sessions and of what they keep of their past."""
        self._losses = 0
        """Meshes lost since the last answer."""
        self.held_bytes = 0
        """Bytes that sessions hold on the leader, as it last reported."""
        self.recoveries = 0
        self.rebuilt = 0
        """Windows that were rebuilt on meshes that came after theirs."""

    @property
    def trouble(self) -> str:
        """Reason why no chunk can be made at the moment; empty if all is well."""
        lost = self._mesh.link.lost
        return self._mending or ("" if lost is None else _brought_back(lost))

    def watch(self, session: Recoverable) -> None:
        """Recover this one too when the mesh is lost, for as long as it lives."""
        self._sessions[session.id] = session

    def post(self, parcels: Sequence[Parcel]) -> RecoverablePost:
        """Begin chunks. Results must be asked for in the order of posts."""
        return self._begun(RecoverablePost(self, [self._warmed(parcel) for parcel in parcels]))

    def flush(self, session_id: str) -> RecoverablePost:
        """Have a session's staggered chunks ended; its results are all that were still to come."""
        return self._begun(RecoverablePost(self, [], flushes=session_id))

    def fork(self, session_id: str, new_id: str) -> bool:
        """Fork a session on every rank. Return False where it is not there: where it has sent nothing to this
        mesh, or is a copy on one that is lost."""
        if session_id in self._cold or (session_id not in self._sessions and session_id not in self._copies):
            return False
        self._copies.add(new_id)
        self._mesh.link.tell("FORK", session_id, fork_id=new_id)
        return True

    def release(self, session_id: str) -> None:
        self._cold.discard(session_id)
        self._copies.discard(session_id)
        self._staggered.pop(session_id, None)
        self._mesh.link.tell("RELEASE", session_id)

    def tell(self, action: Action, session_id: str = "") -> None:
        self._mesh.link.tell(action, session_id)

    def check(self) -> None:
        """Have all ranks compare themselves; raises if one is not like the others."""
        self._mesh.link.tell("CHECK", heard=True).result()
        weights = self._mesh.weights()
        if self._checked and weights != self._weights:
            raise MeshGivenUp("the weights are not those that the mesh began with; start the server again")
        self._checked = True
        self._weights = weights

    def weights(self) -> bytes:
        """Return the records that the mesh's weights add to the model's fingerprint, whether or not it is
        there at the moment."""
        return self._weights

    def attend(self, when_lost: Callable[[], None]) -> None:
        """Allow lost meshes to be brought back from now on; the caller attends to them. `when_lost` is called
        on the thread that finds out: a mesh at rest may be mended before a chunk needs it."""
        self._when_lost = when_lost
        self._closing.clear()

    def mend(self) -> None:
        """Bring the mesh back, if it was lost while nothing was under way. Not one that was given up or is
        being closed."""
        lost = self._mesh.link.lost
        if lost is not None and not (self._posts or self._given_up or self._closing.is_set()):
            self._recover(lost)

    def interrupt(self) -> None:
        """Stop bringing back a lost mesh until `attend` is called again; one that is being brought back is
        dropped. Chunks that a sound mesh has are not disturbed."""
        self._closing.set()
        if self.trouble:
            self._mesh.lose(MeshLost("the mesh is being closed"))

    def close(self) -> None:
        self._closing.set()
        self._mesh.close()

    def land(self, post: RecoverablePost) -> list[Delivery]:
        """Wait for the result of the oldest post that was not asked for yet."""
        assert self._posts[0] is post, "results are asked for in the order of posts"
        try:
            while True:
                try:
                    answers = [future.result() for future in post.sent]
                except MeshLost as lost:
                    guilty = self._blamed(lost)
                    self._recover(lost, guilty)
                    if guilty is not None:
                        raise _refusal(guilty, lost) from None
                else:
                    self.held_bytes = answers[-1].held_bytes
                    self._losses = 0
                    deliveries = [
                        _moved(delivery, self._device) for answer in answers for delivery in answer.deliveries
                    ]
                    self._forget_answered(deliveries)
                    return deliveries
        finally:
            self._posts.popleft()

    def _begun(self, post: RecoverablePost) -> RecoverablePost:
        self._send(post)
        self._posts.append(post)
        return post

    def _send(self, post: RecoverablePost) -> None:
        assert post.parcels or post.flushes, "a post asks for something"
        link = self._mesh.link
        post.sent = [link.post(post.parcels)] if post.parcels else []
        if post.flushes:
            post.sent.append(link.tell("FLUSH", post.flushes, heard=True))
        for parcel in post.parcels:
            if parcel.envelope.under_way > 1:
                self._staggered.setdefault(parcel.envelope.session_id, {})[parcel.envelope.call_id] = parcel

    def _forget_answered(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            name = delivery.result.session_id
            under_way = self._staggered.get(name, {})
            under_way.pop(delivery.result.call_id, None)
            if not under_way:  # sessions come and go, and a late one may have been released already
                self._staggered.pop(name, None)

    def _blamed(self, lost: MeshLost) -> RecoverablePost | None:
        """Return the oldest chunk under way, if it has brought down one mesh after the other."""
        # Any of those under way may have done it, so all are charged. The oldest is judged: it has been there
        # as often as any other.
        oldest = self._posts[0]
        for post in self._posts:
            post.attempts += 1
            post.faults += not lost.from_outside
        return oldest if oldest.faults >= MAX_ATTEMPTS or oldest.attempts >= MAX_KILLED else None

    def _recover(self, lost: MeshLost, guilty: RecoverablePost | None = None) -> None:
        """Start a mesh again and send it everything that was under way, oldest first, but for the guilty."""
        begun = time.monotonic()
        try:
            self._bring_back(lost)
        except MeshGivenUp as hopeless:
            self._mending = str(hopeless)
            self._given_up = True
            raise
        self.recoveries += 1
        self._cold = {session.id for session in self._watched()}
        self._copies = set()  # forks were of memory that went with the ranks
        seconds = time.monotonic() - begun
        sessions = len(self._cold)
        log.warning("%s; the mesh is back after %.1f s, %d sessions go on", lost.in_full, seconds, sessions)
        for post in self._posts:
            if post is not guilty:
                post.parcels = [self._warmed(parcel) for parcel in (*self._owed(post), *post.parcels)]
                self._send(post)

    def _bring_back(self, lost: MeshLost) -> None:
        """Start another mesh in the place of the lost one, over as many starts as it takes."""
        if time.monotonic() - self._stands_since > STEADY_S:
            self._losses = 0
        while True:
            self._mending = _brought_back(lost)
            self._refuse_hopeless(lost)
            self._mesh.close()
            try:
                self._mesh = self._launched()
                self.check()
            except MeshLost as again:
                log.warning("%s; it was being brought back because: %s", again.in_full, lost)
                lost = again
            else:
                self._mending = ""
                self._stands_since = time.monotonic()
                return

    def _launched(self) -> Mesh:
        """Return a mesh that is ready. One that never is leaves no process behind."""
        mesh = self._mesh = self._launch()
        mesh.link.when_lost = self._noticed
        with undone_by(mesh.close):
            if self._closing.is_set():
                raise MeshLost("the mesh is being closed")
            mesh.wait()
        return mesh

    def _noticed(self) -> None:
        if not self._closing.is_set():
            self._when_lost()

    def _watched(self) -> list[Recoverable]:
        """Return the sessions at once as a list: other threads open sessions meanwhile."""
        return [session for reference in self._sessions.valuerefs() if (session := reference()) is not None]

    def _owed(self, post: RecoverablePost) -> list[Parcel]:
        """Return the staggered chunks of its session whose messages were answered before they were done:
        these begin again first."""
        name = post.flushes or post.parcels[0].envelope.session_id
        flying = {parcel.envelope.call_id for each in self._posts for parcel in each.parcels}
        return [parcel for call_id, parcel in self._staggered.get(name, {}).items() if call_id not in flying]

    def _warmed(self, parcel: Parcel) -> Parcel:
        """Return the chunk as it is to be sent: a session's first chunk on this mesh rebuilds its window, the
        ones after it find it there."""
        name = parcel.envelope.session_id
        if name not in self._cold:
            return parcel
        self._cold.remove(name)
        self.rebuilt += 1
        return self._sessions[name].mend(parcel)

    def _refuse_hopeless(self, lost: MeshLost) -> None:
        if not self._checked:
            raise MeshError(lost.in_full)
        self._losses += 1
        if self._losses >= MAX_LOSSES:
            raise MeshGivenUp(
                f"the mesh was lost {MAX_LOSSES} times without a chunk in between, the last time because: "
                f"{lost}"
            )
        assert self._losses <= len(PAUSES_S), f"{self._losses} losses in a row, {len(PAUSES_S)} pauses"
        if self._closing.wait(PAUSES_S[self._losses - 1]):
            raise MeshGivenUp(f"{lost}; it is not brought back, because the server is being closed")


def _brought_back(lost: MeshLost) -> str:
    return f"the mesh is being brought back: {lost}"


def _refusal(guilty: RecoverablePost, lost: MeshLost) -> EnvelopeRefused:
    envelope = guilty.parcels[0].envelope
    times = "twice" if guilty.attempts == MAX_ATTEMPTS else f"{guilty.attempts} times"
    return EnvelopeRefused(
        f"chunk {envelope.chunk_index} of {envelope.session_id} brought the mesh down {times}: {lost}"
    )


def _moved(delivery: Delivery, device: torch.device) -> Delivery:
    """Return a delivery with its latents on their way to a device: what is queued there from now on finds
    them, and no thread waits for that."""
    latents = delivery.latents_out
    return delivery if latents is None else replace(delivery, latents_out=brought(latents, device))
