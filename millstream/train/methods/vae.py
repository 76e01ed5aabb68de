"""Learning to compress: pixels through the VAE and back, with a little noise on the latents.

Losses: absolute error at three scales, error of the gradients (edges are what people see), and a weak pull of
the latents towards a unit normal.
Shapes: B batch, T frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from millstream.models.brook.vae import BrookVAE
from millstream.ops.precision import mixed_precision
from millstream.train.loop import LossTurn
from millstream.train.options import VAEOptions
from millstream.train.pool import PixelPool
from millstream.train.share import ALONE, BatchShare


class VAEMethod:
    def __init__(
        self, vae: BrookVAE, pool: PixelPool, *, batch: int, options: VAEOptions, share: BatchShare = ALONE
    ) -> None:
        self.turns = (LossTurn("vae", vae, self._losses),)
        self._vae = vae
        self._pool = pool
        self._batch = batch // share.ranks
        self._options = options
        self._share = share

    def _losses(self, generator: torch.Generator) -> dict[str, Tensor]:
        pixels, _ = self._pool.draw(self._batch, generator, self._share)
        with mixed_precision(pixels.device):
            mean, log_variance, _ = self._vae.moments(pixels)
            mean = mean.float()
            log_variance = log_variance.float().clamp(-12, 6)
            noise = self._share.normal(mean.shape, generator)
            found, _ = self._vae.reconstruct(mean + noise * (0.5 * log_variance).exp())
        found = found.float()
        kl = 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).mean()
        return {
            "pixels": pyramid_error(found, pixels),
            "edges": self._options.edges * edge_error(found, pixels),
            "kl": self._options.kl * kl,
        }


def pyramid_error(found_BTCYX: Tensor, wanted_BTCYX: Tensor) -> Tensor:
    """Mean absolute error at full, half and quarter size."""
    found = found_BTCYX.flatten(0, 1)
    wanted = wanted_BTCYX.flatten(0, 1)
    total = (found - wanted).abs().mean()
    for _ in range(2):
        found = F.avg_pool2d(found, 2)
        wanted = F.avg_pool2d(wanted, 2)
        total = total + 0.5 * (found - wanted).abs().mean()
    return total


def edge_error(found_BTCYX: Tensor, wanted_BTCYX: Tensor) -> Tensor:
    """Mean absolute error of the differences between neighbouring pixels."""
    difference = found_BTCYX - wanted_BTCYX
    return difference.diff(dim=-1).abs().mean() + difference.diff(dim=-2).abs().mean()


@torch.no_grad()
def measure_latents(
    vae: BrookVAE, pool: PixelPool, *, batch: int, batches: int, generator: torch.Generator
) -> None:
    """Set the statistics that `encode` and `decode` normalise by."""
    parts = [
        vae.moments(pool.draw(batch, generator)[0])[0].float().transpose(1, 2).flatten(2)
        for _ in range(batches)
    ]
    raw_BCL = torch.cat(parts)
    vae.latent_mean.copy_(raw_BCL.mean(dim=(0, 2)))
    vae.latent_std.copy_(raw_BCL.std(dim=(0, 2)))


def psnr(found: Tensor, wanted: Tensor) -> float:
    """Decibels, for values in [-1, 1]."""
    return float(10 * torch.log10(4.0 / (found - wanted).square().mean()))
