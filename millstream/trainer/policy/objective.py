"""What a policy follows: clipped ratios of densities, and the pull back to a reference.

Shapes: B rows, T learnt steps of all chunks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class ClippedPolicy(NamedTuple):
    loss: Tensor
    clipped: Tensor
    """Share of the steps that say nothing more, because they have moved far enough."""


def clipped_policy(
    log_new_BT: Tensor, log_old_BT: Tensor, advantage_BT: Tensor, weight_BT: Tensor, clip: float
) -> ClippedPolicy:
    """Proximal policy optimisation: no gain beyond a ratio of 1 - clip or 1 + clip. `weight` sums to 1 over a whole batch."""
    ratio = (log_new_BT - log_old_BT).exp()
    plain, bounded = ratio * advantage_BT, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage_BT
    loss = -(torch.minimum(plain, bounded) * weight_BT).sum()
    return ClippedPolicy(loss, ((bounded < plain) * weight_BT).sum().detach())


def importance(log_now_BT: Tensor, log_then_BT: Tensor, most: float) -> Tensor:
    """How much a step counts that older weights have sampled: how much likelier it is now, and no more than `most`. In the mean
    over what was sampled then, what is counted so is worth what it would be if it were sampled now, but for what is cut off."""
    return (log_now_BT - log_then_BT).exp().clamp_max(most)
