"""Learning to read a camera's motion from renders: the judge of what a model makes of keys.

Shapes: B looks, T pixel frames, F latent frames, C channels, Y and X rows and columns, M motions.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from millstream.core.config import TEMPORAL_STRIDE
from millstream.ops.pixels import from_bytes
from millstream.ops.precision import mixed_precision
from millstream.train.evaluate.motion import LOOKED, MOTIONS, MotionJudge, MotionPool
from millstream.train.loop import LossTurn
from millstream.train.methods.classify import soften
from millstream.train.share import ALONE, BatchShare

MIRRORED = tuple(-1.0 if name in ("aside", "turn") else 1.0 for name in MOTIONS)
"""Sign of each motion in a mirror."""


class MotionMethod:
    def __init__(
        self, judge: MotionJudge, pool: MotionPool, *, batch: int, share: BatchShare = ALONE
    ) -> None:
        self.turns = (LossTurn("motion", judge, self._losses),)
        self._judge = judge
        self._pool = pool
        self._batch = batch
        self._share = share

    def _losses(self, generator: torch.Generator) -> dict[str, Tensor]:
        looks, wanted = self._drawn(generator)  # they are small: each rank draws all of them
        softened = soften(looks, generator)
        with mixed_precision(looks.device):
            found_BM = self._judge(self._share.part(softened)).float()
        errors_BM = F.smooth_l1_loss(found_BM, self._share.part(wanted), reduction="none", beta=0.5)
        return dict(zip(MOTIONS, errors_BM.mean(dim=0).unbind(), strict=True))

    def _drawn(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Looks from anywhere, half of them in a mirror."""
        clips, frames = self._pool.motions_BFM.shape[:2]
        device = self._pool.pixels_BTCYX.device
        clip, frame, mirror = (
            torch.randint(below, (self._batch,), generator=generator, device=device)
            for below in (clips, frames, 2)
        )
        moments = TEMPORAL_STRIDE * frame[:, None] + torch.arange(LOOKED, device=device)
        looks = from_bytes(self._pool.pixels_BTCYX[clip[:, None], moments]).float()
        motions = self._pool.motions_BFM[clip, frame]
        in_mirror = mirror.bool()
        looks = torch.where(in_mirror[:, None, None, None, None], looks.flip(-1), looks)
        motions = torch.where(in_mirror[:, None], motions * motions.new_tensor(MIRRORED), motions)
        return looks, motions
