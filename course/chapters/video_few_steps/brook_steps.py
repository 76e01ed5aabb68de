"""Brook paints one chunk in one, two and four steps: model calls, seconds, and how far apart the results
are."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from course.brook import CPU, brook
from course.reader import Reader
from millstream.core.controls import WeightedPrompt
from millstream.core.schedule import even_steps, noise_levels
from millstream.models import sampler
from millstream.models.sampler import Call
from millstream.train.rollout import ring_for

SHAPE = (1, 3, 8, 8, 8)
"""A chunk of three latent frames, pictures of 64 x 64."""


@torch.no_grad()
def run(
    reader: Reader, prompt: str = "a large white boat drifting slowly on the sea at dawn in clear weather"
) -> None:
    spec = brook().spec
    guess = reader.predict(
        "Brook streams with 2 steps a chunk and then leaves its keys and values in the window. How many "
        "model calls?"
    )
    calls = list[str]()
    made = {steps: painted(prompt, steps, calls) for steps in (1, 2, 4)}
    reader.reveal(
        guess, len(spec.stream.steps) + 1, by="2 steps and a commit, which stops at the last layer's keys"
    )
    assert calls.count("step") == 1 + 2 + 4, f"{calls}"
    assert calls.count("commit") == 3, f"{calls}"
    for steps, (latents, seconds) in made.items():
        apart = float((latents - made[2][0]).square().mean().sqrt())
        assert bool(latents.isfinite().all()), f"{steps} steps"
        reader.measured(
            f"{steps} steps: {1e3 * seconds:6.0f} ms; {apart:.2f} from what 2 steps paint, of a spread of "
            f"{latents.std():.2f}"
        )
    reader.say(
        "it was taught 2 steps; with other numbers it paints something else of the same prompt, and pays by "
        "the call"
    )


def painted(prompt: str, steps: int, phases: list[str]) -> tuple[Tensor, float]:
    dit = brook().dit
    stream = brook().spec.stream
    cross = dit.read_prompt(brook().text((WeightedPrompt(prompt),)))
    ring = ring_for(dit, SHAPE, window=stream.window, device=CPU, dtype=torch.float32)
    ring.place([0, 1, 2])
    levels = noise_levels(even_steps(steps), shift=stream.shift, warp=stream.warp)

    def answered(call: Call) -> Tensor | None:
        phases.append(call.phase)
        return call.answered_by(dit)

    begin = time.perf_counter()
    clean = sampler.answer(sampler.denoising(_noise(0), levels, ring, cross, _noise), answered)
    sampler.answer(sampler.committing("commit", clean, 0.0, ring, cross), answered)
    return clean, time.perf_counter() - begin


def _noise(step: int) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(step))
