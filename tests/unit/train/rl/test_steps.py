"""Denoising steps as a policy: the sampler's own steps, their densities, and the literature's stochastic
ones."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from millstream.core.errors import ConfigError
from millstream.models import sampler
from millstream.models.kv import KVRing
from millstream.models.ring_shape import RingShape
from millstream.ops.noise import gaussian
from millstream.train.rl.steps import GaussianStep, StepNoise, divergence, log_density, sample_chunk
from tests.unit.train.rl.small_policy import CPU, LEVELS, tiny_config, tiny_model


def randoms(*seeds: int) -> list[Tensor]:
    return [torch.randn(2, 4, 3, 2, 2, generator=torch.Generator().manual_seed(seed)) for seed in seeds]


def test_served_steps_give_the_samplers_own_bits() -> None:
    model = tiny_model()
    config = tiny_config()
    cross = model.dit.read_prompt(torch.randn(1, 8, 32, generator=torch.Generator().manual_seed(1)))
    shape = (1, 3, 4, 4, 4)

    def draw(step: int) -> Tensor:
        return gaussian(shape, seed=5, epoch=0, chunk=0, step=step)

    found = []
    for served in (True, False):
        ring = KVRing(RingShape.of(model.spec.dit, config), device=CPU, dtype=torch.float32)
        ring.place([0, 1, 2])
        if served:
            found.append(sampler.denoise(model.dit, draw(0), LEVELS, ring, cross, draw))
        else:
            found.append(
                sample_chunk(model.dit, draw(0), StepNoise(levels=LEVELS), ring, cross, draw).clean_BFCYX
            )
    assert torch.equal(*found)


def test_without_randomness_a_step_is_eulers() -> None:
    noisy, flow = randoms(0, 1)
    step = StepNoise(levels=(900.0, 300.0), eta=0.0, last=1.0).step(0, noisy, flow)
    torch.testing.assert_close(step.mean_BFCYX, noisy - 0.6 * flow)
    assert step.std == 0


@pytest.mark.parametrize("eta", [0.05, 0.2])
def test_small_steps_are_those_of_the_stochastic_differential_equation(eta: float) -> None:
    """dx = (v + sigma^2 / 2s * (x + (1 - s) v)) ds + sigma dw, in one step of Euler and Maruyama with the
    same spread."""
    share = 0.5
    by = 1e-4
    noisy, flow = (each.double() for each in randoms(0, 1))
    noise = StepNoise(levels=(1000 * share, 1000 * (share - by)), eta=eta * math.sqrt(by))
    step = noise.step(0, noisy, flow)
    variance = (step.std / math.sqrt(by)) ** 2  # sigma squared, of a unit of s
    drift = flow + variance / (2 * share) * (noisy + (1 - share) * flow)
    moved = (step.mean_BFCYX.double() - noisy) / -by
    torch.testing.assert_close(moved, drift.to(moved), atol=5e-3, rtol=5e-3)


@given(eta=st.floats(0, 1), share=st.floats(0.2, 1), after=st.floats(0.05, 0.9))
def test_a_step_keeps_the_marginal_where_the_flow_is_right(eta: float, share: float, after: float) -> None:
    """Of clean latents c and noise e, x' has the share (1 - s') of c and the variance s'^2 of noise."""
    clean, noise = randoms(0, 1)
    after = min(after, 0.9 * share)
    steps = StepNoise(levels=(1000 * share, 1000 * after), eta=eta, last=1.0)
    step = steps.step(0, (1 - share) * clean + share * noise, noise - clean)
    of_noise = step.mean_BFCYX - (1 - after) * clean
    share_of_noise = float((of_noise * noise).sum() / noise.square().sum())
    torch.testing.assert_close(of_noise, share_of_noise * noise, atol=1e-4, rtol=1e-3)
    assert share_of_noise**2 + step.std**2 == pytest.approx(after**2, rel=1e-3)


def test_densities_are_those_of_a_normal_distribution() -> None:
    end, mean, other = randoms(0, 1, 2)
    step = GaussianStep(mean, 0.7)
    theirs = GaussianStep(other, 0.7)
    mine, reference = (torch.distributions.Normal(each.double(), 0.7) for each in (mean, other))
    expected = mine.log_prob(end.double()).unflatten(1, (2, 2)).sum(dim=(2, 3, 4, 5))
    torch.testing.assert_close(log_density(end, step, frames=2), expected, atol=1e-5, rtol=1e-6)
    apart = torch.distributions.kl_divergence(mine, reference).unflatten(1, (2, 2)).sum(dim=(2, 3, 4, 5))
    torch.testing.assert_close(
        divergence(step.mean_BFCYX, theirs.mean_BFCYX, step.std, frames=2), apart, atol=1e-5, rtol=1e-6
    )


@pytest.mark.parametrize(
    "wrong", [dict(eta=0.0), dict(eta=1.5), dict(last=-1.0), dict(only=(1,)), dict(only=(7,))]
)
def test_what_cannot_be_learnt_from_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        StepNoise(levels=LEVELS, **wrong)


def test_steps_can_be_chosen() -> None:
    assert StepNoise(levels=LEVELS).learnt == (0,)
    assert StepNoise(levels=LEVELS, last=0.1).learnt == (0, 1)
    assert StepNoise(levels=LEVELS, last=0.1, only=(1,)).learnt == (1,)
