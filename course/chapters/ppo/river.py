"""A boat that is steered into a lock: a task small enough to learn in seconds, with a reward that comes late.

The boat begins in the middle of nine lanes and goes down ten rows. In each row it is steered left, on or
right, and the current drifts it one lane to a side now and then. At the end the lane decides: the outer lanes
give 1 and 0.5, all others nothing.
Shapes: B boats, T rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

LANES = 9
ROWS = 10
STEERINGS = 3
DRIFT = 0.2
BEST = 1.0
SECOND = 0.5


class Voyages(NamedTuple):
    state_BT: Tensor
    """Row and lane as one number."""
    action_BT: Tensor
    log_BT: Tensor
    """Log-probabilities of the steering that was drawn."""
    reward_BT: Tensor


class Steersman(nn.Module):
    """A table: for each row and lane how much each steering is liked, and what is expected from there on."""

    def __init__(self) -> None:
        super().__init__()
        self.likes = nn.Parameter(torch.zeros(ROWS * LANES, STEERINGS))
        self.values = nn.Parameter(torch.zeros(ROWS * LANES))

    def log_probs(self, state: Tensor, action: Tensor) -> Tensor:
        return self.likes[state].log_softmax(-1).gather(-1, action[..., None])[..., 0]


@torch.no_grad()
def sail(steersman: Steersman, boats: int, made: torch.Generator) -> Voyages:
    lane = torch.full((boats,), LANES // 2)
    found = []
    for row in range(ROWS):
        state = row * LANES + lane
        action = torch.multinomial(steersman.likes[state].softmax(-1), 1, generator=made)[:, 0]
        drift = torch.randint(2, (boats,), generator=made) * 2 - 1
        drift = drift * (torch.rand(boats, generator=made) < DRIFT)
        lane = (lane + action - 1 + drift).clamp(0, LANES - 1)
        reward = BEST * (lane == LANES - 1) + SECOND * (lane == 0) if row == ROWS - 1 else torch.zeros(boats)
        found.append((state, action, steersman.log_probs(state, action), reward.float()))
    return Voyages(*(torch.stack(parts, dim=1) for parts in zip(*found, strict=True)))


def best_possible() -> float:
    """By dynamic programming, from the last row back."""
    worth = [SECOND, *[0.0] * (LANES - 2), BEST]

    def after(lane: int, steering: int) -> float:
        places = [min(max(lane + steering + drift, 0), LANES - 1) for drift in (-1, 0, 1)]
        chances = (DRIFT / 2, 1 - DRIFT, DRIFT / 2)
        return sum(chance * worth[place] for chance, place in zip(chances, places, strict=True))

    for _ in range(ROWS):
        worth = [max(after(lane, steering) for steering in (-1, 0, 1)) for lane in range(LANES)]
    return worth[LANES // 2]
