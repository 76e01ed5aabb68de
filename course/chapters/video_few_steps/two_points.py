"""A world of two pictures, -1 and 1, whose flow is known exactly: what a perfect teacher would have learnt.

At level t the latents are (1-t) picture + t noise. The flow is what noise minus picture is on average, given
the latents.
Shapes as the sampler's: B rows, and one frame, channel, row and column.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from millstream.core.schedule import FULL, even_steps
from millstream.train.rollout import solve


class ExactFlow:
    """A flow model, as the sampler wants one, that needs no weights."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, latents_BFCYX: Tensor, level_BF: Tensor, memory: Any, cross: Any, *_: Any) -> Tensor:
        self.calls += 1
        t = (level_BF / FULL)[..., None, None, None]
        leans = torch.tanh((1 - t) * latents_BFCYX / t.square())  # to which picture, on average
        noise = (latents_BFCYX - (1 - t) * leans) / t
        return noise - leans

    def commit(self, latents_BFCYX: Tensor, level_BF: Tensor, memory: Any, cross: Any, *_: Any) -> None:
        """There is no window."""


def some_noise(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, 1, 1, 1, 1, generator=torch.Generator().manual_seed(seed))


def ends(noise: Tensor, steps: int) -> Tensor:
    """Where the engine's own solver goes in so many steps."""
    model = ExactFlow()
    found = solve(model, noise, even_steps(steps), None, None)  # type: ignore[arg-type]
    assert model.calls == steps, f"{model.calls} calls for {steps} steps"
    return found


def distance(found: Tensor) -> float:
    """To the nearer of the two pictures, on average."""
    return float((found.abs() - 1).abs().mean())
