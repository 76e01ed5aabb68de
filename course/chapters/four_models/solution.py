"""Chapter 13, solution."""

from __future__ import annotations

import math
from collections.abc import Sequence


def letter_rewards(
    log_actor: Sequence[float], log_reference: Sequence[float], score: float, price: float
) -> list[float]:
    rewards = [-price * (mine - theirs) for mine, theirs in zip(log_actor, log_reference, strict=True)]
    rewards[-1] += score
    return rewards


def preference_loss(better: float, worse: float) -> float:
    return math.log1p(math.exp(worse - better))
