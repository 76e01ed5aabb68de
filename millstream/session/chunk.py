"""A chunk on its way through one process: planned, pending, and as a viewer gets it. Plain data.

`ChunkPlan` ─► `Parcel` ─► `PendingChunk` ─► `Delivery` ─► `Chunk` ─► `EncodedChunk`. Parcel and delivery are
what a transport carries (`wire/parcel.py`); the bytes for a viewer are the server's
(`server/sessions/outbox.py`).
Shapes: B batch, F latent frames, T pixel frames, C latent channels, Y and X rows and columns.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from millstream.core.conditions import Picture
from millstream.core.controls import Receipt, WeightedPrompt
from millstream.core.envelope import Envelope
from millstream.core.trace import ChunkTiming
from millstream.ops.host import HostCopy
from millstream.wire.parcel import Delivery, Parcel


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkPlan:
    """Everything that was decided about a chunk, before there are tensors."""

    envelope: Envelope
    receipts: tuple[Receipt, ...] = ()
    real_frames: int
    """Pixel frames that are shown, those of a picture before it among them; an input's last chunk may hold
    more."""
    start: float
    """When planning began, by `time.perf_counter`."""
    video: NDArray[np.uint8] | None = None
    """Its share of the input."""
    picture: Picture | None = None
    """Picture that it begins from, or is pulled towards."""
    given_BFCYX: Tensor | None = None
    """Its share of the input, or the picture, as latents: encoded, or from a journal."""


class CommitCost(NamedTuple):
    """Time of the commit of the chunk before, where that was made after its frames were out: part of the next
    chunk's time."""

    seconds: float = 0.0
    phases_ms: Mapping[str, float] = MappingProxyType({})

    def plus(self, other: CommitCost) -> CommitCost:
        return CommitCost(self.seconds + other.seconds, Counter(self.phases_ms) + Counter(other.phases_ms))


NO_COMMIT = CommitCost()


class Streaming(Protocol):
    """A session, as far as its chunks need one."""

    id: str

    @property
    def ended(self) -> bool: ...

    def prepare(self, plan: ChunkPlan) -> Parcel: ...

    def receive(self, chunk: PendingChunk, delivery: Delivery) -> None: ...

    def decode_ahead(self, chunk: PendingChunk, latents: Tensor) -> None: ...

    def decode_anchor(self, chunk: PendingChunk) -> None: ...

    def decode_all(self, chunk: PendingChunk) -> None: ...

    def finish(self, chunk: PendingChunk) -> Chunk: ...


