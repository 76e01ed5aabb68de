"""An envelope and its tensors, a result and its tensor: what a transport carries.

Shapes: B batch, F frames, C latent channels, Y and X latent rows and columns, S text tokens, E text width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from millstream.core.envelope import Envelope, Result
from millstream.core.errors import EnvelopeRefused
from millstream.wire.framing import memory_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    envelope: Envelope
    latents_in: Tensor
    """[B, F, C, Y, X]: initial noise, or a video's latents with noise mixed in, at the first step's level.
    Leading frames that are given are clean."""
    conditioning: Tensor | None = None
    """[B, S, E], there when `reset_cross` is set."""
    context_frames: Tensor | None = None
    """[B, context, C, Y, X] clean latents, there when `recompute` is set."""

    def validate(self) -> None:
        """Everything that can be refused, before anything is sent or run."""
        envelope = self.envelope
        envelope.validate()
        if envelope.reset_cross and self.conditioning is None:
            raise EnvelopeRefused(
                f"chunk {envelope.chunk_index} resets cross-attention without a conditioning"
            )
        if envelope.recompute != (self.context_frames is not None):
            raise EnvelopeRefused(
                f"chunk {envelope.chunk_index} asks for recompute and context frames must come with it"
            )
        if self.context_frames is not None and self.context_frames.shape[1] != len(envelope.context_indices):
            raise EnvelopeRefused(
                f"chunk {envelope.chunk_index} names {len(envelope.context_indices)} context frames "
                f"and carries {self.context_frames.shape[1]}"
            )
        self._check_shapes()

    def _check_shapes(self) -> None:
        """All that can be known of them without a model."""
        envelope = self.envelope
        shape = tuple(self.latents_in.shape)
        rows, columns = envelope.latent_size
        if len(shape) != 5:
            raise EnvelopeRefused(
                f"chunk {envelope.chunk_index} carries latents {shape}, which have no frames"
            )
        if shape[1] != envelope.frames:
            raise EnvelopeRefused(f"chunk of {envelope.frames} frames carries {shape[1]}")
        if (shape[0], *shape[3:]) != (1, rows, columns):
            raise EnvelopeRefused(f"chunk {envelope.chunk_index} of {rows}x{columns} latents carries {shape}")
        context = self.context_frames
        if context is not None and (context.dim() != 5 or tuple(context.shape[2:]) != shape[2:]):
            raise EnvelopeRefused(
                f"chunk {envelope.chunk_index}: context {tuple(context.shape)} does not fit latents {shape}"
            )


class TensorOnItsWay(Protocol):
    """A tensor that is being copied to host memory (`ops/host.py`)."""

    def wait(self) -> Tensor: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """Result of a parcel. Where it is made its device may still be at work on the latents: then `result` is
    not whole."""

    result: Result
    latents_out: Tensor | None = None
    """[B, F, C, Y, X] clean latents, there when the result is ok."""
    on_host: TensorOnItsWay | None = None
    """The latents on their way to host memory, where they are made here."""
    finite: TensorOnItsWay | None = None
    """Flag that they are finite, found out where they are: a device would stand still while the host's
    threads look."""
    phases_ms: Mapping[str, float] = field(default_factory=dict)
    """Its part of where the generator's time went, where that is another process's."""


class PendingDeliveries(Protocol):
    """Deliveries to come of parcels that were posted together."""

    def done(self) -> bool: ...

    def ahead(self) -> list[Tensor]:
        """Latents that are being made on this process's device, if any are: what is queued there now comes
        after them."""

    def result(self) -> list[Delivery]:
        """Waits. Asked for in the order of posts."""


def digest(latents: Tensor) -> str:
    """Fingerprint of the exact bits, dtype and shape included."""
    head = f"{latents.dtype}{tuple(latents.shape)}".encode()
    hasher = hashlib.blake2b(head, digest_size=16)
    host = latents if latents.is_cpu else latents.cpu()
    hasher.update(memory_of(host if host.is_contiguous() else host.contiguous()))
    return hasher.hexdigest()
