"""Denoising steps as Gaussian policies: where a step goes, its density, and the divergence of two models'
steps.

From latents x at the share of noise s, a model's flow v gives a clean estimate c = x - s v and a noise
estimate e = x + (1-s) v, with x = (1-s) c + s e. The step to the share s' is

    x' ~ N((1-s') c + sqrt(s'^2 - d^2) e, d^2 I)        d = eta s'

With eta = 1 it is the sampler's own step, which keeps the clean estimate and adds fresh noise: mean (1-s') c.
With eta = 0 it is the Euler step of the flow, which has no density. In between, small steps are those of the
stochastic differential equation that the literature on GRPO for flow models uses, with the same marginals.
The last step, to s' = 0, is x' ~ N(c, last^2 I).
Shapes: B rows, F frames, K chunks, C latent channels, Y and X latent rows and columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from millstream.core.errors import ConfigError
from millstream.core.schedule import FULL
from millstream.models import sampler
from millstream.models.dit import CrossKV
from millstream.models.kv import Memory


class GaussianStep(NamedTuple):
    """Distribution of a step's end. With a deviation of 0 it is not random."""

    mean_BFCYX: Tensor
    std: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepNoise:
    """Noise of the steps, and which of them are learnt from."""

    levels: tuple[float, ...]
    """Noise level of each model call, high to low."""
    eta: float = 1.0
    """Share of noise that is new in all steps but the last; 1 is how the model is served."""
    last: float = 0.0
    """Standard deviation of the noise that is added to a finished chunk; 0 is how the model is served."""
    only: tuple[int, ...] = ()
    """Numbers of the steps that are learnt from; all random ones, if none are named."""

    def __post_init__(self) -> None:
        if not 0 <= self.eta <= 1 or self.last < 0:
            raise ConfigError(
                f"eta must be 0 to 1 and last_noise 0 or more, got {self.eta:g} and {self.last:g}"
            )
        if fixed := [step for step in self.only if not (0 <= step < len(self.levels) and self.std(step) > 0)]:
            raise ConfigError(f"steps {fixed} have no density to learn from; random are {self._random}")
        if not self._random:
            raise ConfigError(
                "no step is random, so there is nothing to learn from: give eta or last_noise above 0"
            )

    def std(self, step: int) -> float:
        return self.last if step == len(self.levels) - 1 else self.eta * self.following(step) / FULL

    def spread(self, step: int) -> float:
        """Return the unit that a change of a step is measured in: its deviation. For a step that is not
        random, that of its clean estimate if it were noised again to the level that it came from; infinite
        for pure noise, where a change cannot be seen."""
        share = self.levels[step] / FULL
        return self.std(step) or (share / (1.0 - share) if share < 1 else math.inf)

    def following(self, step: int) -> float:
        """Return the level that a step leads to."""
        return (*self.levels[1:], 0.0)[step]

    @property
    def learnt(self) -> tuple[int, ...]:
        return self.only or self._random

    @property
    def _random(self) -> tuple[int, ...]:
        return tuple(step for step in range(len(self.levels)) if self.std(step) > 0)

    def step(self, number: int, noisy_BFCYX: Tensor, flow_BFCYX: Tensor) -> GaussianStep:
        """Return the distribution of step `number`'s end, from `noisy`, in float32."""
        share = self.levels[number] / FULL
        after = self.following(number) / FULL
        std = self.std(number)
        noisy = noisy_BFCYX.float()
        flow = flow_BFCYX.float()
        clean = noisy - share * flow
        if after == 0:
            return GaussianStep(clean, std)
        mean = (1.0 - after) * clean
        if std < after:
            mean = mean + math.sqrt(after**2 - std**2) * (noisy + (1.0 - share) * flow)
        return GaussianStep(mean, std)


class SampledChunk(NamedTuple):
    """One chunk, with what every step started from, where the learnt ones ended, and their log-densities."""

    clean_BFCYX: Tensor
    starts: list[Tensor]
    ends: list[Tensor]
    log_density_B: list[Tensor]


@torch.no_grad()
def sample_chunk(
    model: sampler.FlowModel,
    latents_BFCYX: Tensor,
    noise: StepNoise,
    memory: Memory,
    cross: CrossKV,
    draw: Callable[[int], Tensor],
) -> SampledChunk:
    """Sample a chunk as `sampler.denoise` does, to the same bits where `noise` is as served. `draw(i)` is the
    noise that step i starts with; the one after the last is added to a finished chunk."""
    dtype = latents_BFCYX.dtype
    current = latents_BFCYX.float()
    made = SampledChunk(latents_BFCYX, [], [], [])
    for number, level in enumerate(noise.levels):
        flow = model(current.to(dtype), sampler.per_frame(level, current), memory, cross)
        step = noise.step(number, current, flow)
        end = step.mean_BFCYX if step.std == 0 else step.mean_BFCYX + step.std * draw(number + 1).float()
        made.starts.append(current)
        if number in noise.learnt:
            made.ends.append(end)
            made.log_density_B.append(log_density(end, step, frames=end.shape[1])[:, 0])
        current = end
    return made._replace(clean_BFCYX=current.to(dtype))


def log_density(end_BFCYX: Tensor, step: GaussianStep, *, frames: int) -> Tensor:
    """Return the exact log-density of whole chunks of `frames` frames: [B, K] in float64, since tens of
    thousands of numbers are summed."""
    assert step.std > 0, "a step that is not random has no density"
    off = (end_BFCYX.float() - step.mean_BFCYX) / step.std
    squares = -0.5 * _per_chunk(off.square(), frames)
    count = frames * math.prod(end_BFCYX.shape[2:])
    return squares - count * (math.log(step.std) + 0.5 * math.log(2.0 * math.pi))


def divergence(mean_BFCYX: Tensor, reference_BFCYX: Tensor, spread: float, *, frames: int) -> Tensor:
    """Return the exact Kullback-Leibler divergence of two steps with the same deviation: [B, K] in
    float64."""
    return 0.5 * _per_chunk(((mean_BFCYX - reference_BFCYX) / spread).square(), frames)


def _per_chunk(x_BFCYX: Tensor, frames: int) -> Tensor:
    sums: Tensor = x_BFCYX.unflatten(1, (-1, frames)).sum(dim=(2, 3, 4, 5), dtype=torch.float64)
    return sums