@dataclass(slots=True, eq=False)
class PendingChunk:
    """A chunk from its plan until its frames are shown. The session fills in what is made of it, the pipeline
    fills in when.

    Times are by `time.monotonic`.
    """

    session: Streaming
    plan: ChunkPlan
    commit_cost: CommitCost = NO_COMMIT
    parcel: Parcel | None = None
    """While it is with the generator."""
    delivery: Delivery | None = None
    """None until it is here; it stays None where the chunk is not to be shown: a duplicate, or from before a
    cut."""
    decoded: int = 0
    """Latent frames, of those that are shown with it, whose pixel frames are made."""
    pictures: list[HostCopy] = field(default_factory=list)
    """[T, Y, X, 3] bytes each."""
    phases_ms: Counter[str] = field(default_factory=Counter)
    """Its part of phases that several chunks went through together."""
    batch_size: int = 1
    """Chunks that shared its model calls."""
    done_when_sent: bool = False
    """Nothing went on meanwhile, so the next chunk waits for this one's frames."""
    shares_device: bool = False
    """Its frames are queued on the device that generates, right behind its latents."""
    sent_s: float = 0.0
    back_s: float = 0.0
    decode_start_s: float = 0.0
    shown_s: float = 0.0
    front_s: float = 0.0
    """Seconds of this process that it alone has cost: its part of what came before the post, and its
    frames."""
    turn_s: float | None = None
    """How long it kept the next one from leaving, the commit before it included; None while it still does."""
    device_s: float = 0.0
    """All its phases, where one device goes through them one after the other."""
    host_s: float = 0.0
    """Its turn on such a device without the time spent waiting for the device."""
    thread_s: float = 0.0
    """`host_s` by the clock of the thread, which stands while others run in its place."""
    is_typical: bool = True
    """Its time says something of the next chunk's, as that of one that begins from a picture does not; the driver
    decides."""

    @property
    def envelope(self) -> Envelope:
        return self.plan.envelope

    @property
    def latents(self) -> Tensor:
        """[B, F, C, Y, X] clean latents, once they are here."""
        assert self.delivery is not None, f"chunk {self.envelope.chunk_index} is not here"
        assert self.delivery.latents_out is not None, (
            f"chunk {self.envelope.chunk_index} came without latents"
        )
        return self.delivery.latents_out

    @property
    def num_frames(self) -> int:
        """Pixel frames that a viewer gets."""
        return 0 if self.delivery is None else self.plan.real_frames

    @property
    def frames(self) -> NDArray[np.uint8]:
        """Pixel frames in one run, copied only if they came in several. Waits until they are here."""
        assert self.pictures, f"chunk {self.envelope.chunk_index} has no pictures yet"
        pictures = [copy.wait().numpy() for copy in self.pictures]
        return (pictures[0] if len(pictures) == 1 else np.concatenate(pictures))[: self.plan.real_frames]

    def wait(self) -> None:
        """Wait for the pixel frames that are made so far."""
        for copy in self.pictures:
            copy.wait()

    @property
    def chunk_s(self) -> float:
        """Seconds that one more such chunk takes of a server that does nothing else; promises are made of
        these.

        On a device that has its next chunk queued that is its phases: what the host does beside takes no time
        of the device, unless it takes longer than they do. Over a mesh, generator and frames of two chunks
        run at the same time, and what counts is the longer of the two; time between sessions' turns, when
        neither works, is counted for none.
        """
        assert self.turn_s is not None, f"the turn of {self.session.id} is not over"
        assert self.batch_size >= 1, f"a chunk of {self.session.id} ran in a batch of {self.batch_size}"
        if self.shares_device and self.batch_size == 1:
            return max(self.device_s, self.host_s)
        return max(self.turn_s / self.batch_size, self.front_s)

    def made_before(self, start_s: float, *, shares_device: bool) -> None:
        """Note the times of a chunk that was there already, as if it had been made in the turn that began at
        `start_s`."""
        now = time.monotonic()
        self.sent_s = start_s
        self.back_s = self.shown_s = now
        self.done_when_sent = True
        self.shares_device = shares_device
        self.turn_s = self.commit_cost.seconds + now - start_s
        self.device_s = sum(self.commit_cost.phases_ms.values()) / 1e3


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Finished chunk, as a viewer gets it."""

    index: int
    epoch: int
    frames: NDArray[np.uint8]
    """[T, H, W, 3] RGB; T is 0 where they were let go of."""
    num_frames: int
    """As many as it was made with."""
    prompts: tuple[WeightedPrompt, ...]
    receipts: tuple[Receipt, ...]
    """Controls that first show in this chunk."""
    timing: ChunkTiming
    digest: str
    """Digest of the latents, as in the journal."""
    media_s: float = 0.0
    """Position of its first frame in the stream, in seconds."""
    fps: float
    """Frames a second that it plays at."""
    late_s: float = 0.0
    """Seconds that the viewer had nothing to play when it came; 0 when in time."""
    unknown: tuple[str, ...] = ()
    """Words of the prompts that mean nothing to the model."""
    understood: tuple[tuple[str, str], ...] = ()
    """Words of the prompts that the model was not taught, each with what it reads in their place."""

    def without_frames(self) -> Chunk:
        """All about it but its frames, whose memory is free once no other holds them."""
        return replace(self, frames=np.empty((0, *self.frames.shape[1:]), np.uint8))
