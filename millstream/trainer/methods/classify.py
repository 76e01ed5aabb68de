"""Learning to name what a rendered clip shows: the judge of generated ones, which it never sees in training."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from millstream.trainer.evaluate.classifier import ClipClassifier
from millstream.trainer.loop import Turn
from millstream.trainer.pool import PixelPool


class ClassifyMethod:
    def __init__(self, classifier: ClipClassifier, pool: PixelPool, *, batch: int) -> None:
        self.turns = (Turn("classifier", classifier, self._losses),)
        self._classifier, self._pool, self._batch = classifier, pool, batch

    def _losses(self, generator: torch.Generator) -> dict[str, Tensor]:
        pixels, labels = self._pool.draw(self._batch, generator)
        softened = soften(pixels, generator)
        with torch.autocast(pixels.device.type, dtype=torch.bfloat16):
            scores = self._classifier(softened)
        return {name: F.cross_entropy(score.float(), labels[name]) for name, score in scores.items()}


def soften(pixels_BTCYX: Tensor, generator: torch.Generator) -> Tensor:
    """A little noise and blur of random strength, so that the judge does not look for the renderer's exact edges."""
    batch, device = pixels_BTCYX.shape[0], pixels_BTCYX.device
    amount, noise = torch.rand(2, batch, 1, 1, 1, 1, generator=generator, device=device).unbind(0)
    frames = pixels_BTCYX.flatten(0, 1)
    blurred = F.avg_pool2d(frames, 5, stride=1, padding=2, count_include_pad=False).view_as(pixels_BTCYX)
    mixed = torch.lerp(pixels_BTCYX, blurred, amount)
    return mixed + 0.05 * noise * torch.randn(mixed.shape, generator=generator, device=device)
