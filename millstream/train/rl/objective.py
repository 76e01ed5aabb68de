"""Objective of a policy: clipped ratios of densities, and weights of steps that older weights sampled.

Shapes: B rows, T learnt steps of all chunks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class ClippedPolicy(NamedTuple):
    loss: Tensor
    clipped: Tensor
    """Share of the steps that are clipped, because they have moved far enough."""


def clipped_policy(
    log_new_BT: Tensor, log_old_BT: Tensor, advantage_BT: Tensor, weight_BT: Tensor, clip: float
) -> ClippedPolicy:
    """Return the loss of proximal policy optimisation: no gain beyond a ratio of 1 - clip or 1 + clip.
    `weight` sums to 1 over a whole batch."""
    ratio = (log_new_BT - log_old_BT).exp()
    plain = ratio * advantage_BT
    bounded = ratio.clamp(1.0 - clip, 1.0 + clip) * advantage_BT
    loss = -(torch.minimum(plain, bounded) * weight_BT).sum()
    return ClippedPolicy(loss, ((bounded < plain) * weight_BT).sum().detach())


def importance(log_now_BT: Tensor, log_then_BT: Tensor, most: float) -> Tensor:
    """Return the weight of steps that older weights sampled: the ratio of their densities now and then, at
    most `most`. Except for what is cut off, the weighted mean over the old samples is the mean that samples
    of the current weights would have."""
    return (log_now_BT - log_then_BT).exp().clamp_max(most)
