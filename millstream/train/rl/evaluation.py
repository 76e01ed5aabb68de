"""Evaluation of a policy's streams as they are served: by its reward, and by a judge that it never learns
from.

Shapes: B clips, T frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from millstream.core.config import StreamConfig
from millstream.models.dit import CausalDiT
from millstream.models.registry import LoadedModel
from millstream.ops.pixels import from_bytes
from millstream.train.data.vocabulary import CLASSES
from millstream.train.evaluate.classifier import AttributeNet
from millstream.train.evaluate.metrics import LOOKED_AT, flicker
from millstream.train.evaluate.streams import BatchStream, row_groups
from millstream.train.reward.attributes import look_probabilities
from millstream.train.reward.clips import RewardClips
from millstream.train.reward.rewards import RewardSet


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    reward: float
    """Mean over clips; NaN where no clip has a reward."""
    terms: dict[str, float]
    judge: float
    """Mean over all attributes; 0 without a judge."""
    attributes: dict[str, float]
    """Mean probability that the judge gives each attribute, where prompts mention it."""
    flicker: float
    pixels_BTCYX: Tensor
    """uint8"""


@torch.no_grad()
def evaluate(
    model: LoadedModel,
    dit: CausalDiT,
    prompts: Sequence[str],
    *,
    config: StreamConfig,
    chunks: int,
    rewards: RewardSet,
    judge: AttributeNet | None,
) -> Evaluation:
    """Evaluate streams from their beginning, each with its number as its seed."""
    parts = []
    served = replace(model, dit=dit)
    for rows in row_groups(len(prompts), model.device):
        stream = BatchStream(served, prompts[rows], range(rows.start, rows.stop), config=config)
        parts.append(torch.cat([stream.advance() for _ in range(chunks)], dim=1))
    clips = RewardClips(pixels_BTCYX=torch.cat(parts), prompts=tuple(prompts), fps=config.fps)
    scored = rewards.score(clips)
    attributes = _attributes(judge, clips)
    restless = [flicker(from_bytes(part)) for part in clips.pixels_BTCYX.split(LOOKED_AT)]
    return Evaluation(
        reward=float(scored.total_B[scored.known_B].mean()) if scored.known_B.any() else math.nan,
        terms=scored.terms,
        judge=sum(attributes.values()) / len(attributes) if attributes else 0.0,
        attributes=attributes,
        flicker=float(torch.cat(restless).mean()),
        pixels_BTCYX=clips.pixels_BTCYX,
    )


def _attributes(judge: AttributeNet | None, clips: RewardClips) -> dict[str, float]:
    """Return the judge's mean probability of each attribute that any prompt mentions."""
    if judge is None:
        return {}
    sure_A = look_probabilities(judge, clips, tuple(CLASSES)).nanmean(dim=0).tolist()
    return {name: sure for name, sure in zip(CLASSES, sure_A, strict=True) if sure == sure}
