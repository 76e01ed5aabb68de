"""Advantages of samples over what was expected: by their group, by a critic, or by being the best.

Rows of one group are next to each other. A row whose reward is not known counts for nothing and does not
change the others'.
Shapes: B rows, T moments at which something was decided.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMALL = 1e-6
"""Difference below which rewards count as equal."""


def group_relative(reward_B: Tensor, known_B: Tensor, group: int) -> Tensor:
    """Return the distance from the group's mean, in the standard deviations of all groups together: a group
    whose rewards differ little has small advantages."""
    reward = reward_B.view(-1, group)
    known = known_B.view(-1, group).to(reward_B)
    count = known.sum(dim=1, keepdim=True).clamp_min(1)
    off = (reward - (reward * known).sum(dim=1, keepdim=True) / count) * known
    std = (off.square().sum() / known.sum().clamp_min(1)).sqrt()
    return torch.where(std > SMALL, off / (std + SMALL), 0.0).flatten()


def best_of_group(reward_B: Tensor, known_B: Tensor, group: int) -> Tensor:
    """Return 1 for the best of each group, 0 for the others."""
    reward = reward_B.view(-1, group)
    known = known_B.view(-1, group)
    best = reward.masked_fill(~known, -torch.inf).argmax(dim=1, keepdim=True)
    return (torch.zeros_like(reward).scatter(1, best, 1.0) * known).flatten()


def generalised(
    reward_BT: Tensor, value_BT: Tensor, *, discount: float, trace: float
) -> tuple[Tensor, Tensor]:
    """Return generalised advantage estimates, and the returns that a critic should have predicted. Nothing
    comes after the last moment."""
    advantage_BT = torch.zeros_like(reward_BT)
    after_B = value_after_B = torch.zeros_like(reward_BT[:, 0])
    for moment in reversed(range(reward_BT.shape[1])):
        surprise_B = reward_BT[:, moment] + discount * value_after_B - value_BT[:, moment]
        after_B = surprise_B + discount * trace * after_B
        advantage_BT[:, moment], value_after_B = after_B, value_BT[:, moment]
    return advantage_BT, advantage_BT + value_BT


def standardised(advantage_BT: Tensor, known_B: Tensor) -> Tensor:
    """Return advantages with mean 0 and standard deviation 1 over the known rows."""
    if not known_B.any():
        return torch.zeros_like(advantage_BT)
    known = advantage_BT[known_B]
    spread = (known - known.mean()).square().mean().sqrt()
    return (advantage_BT - known.mean()) / (spread + SMALL) * known_B[:, None].to(advantage_BT)
