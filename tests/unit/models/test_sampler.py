"""Schedules as published, and a denoising loop that recovers what it should."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.presets import MODELS, SCHEDULES, apply_schedule
from millstream.core.schedule import noise_levels, start_at
from millstream.models.sampler import add_noise, denoise, mix


def test_self_forcing_levels_are_the_published_ones() -> None:
    stream = MODELS["wan2.1-t2v-1.3b"].stream
    levels = noise_levels(stream.steps, shift=stream.shift, warp=stream.warp)
    assert levels == pytest.approx((1000.0, 937.5, 833.3333, 625.0), abs=1e-3)


def test_krea_names_almost_the_same_levels_unwarped() -> None:
    stream = apply_schedule(MODELS["wan2.1-t2v-14b"].stream, "krea")
    assert noise_levels(stream.steps, shift=stream.shift, warp=stream.warp) == (1000, 937, 833, 625)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_published_schedule_makes_a_valid_stream(name: str) -> None:
    assert apply_schedule(MODELS["wan-tiny"].stream, name).steps == SCHEDULES[name]["steps"]


FOUR = (1000.0, 937.5, 833.3333, 625.0)
STUDENTS = {
    "causal-forcing": (3, FOUR, FOUR),
    "causal-forcing-framewise": (1, FOUR, FOUR),
    "causal-forcing-pp-2": (1, FOUR, (1000.0, 833.3333)),
    "causal-forcing-pp-1": (1, FOUR, (1000.0,)),
    "one-forcing": (1, (1000.0,), (1000.0,)),
    "sgf": (3, FOUR, FOUR),
    "sgf-framewise": (1, FOUR, FOUR),
}
"""Frames of a chunk, and the levels of a first and of a later one."""


@pytest.mark.parametrize("name", STUDENTS)
def test_students_are_denoised_as_they_are_published(name: str) -> None:
    frames, first, later = STUDENTS[name]
    stream = apply_schedule(MODELS["wan2.1-t2v-1.3b"].stream, name)
    assert stream.frames_per_chunk == frames
    assert stream.noise_levels(stream.opening_steps) == pytest.approx(first, abs=1e-3)
    assert stream.noise_levels(stream.steps) == pytest.approx(later, abs=1e-3)


def test_a_schedule_leaves_nothing_of_another() -> None:
    stream = apply_schedule(MODELS["wan2.1-t2v-1.3b"].stream, "causal-forcing-pp-1")
    plain = apply_schedule(apply_schedule(stream, "longlive2"), "self-forcing")
    assert plain == apply_schedule(MODELS["wan2.1-t2v-1.3b"].stream, "self-forcing")


@given(st.floats(0.01, 1.0), st.lists(st.floats(1, 1000), min_size=1, max_size=6, unique=True))
def test_a_video_starts_at_the_level_its_noise_has(scale: float, steps: list[float]) -> None:
    levels = start_at(tuple(sorted(steps, reverse=True)), scale)
    assert levels[0] == pytest.approx(1000 * scale)
    assert list(levels) == sorted(set(levels), reverse=True)
    assert set(levels[1:]) == {step for step in steps if step < levels[0]}


class PerfectModel:
    """Knows the clean latents, so its flow is exact; remembers what it was shown."""

    def __init__(self, clean: torch.Tensor) -> None:
        self.clean = clean
        self.levels = []
        self.shown = []

    def __call__(
        self, latents: torch.Tensor, level: torch.Tensor, memory: None, cross: None, entries: object
    ) -> torch.Tensor:
        self.levels.append(float(level[0, 0]))
        self.shown.append(latents)
        return (latents - self.clean) / (level / 1000).view(1, -1, 1, 1, 1)


def test_denoising_calls_each_level_once_with_its_own_noise_and_ends_clean() -> None:
    clean = torch.randn(1, 3, 4, 2, 2)
    start = torch.randn(1, 3, 4, 2, 2)
    noises = {step: torch.randn(1, 3, 4, 2, 2) for step in (1, 2)}
    model = PerfectModel(clean)
    found = denoise(model, start, (1000.0, 800.0, 300.0), None, None, noises.__getitem__)
    assert torch.allclose(found, clean, atol=1e-5)
    assert model.levels == [1000.0, 800.0, 300.0]
    for step, level in ((1, 800.0), (2, 300.0)):
        assert torch.allclose(model.shown[step], mix(clean, noises[step], level), atol=1e-5)


def test_frames_that_are_given_are_shown_clean_at_level_0_in_every_step() -> None:
    clean = torch.randn(1, 3, 4, 2, 2)
    start = torch.randn(1, 3, 4, 2, 2)
    seen = []

    def model(latents: torch.Tensor, level: torch.Tensor, *_: object) -> torch.Tensor:
        seen.append((latents[:, :1], level))
        return latents - clean

    found = denoise(model, start, (1000.0, 500.0), None, None, lambda _: torch.ones_like(start), num_given=1)
    assert torch.equal(found[:, :1], start[:, :1])
    for shown, level in seen:
        assert torch.equal(shown, start[:, :1])
        assert level[0, 0] == 0
    assert [float(level[0, 2]) for _, level in seen] == [1000.0, 500.0]


def test_settling_at_level_0_needs_no_noise() -> None:
    clean = torch.randn(1, 1, 1, 2, 2)
    assert add_noise(clean, 0.0, lambda: pytest.fail("asked for noise")) is clean
    assert torch.allclose(add_noise(clean, 100.0, lambda: torch.ones_like(clean)), 0.9 * clean + 0.1)
