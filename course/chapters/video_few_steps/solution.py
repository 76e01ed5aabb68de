"""Video chapter 3, solution."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def noised(clean: Tensor, noise: Tensor, level: float) -> Tensor:
    return (1 - level / 1000) * clean + level / 1000 * noise


def estimate(latents: Tensor, flow: Tensor, level: float) -> Tensor:
    return latents - level / 1000 * flow


def few_steps(
    flow_of: Callable[[Tensor, float], Tensor],
    start: Tensor,
    levels: tuple[float, ...],
    noise: Callable[[int], Tensor],
) -> Tensor:
    current = start
    for step, level in enumerate(levels):
        current = noised(current, noise(step), level) if step else current
        current = estimate(current, flow_of(current, level), level)
    return current


def calls_a_second(fps: float, frames_per_chunk: int, steps: int) -> float:
    return fps / (4 * frames_per_chunk) * (steps + 1)
