"""Four ways to learn from voyages, each one line away from the one before. Advantages and clipping are the
train's own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from course.chapters.ppo.river import Steersman, Voyages, sail
from millstream.train.rl.advantages import generalised, standardised
from millstream.train.rl.objective import clipped_policy

BOATS = 32
ITERATIONS = 40
RATE = 0.1
VALUE_RATE = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningMethod:
    name: str
    critic: bool = False
    """Compare with what was expected from there."""
    trace: float = 1.0
    """The lambda of generalised advantages."""
    standard: bool = False
    """Advantages with mean 0 and deviation 1, so that steps are as large early as late."""
    epochs: int = 1
    """Steps by the same voyages."""
    clip: float = 0.0
    """How far a ratio may go; 0 for any."""


METHODS = (
    LearningMethod(name="policy gradient"),
    LearningMethod(name="with a critic", critic=True, standard=True),
    LearningMethod(name="with GAE", critic=True, standard=True, trace=0.9),
    LearningMethod(name="PPO", critic=True, standard=True, trace=0.9, epochs=4, clip=0.2),
)


def train(
    method: LearningMethod, seed: int, *, iterations: int = ITERATIONS, boats: int = BOATS
) -> list[float]:
    """The mean reward of each iteration's voyages."""
    steersman = Steersman()
    made = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(
        [{"params": [steersman.likes], "lr": RATE}, {"params": [steersman.values], "lr": VALUE_RATE}]
    )
    found = list[float]()
    for _ in range(iterations):
        voyages = sail(steersman, boats, made)
        found.append(float(voyages.reward_BT.sum(dim=1).mean()))
        advantage, returns = advantages(steersman, voyages, method)
        for _ in range(method.epochs):
            loss = policy_loss(steersman, voyages, advantage, method)
            if method.critic:
                loss = loss + (steersman.values[voyages.state_BT] - returns).square().mean()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
    return found


@torch.no_grad()
def advantages(steersman: Steersman, voyages: Voyages, method: LearningMethod) -> tuple[Tensor, Tensor]:
    expected = steersman.values[voyages.state_BT] if method.critic else torch.zeros_like(voyages.reward_BT)
    advantage, returns = generalised(voyages.reward_BT, expected, discount=1.0, trace=method.trace)
    if method.standard:
        advantage = standardised(advantage, torch.ones(len(advantage), dtype=torch.bool))
    return advantage, returns


def policy_loss(steersman: Steersman, voyages: Voyages, advantage: Tensor, method: LearningMethod) -> Tensor:
    new = steersman.log_probs(voyages.state_BT, voyages.action_BT)
    weight = torch.full_like(advantage, 1 / advantage.numel())
    return clipped_policy(new, voyages.log_BT, advantage, weight, method.clip or 1e9).loss
