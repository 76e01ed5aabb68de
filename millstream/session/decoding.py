"""From a chunk's clean latents to pictures, in one step or several: the decoder is causal, so they come out the same.

Holds one session's decoder state; the VAE itself remembers nothing.
Shapes: B batch, F latent frames, T pixel frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from millstream.core.config import TEMPORAL_STRIDE, pixel_frames
from millstream.generation.stopwatch import Stopwatch
from millstream.models.carry import VAE, VAEState
from millstream.ops.host import HostCopy
from millstream.ops.pictures import to_pictures
from millstream.session.chunk import PendingChunk
from millstream.session.history import History


class StreamDecoder:
    def __init__(self, vae: VAE, stopwatch: Stopwatch, *, keeps_anchors: bool, beside: torch.cuda.Stream | None = None) -> None:
        """`beside` is a stream for pictures, where they are made beside the next chunk's first steps."""
        self._state: VAEState = ()
        self._vae, self._stopwatch, self._keeps_anchors = vae, stopwatch, keeps_anchors
        self._beside = None if keeps_anchors else beside

    @property
    def state(self) -> VAEState:
        """The decoder's past, for whoever works on the current stream."""
        if self._beside is not None:
            torch.cuda.current_stream(self._beside.device).wait_stream(self._beside)
        return self._state

    @state.setter
    def state(self, state: VAEState) -> None:
        self._state = state

    @torch.inference_mode()
    def decode(self, chunk: PendingChunk, latents_BFCYX: Tensor, until: int, history: History) -> None:
        """Pictures of the chunk's latent frames before number `until`, where they are not made yet. A GPU is not waited for."""
        if until <= chunk.decoded:
            return
        latents_BFCYX = latents_BFCYX[:, chunk.decoded : until]
        with self._aside(latents_BFCYX):
            with self._stopwatch.span("decode"):
                pixels_BTCYX, self._state = self._vae.decode(latents_BFCYX, self._state)
            if self._keeps_anchors:
                self._keep(history, chunk.envelope.start_frame + chunk.decoded, until - chunk.decoded, pixels_BTCYX)
            with self._stopwatch.span("convert"):
                chunk.pictures.append(HostCopy(to_pictures(pixels_BTCYX[0])))
        chunk.decoded = until

    def _aside(self, latents: Tensor) -> AbstractContextManager[object]:
        """On the stream beside, if there is one, once the latents and the state are there."""
        if self._beside is None:
            return nullcontext()
        self._beside.wait_stream(torch.cuda.current_stream(self._beside.device))
        latents.record_stream(self._beside)
        return torch.cuda.stream(self._beside)

    def _keep(self, history: History, first: int, count: int, pixels_BTCYX: Tensor) -> None:
        lead = pixel_frames(first, 1)
        for offset in range(count):
            last = lead - 1 + TEMPORAL_STRIDE * offset
            history.keep_pixels(first + offset, pixels_BTCYX[:, last].clone())
