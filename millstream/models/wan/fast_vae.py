"""Wan's VAE on the fast path, in the place of a loaded one: the same weights by the same names, and the same
state.

So a stream may change from one to the other at any chunk, and both have the same fingerprint. An epoch's
first frame, which stands for a single picture, has a pass of its own.
Shapes: B batch, F latent frames, T pixel frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from millstream.models.carry import VAEState
from millstream.models.empty import empty_modules
from millstream.models.wan.channels_last import NOTHING_AROUND, Convolution, TileBorders
from millstream.models.wan.decoder import FastDecoder
from millstream.models.wan.encoder import FastEncoder
from millstream.models.wan.vae import WanVAE, check_frames


class FastVAE(WanVAE):
    """Wan's VAE with the weights of `vae`, in the order that its convolutions read them. One session at a
    time: batch is 1."""

    def __init__(
        self, vae: WanVAE, own: Convolution | None = None, borders: TileBorders = NOTHING_AROUND
    ) -> None:
        with empty_modules():
            super().__init__(vae.config)
        self.load_state_dict(vae.state_dict(), assign=True)
        self.eval().requires_grad_(False)
        self.own = own
        self._fast_encoder = FastEncoder(self.encoder, own, borders)
        self._fast_decoder = FastDecoder(self.decoder, own, borders)

    def encode(self, pixels_BTCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]:
        assert pixels_BTCYX.shape[0] == 1, f"one session at a time, got {pixels_BTCYX.shape[0]}"
        check_frames(pixels_BTCYX.shape[1], lead=0 if state else 1)
        answers = []
        for frames in passes(pixels_BTCYX, state):
            answer, state = self._fast_encoder(frames, state)
            answers.append(answer)
        return self.normalised(torch.cat(answers, dim=2)), state

    def decode(self, latents_BFCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]:
        assert latents_BFCYX.shape[0] == 1, f"one session at a time, got {latents_BFCYX.shape[0]}"
        shown = []
        for latents in passes(latents_BFCYX, state):
            pixels, state = self._fast_decoder(self.unquantised(latents), state)
            shown.append(pixels)
        return shown[0] if len(shown) == 1 else torch.cat(shown, dim=1), state


def passes(frames_BTCYX: Tensor, state: VAEState) -> list[Tensor]:
    """Return the frames of each pass through a network: all of them, or an epoch's first frame and then the
    rest."""
    count = frames_BTCYX.shape[1]
    return [frames_BTCYX] if state or count == 1 else [frames_BTCYX[:, :1], frames_BTCYX[:, 1:]]
