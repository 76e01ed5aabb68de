"""Chunks between their plan and their pictures, as `engine/pipeline.py` keeps them: planned, sent, landed. Plain data.

Times are by `time.monotonic`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

from torch import Tensor

from millstream.core.envelope import Result
from millstream.session.chunk import Chunk, ChunkPlan, ReceivedChunk
from millstream.wire.parcel import Delivery, Parcel, Posted


class Streaming(Protocol):
    """What a session must be able to do."""

    id: str

    @property
    def ended(self) -> bool: ...

    def prepare(self, decision: ChunkPlan) -> Parcel: ...

    def receive(self, delivery: Delivery) -> ReceivedChunk | None: ...

    def decode_ahead(self, latents: Tensor) -> None: ...

    def decode_anchor(self, arrived: ReceivedChunk) -> None: ...

    def decode_all(self, arrived: ReceivedChunk) -> None: ...

    def finish(
        self, arrived: ReceivedChunk, *, shared_ms: Mapping[str, float] | None = None, before_s: float = 0.0
    ) -> Chunk: ...


class Settled(NamedTuple):
    """What a commit took that was made when its chunk's pictures were out: part of the next chunk's time."""

    seconds: float = 0.0
    phases_ms: Mapping[str, float] = MappingProxyType({})


NOTHING_SETTLED = Settled()


class Planned(NamedTuple):
    session: Streaming
    decision: ChunkPlan
    settled: Settled = NOTHING_SETTLED


@dataclass(slots=True, eq=False)
class Sent:
    """A chunk with the generator."""

    session: Streaming
    parcel: Parcel
    settled: Settled
    sent_s: float
    front_s: float = 0.0
    together: int = 1
    phases_ms: Counter[str] = field(default_factory=Counter)


class Flight(NamedTuple):
    """Chunks that were sent together."""

    chunks: Sequence[Sent]
    posted: Posted
    at_once: bool
    """Whether they were done when they had been sent: nothing goes on meanwhile."""


@dataclass(slots=True, eq=False)
class Landing:
    """A chunk that is back."""

    session: Streaming
    arrived: ReceivedChunk | None
    """None for one that is not to be shown: a duplicate, or from before a cut."""
    result: Result
    together: int
    """Chunks that shared its model calls."""
    sent_s: float
    back_s: float
    front_s: float
    """Seconds of this process that it alone has cost: its part of what came before the post, and its pictures."""
    settled: Settled
    phases_ms: Counter[str]
    at_once: bool
    """Whether the next chunk waits for its pictures."""
    shares_device: bool
    turn_s: float | None = None
    """How long it kept the next one from leaving, its commit included; None while it still does."""
    device_s: float = 0.0
    """All its phases, where one device goes through them one after the other."""
    host_s: float = 0.0
    """Of its turn, on such a device, all but waiting for the device."""
    thread_s: float = 0.0
    """The same by the clock of the thread, which stands while others run in its place."""
    teaches: bool = True
    """Whether how long it took says anything of the next one; the driver's to say."""
    decode_begun_s: float = 0.0
    shown_s: float = 0.0

    @property
    def num_frames(self) -> int:
        """Pixel frames that a viewer gets."""
        return 0 if self.arrived is None else self.arrived.planned.real_frames

    @property
    def chunk_s(self) -> float:
        """What one more such chunk takes of a server that does nothing else, which is what promises are made of.

        On a device that has its next chunk queued that is its phases: what the host does beside takes no time of the device,
        unless it takes longer than they do.
        Over a mesh, generator and pictures of two chunks run at the same time, and what counts is the longer of the two; time
        between sessions' turns, when neither works, is nobody's.
        """
        assert self.turn_s is not None, f"the turn of {self.session.id} is not over"
        assert self.together >= 1, f"a chunk of {self.session.id} ran in a batch of {self.together}"
        if self.shares_device and self.together == 1:
            return max(self.device_s, self.host_s)
        return max(self.turn_s / self.together, self.front_s)


class Failure(NamedTuple):
    session: Streaming
    error: Exception
    chunk_index: int
