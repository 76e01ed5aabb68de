"""Learning to show the same pictures with less work: a thin decoder follows the one that it stands in for,
over latents of the model's own streams.

Losses: absolute error at three scales, error of the gradients, and error of the change from picture to
picture (flicker is what a thin decoder adds first). Crops are enough: a convolution does not know where it
is.
Shapes: R streams, B batch, F latent frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from millstream.models.brook.vae import BrookDecoder
from millstream.models.carry import Carry
from millstream.ops.precision import mixed_precision
from millstream.train.loop import LossTurn
from millstream.train.methods.vae import edge_error, pyramid_error

FRAMES = 4
CROP = 16
"""Size of a sample: latent frames, and latent rows and columns."""


class ThinDecoderMethod:
    def __init__(self, thin: BrookDecoder, thick: BrookDecoder, raw_RFCYX: Tensor, *, batch: int) -> None:
        """`raw` are latents as decoders take them."""
        self.turns = (LossTurn("decoder", thin, self._losses),)
        self._thin = thin
        self._thick = thick
        self._raw_RFCYX = raw_RFCYX
        self._batch = batch

    def _losses(self, generator: torch.Generator) -> dict[str, Tensor]:
        raw = self._drawn(generator)
        with mixed_precision(raw.device):
            with torch.no_grad():
                wanted = self._thick(raw, Carry(())).float().clamp(-1, 1)
            found = self._thin(raw, Carry(())).float()
        return {
            "pixels": pyramid_error(found, wanted),
            "edges": edge_error(found, wanted),
            "motion": (found - wanted).diff(dim=1).abs().mean(),
        }

    def _drawn(self, generator: torch.Generator) -> Tensor:
        """Crops at random places and moments, [B, F, C, Y, X] in float32."""
        streams, frames, _, rows, columns = self._raw_RFCYX.shape
        assert frames >= FRAMES, f"streams of {frames} frames, samples have {FRAMES}"
        assert min(rows, columns) >= CROP, f"latents of {rows} x {columns}, samples have {CROP}"
        highest = streams, frames - FRAMES + 1, rows - CROP + 1, columns - CROP + 1
        device = self._raw_RFCYX.device
        r, f, y, x = (
            torch.randint(high, (self._batch, 1, 1, 1), generator=generator, device=device)
            for high in highest
        )
        f = f + torch.arange(FRAMES, device=device).view(1, -1, 1, 1)
        y = y + torch.arange(CROP, device=device).view(1, 1, -1, 1)
        x = x + torch.arange(CROP, device=device).view(1, 1, 1, -1)
        return self._raw_RFCYX[r, f, :, y, x].permute(0, 1, 4, 2, 3).float()
