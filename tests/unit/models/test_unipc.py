"""UniPC on a flow, held against diffusers' scheduler."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import UniPCMultistepScheduler
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.core.presets import MODELS, apply_schedule
from millstream.models.sampler import denoise, mix
from tests.unit.models.test_sampler import PerfectModel

SHAPE = (1, 3, 4, 4, 4)
positions = st.lists(st.integers(1, 100), min_size=1, max_size=8, unique=True)


@settings(max_examples=30, deadline=None)
@given(positions, st.integers(0, 100), st.sampled_from([1.0, 3.0, 5.0, 8.0]))
@example([1, 56, 57], 4, 3.0)
def test_a_descent_is_that_of_diffusers_whatever_the_model_says(
    picked: list[int], seed: int, shift: float
) -> None:
    reference = UniPCMultistepScheduler(
        use_flow_sigmas=True, prediction_type="flow_prediction", solver_order=2, flow_shift=shift
    )
    reference.set_timesteps(sigmas=np.array(sorted(picked, reverse=True)) / 100)
    shares = reference.sigmas[:-1].tolist()
    generator = torch.Generator().manual_seed(seed)
    flows = [torch.randn(SHAPE, generator=generator) for _ in shares]
    start = torch.randn(SHAPE, generator=generator)
    expected = start
    expected_shown = []
    for time, flow in zip(reference.timesteps, flows, strict=True):
        expected_shown.append(expected)
        expected = reference.step(flow, time, expected).prev_sample
    shown = []

    def model(latents: torch.Tensor, *_: object) -> torch.Tensor:
        shown.append(latents)
        return flows[len(shown) - 1]

    levels = tuple(1000 * share for share in shares)
    found = denoise(
        model, start, levels, None, None, lambda _: pytest.fail("asked for noise"), sampler="unipc"
    )
    for latents, other in zip([*shown, found], [*expected_shown, expected], strict=True):
        # Two levels close together and one far away make large numbers of small differences.
        scale = max(1.0, float(other.abs().max()))
        assert float((latents - other).abs().max()) <= 2e-5 * scale


def test_longlives_levels_are_those_of_its_scheduler_to_rounding() -> None:
    """Which has 1000 training steps, the last of them at 0.001, and shifts what lies evenly between."""
    stream = apply_schedule(MODELS["wan2.1-t2v-1.3b"].stream, "longlive2")
    shares = np.linspace(0.999, 0.0, 5)[:-1]
    assert stream.noise_levels(stream.steps) == pytest.approx(1000 * 5 * shares / (1 + 4 * shares))
    assert (stream.sampler, stream.frames_per_chunk, stream.window, stream.sink) == ("unipc", 8, 32, 8)


@pytest.mark.parametrize("levels", [(1000.0,), (1000.0, 800.0, 300.0), (700.0, 400.0, 200.0, 100.0)])
def test_a_perfect_model_is_followed_to_the_clean_latents_from_any_noise(levels: tuple[float, ...]) -> None:
    clean, noise = torch.randn(SHAPE), torch.randn(SHAPE)
    model = PerfectModel(clean)
    found = denoise(model, mix(clean, noise, levels[0]), levels, None, None, None, sampler="unipc")
    assert torch.allclose(found, clean, atol=1e-4)
    assert model.levels == pytest.approx(levels)
    for shown, level in zip(model.shown, levels, strict=True):
        assert torch.allclose(shown, mix(clean, noise, level), atol=1e-4)


def test_frames_that_are_given_are_shown_clean_in_every_step() -> None:
    start = torch.randn(SHAPE)
    seen = []

    def model(latents: torch.Tensor, level: torch.Tensor, *_: object) -> torch.Tensor:
        seen.append((latents[:, :1], float(level[0, 0]), float(level[0, 1])))
        return torch.randn(SHAPE)

    found = denoise(model, start, (1000.0, 600.0, 300.0), None, None, None, num_given=1, sampler="unipc")
    assert torch.equal(found[:, :1], start[:, :1])
    assert all(torch.equal(shown, start[:, :1]) for shown, *_ in seen)
    assert [levels for _, *levels in seen] == [[0.0, 1000.0], [0.0, 600.0], [0.0, 300.0]]
