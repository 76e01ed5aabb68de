"""A chunk on its way: planned, pending, received, and as a viewer gets it. Plain data.

Shapes: B batch, F latent frames, T pixel frames, C latent channels, Y and X rows and columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from millstream.core.controls import Receipt, WeightedPrompt
from millstream.core.envelope import Envelope, Result
from millstream.core.trace import ChunkTiming
from millstream.ops.host import HostCopy


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkPlan:
    """A chunk that is planned and has no tensors yet."""

    envelope: Envelope
    video: NDArray[np.uint8] | None
    """Its share of the input."""
    given_BFCYX: Tensor | None = None
    """The same as latents, where a journal has them."""


@dataclass(slots=True)
class PendingChunk:
    """A chunk that was planned and is not shown."""

    envelope: Envelope
    receipts: tuple[Receipt, ...]
    real_frames: int
    """Pixel frames that are shown; an input's last chunk may hold more."""
    begun: float
    given_BFCYX: Tensor | None = None
    """Latents of its share of the input, for the journal."""
    decoded: int = 0
    """Latent frames whose pictures are made."""
    pictures: list[HostCopy] = field(default_factory=list)
    """[T, Y, X, 3] bytes each."""

    def wait(self) -> None:
        """Until what is made of its pictures is here."""
        for brought in self.pictures:
            brought.wait()

    @property
    def frames(self) -> NDArray[np.uint8]:
        """Its pictures in one run, copied only if they came in several. Waits until they are here."""
        assert self.pictures, f"chunk {self.envelope.chunk_index} has no pictures yet"
        pictures = [brought.wait().numpy() for brought in self.pictures]
        return pictures[0] if len(pictures) == 1 else np.concatenate(pictures)


@dataclass(frozen=True, slots=True)
class ReceivedChunk:
    """A chunk whose latents are here."""

    planned: PendingChunk
    result: Result
    latents_BFCYX: Tensor
    phases_ms: Mapping[str, float]

    @property
    def envelope(self) -> Envelope:
        return self.planned.envelope


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """What a viewer gets."""

    index: int
    epoch: int
    frames: NDArray[np.uint8]
    """[T, H, W, 3] RGB"""
    prompts: tuple[WeightedPrompt, ...]
    receipts: tuple[Receipt, ...]
    """Controls that first show in this chunk."""
    timing: ChunkTiming
    digest: str
    """Of the latents, as in the journal."""
