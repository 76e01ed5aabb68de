"""From a chunk's clean latents to pictures, in one step or several: the decoder is causal, so they come out
the same.

Holds one session's decoder state; the VAE itself remembers nothing.
Shapes: B batch, F latent frames, T pixel frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

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
    def __init__(self, vae: VAE, stopwatch: Stopwatch, *, keeps_anchors: bool) -> None:
        self.state: VAEState = ()
        """The decoder's past."""
        self._vae = vae
        self._stopwatch = stopwatch
        self._keeps_anchors = keeps_anchors

    @torch.inference_mode()
    def decode(self, chunk: PendingChunk, latents_BFCYX: Tensor, until: int, history: History) -> None:
        """Pictures of the latent frames that a chunk shows, before number `until`, where they are not made yet. A GPU is
        not waited for."""
        if until <= chunk.decoded:
            return
        assert until <= latents_BFCYX.shape[1], f"{until} latent frames of {latents_BFCYX.shape[1]}"
        expected = pixel_frames(
            len(self.state), until - chunk.decoded
        )  # only an epoch's beginning has no past
        latents_BFCYX = latents_BFCYX[:, chunk.decoded : until]
        with self._stopwatch.span("decode"):
            pixels_BTCYX, self.state = self._vae.decode(latents_BFCYX, self.state)
        assert pixels_BTCYX.shape[1] == expected, f"{pixels_BTCYX.shape[1]} pictures, {expected} expected"
        if self._keeps_anchors:
            first = chunk.envelope.shown_from + chunk.decoded
            self._keep(history, first, until - chunk.decoded, pixels_BTCYX)
        with self._stopwatch.span("convert"):
            chunk.pictures.append(HostCopy(to_pictures(pixels_BTCYX[0])))
        chunk.decoded = until

    def _keep(self, history: History, first: int, count: int, pixels_BTCYX: Tensor) -> None:
        lead = pixel_frames(first, 1)
        for offset in range(count):
            last = lead - 1 + TEMPORAL_STRIDE * offset
            history.keep_pixels(first + offset, pixels_BTCYX[:, last].clone())
