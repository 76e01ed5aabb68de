"""Learning to name what a rendered clip shows: the judge of generated ones, which it never sees in training.

Shapes: B batch, T frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from millstream.ops.precision import mixed_precision
from millstream.train.evaluate.classifier import GLIMPSE, GLIMPSED, AttributeNet, slowed
from millstream.train.loop import LossTurn
from millstream.train.pool import PixelPool
from millstream.train.share import ALONE, BatchShare

GLIMPSES = 0.3
"""Share of a batch that shows no more than a chunk would."""


class ClassifyMethod:
    def __init__(
        self, classifier: AttributeNet, pool: PixelPool, *, batch: int, share: BatchShare = ALONE
    ) -> None:
        self.turns = (LossTurn("classifier", classifier, self._losses),)
        self._classifier = classifier
        self._pool = pool
        self._batch = batch
        self._share = share

    def _losses(self, generator: torch.Generator) -> dict[str, Tensor]:
        pixels, labels = self._pool.draw(self._batch, generator)
        looks = soften(pixels, generator)
        count = round(GLIMPSES * self._batch)
        shown = torch.cat(
            [glimpses(looks[:count], generator), looks[count:]]
        )  # thumbnails: cheap for all rows on every rank
        with mixed_precision(pixels.device):
            scores = self._classifier(self._share.part(shown))
        is_long_B = self._share.part(torch.arange(self._batch, device=pixels.device) >= count).float()
        losses = dict[str, Tensor]()
        for name, score in scores.items():
            errors_B = F.cross_entropy(score.float(), self._share.part(labels[name]), reduction="none")
            told_B = torch.ones_like(is_long_B) if name in GLIMPSED else is_long_B
            losses[name] = (errors_B * told_B).sum() / self._share.mean(told_B.sum())
        return losses


def glimpses(looks_BTCYX: Tensor, generator: torch.Generator) -> Tensor:
    """Three neighbouring frames of each look, from anywhere in it, each shown three times."""
    batch, length = looks_BTCYX.shape[:2]
    assert length >= GLIMPSE, f"a look of {length} frames has no glimpse of {GLIMPSE}"
    first = torch.randint(length - GLIMPSE + 1, (batch, 1), generator=generator, device=looks_BTCYX.device)
    rows, steps = (torch.arange(count, device=looks_BTCYX.device) for count in (batch, GLIMPSE))
    return slowed(looks_BTCYX[rows[:, None], first + steps])


def soften(pixels_BTCYX: Tensor, generator: torch.Generator) -> Tensor:
    """A little noise and blur of random strength, so that the judge does not look for the renderer's exact
    edges."""
    batch = pixels_BTCYX.shape[0]
    device = pixels_BTCYX.device
    amount, noise = torch.rand(2, batch, 1, 1, 1, 1, generator=generator, device=device).unbind(0)
    frames = pixels_BTCYX.flatten(0, 1)
    blurred = F.avg_pool2d(frames, 5, stride=1, padding=2, count_include_pad=False).view_as(pixels_BTCYX)
    mixed = torch.lerp(pixels_BTCYX, blurred, amount)
    return mixed + 0.05 * noise * torch.randn(mixed.shape, generator=generator, device=device)
