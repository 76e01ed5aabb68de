"""Chapter 12, exercises. Fill in the functions, then run `millstream course check 12`."""

from __future__ import annotations

from collections.abc import Sequence


def gae(rewards: Sequence[float], values: Sequence[float], discount: float, trace: float) -> list[float]:
    """Generalised advantages of one voyage. Nothing comes after the last decision."""
    raise NotImplementedError("gae")


def clipped_objective(ratio: float, advantage: float, clip: float) -> float:
    """Return the objective that PPO maximises, for one decision."""
    raise NotImplementedError("clipped_objective")
