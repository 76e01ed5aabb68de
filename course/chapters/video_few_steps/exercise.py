"""Video chapter 3, exercises. Fill in the functions, then run `millstream course check V3`."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def noised(clean: Tensor, noise: Tensor, level: float) -> Tensor:
    """Latents at a noise level of 0 (clean) to 1000 (noise)."""
    raise NotImplementedError("noised")


def estimate(latents: Tensor, flow: Tensor, level: float) -> Tensor:
    """The clean latents that a flow, noise minus clean, points to from latents at a level."""
    raise NotImplementedError("estimate")


def few_steps(
    flow_of: Callable[[Tensor, float], Tensor],
    start: Tensor,
    levels: tuple[float, ...],
    noise: Callable[[int], Tensor],
) -> Tensor:
    """Clean latents. `start` is at the first level. Each step makes an estimate; the next starts from it with
    `noise(i)`."""
    raise NotImplementedError("few_steps")


def calls_a_second(fps: float, frames_per_chunk: int, steps: int) -> float:
    """Model calls that a stream needs each second: so many pictures a second, four a latent frame, a commit
    for every chunk."""
    raise NotImplementedError("calls_a_second")
