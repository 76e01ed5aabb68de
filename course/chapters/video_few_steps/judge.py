"""Video chapter 3, what is asked of an answer. The engine's own sampler judges it."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from course.chapters.video_few_steps.two_points import ExactFlow, some_noise
from millstream.models import sampler

LEVELS = (1000.0, 750.0, 400.0)


def judge_latents_at_a_level_are_the_samplers(answer: ModuleType) -> None:
    """level / 1000 is the share of noise."""
    clean = some_noise(8)
    noise = some_noise(8, seed=1)
    for level in (0.0, 250.0, 1000.0):
        assert torch.allclose(
            answer.noised(clean, noise, level), sampler.mix(clean, noise, level), atol=1e-6
        ), f"level {level}"


def judge_an_estimate_undoes_the_noise(answer: ModuleType) -> None:
    """latents = clean + share * (noise - clean). What is left if you take the second part away?"""
    clean = some_noise(8)
    noise = some_noise(8, seed=1)
    for level in (100.0, 1000.0):
        found = answer.estimate(sampler.mix(clean, noise, level), noise - clean, level)
        assert torch.allclose(found, clean, atol=1e-5), (
            f"at level {level} off by {float((found - clean).abs().max())}"
        )


def judge_few_steps_end_where_the_engine_ends(answer: ModuleType) -> None:
    """In the first step `start` is at its level already; from the second on mix new noise into the
    estimate."""
    model = ExactFlow()
    start = some_noise(8)
    expected = sampler.denoise(model, start, LEVELS, None, None, noise)  # type: ignore[arg-type]
    found = answer.few_steps(
        lambda x, level: model(x, sampler.per_frame(level, x), None, None), start, LEVELS, noise
    )
    assert torch.allclose(found, expected, atol=1e-5), f"off by {float((found - expected).abs().max())}"


def judge_calls_a_second_of_streams_that_exist(answer: ModuleType) -> None:
    """Pictures to chunks, chunks to calls: steps, and one more that leaves keys and values."""
    for fps, frames, steps, expected in ((16, 3, 4, 16 / 12 * 5), (12, 3, 2, 3.0), (24, 1, 1, 12.0)):
        found = answer.calls_a_second(fps, frames, steps)
        assert abs(found - expected) < 1e-9, (
            f"{fps} pictures a second, chunks of {frames}, {steps} steps: {found}, not {expected}"
        )


def noise(step: int) -> Tensor:
    return some_noise(8, seed=10 + step)
