"""From a chunk's clean latents to pictures, in one step or several: the decoder is causal, so they come out the same.

Holds one session's decoder state; the VAE itself remembers nothing.
Shapes: B batch, F latent frames, T pixel frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream.core.config import TEMPORAL_STRIDE, pixel_frames
from millstream.core.controls import Receipt
from millstream.core.envelope import Envelope, Result
from millstream.ops.pixels import to_bytes, to_host
from millstream.runtime.history import History
from millstream.runtime.stopwatch import Stopwatch

State = tuple[Tensor, ...]


class VAE(Protocol):
    """What a session needs of a VAE: streaming both ways, with the state in the caller's hands."""

    def encode(self, pixels_BTCYX: Tensor, state: State = ()) -> tuple[Tensor, State]: ...

    def decode(self, latents_BFCYX: Tensor, state: State = ()) -> tuple[Tensor, State]: ...


@dataclass(slots=True)
class Outstanding:
    """A chunk that was planned and has not come back."""

    envelope: Envelope
    receipts: tuple[Receipt, ...]
    real_frames: int
    """Pixel frames that are shown; an input's last chunk may hold more."""
    begun: float


@dataclass(slots=True)
class Arrived:
    """A chunk whose latents are here and whose pictures are not made, or not all."""

    planned: Outstanding
    result: Result
    latents_BFCYX: Tensor
    phases_ms: Mapping[str, float]
    decoded: int = 0
    """Latent frames whose pictures are made."""
    pictures: list[NDArray[np.uint8]] = field(default_factory=list)

    @property
    def envelope(self) -> Envelope:
        return self.planned.envelope

    @property
    def frames(self) -> NDArray[np.uint8]:
        """Its pictures in one run, copied only if they came in several."""
        return self.pictures[0] if len(self.pictures) == 1 else np.concatenate(self.pictures)


class StreamDecoder:
    def __init__(self, vae: VAE, stopwatch: Stopwatch, *, keeps_anchors: bool) -> None:
        self.state: State = ()
        self._vae, self._stopwatch, self._keeps_anchors = vae, stopwatch, keeps_anchors

    @torch.inference_mode()
    def decode(self, chunk: Arrived, until: int, history: History) -> None:
        """Pictures of the chunk's latent frames before number `until`, where they are not made yet."""
        if until <= chunk.decoded:
            return
        first = chunk.envelope.start_frame + chunk.decoded
        with self._stopwatch.span("decode"):
            pixels_BTCYX, self.state = self._vae.decode(chunk.latents_BFCYX[:, chunk.decoded : until], self.state)
        if self._keeps_anchors:
            self._keep(history, first, until - chunk.decoded, pixels_BTCYX)
        with self._stopwatch.span("convert"):
            planes = to_bytes(pixels_BTCYX[0]).unbind(1)  # stacking planes is quicker on a CPU than permuting
            chunk.pictures.append(to_host(torch.stack(planes, dim=-1)).numpy())
        chunk.decoded = until

    def _keep(self, history: History, first: int, count: int, pixels_BTCYX: Tensor) -> None:
        lead = pixel_frames(first, 1)
        for offset in range(count):
            last = lead - 1 + TEMPORAL_STRIDE * offset
            history.keep_pixels(first + offset, pixels_BTCYX[:, last].clone())
