"""Choice of the prompts that a step learns from: a function of the recipe, the seed and the step alone."""

from __future__ import annotations

import torch

from millstream.train.data.captions import canonical_captions, captions
from millstream.train.data.scene import sample_scenes
from millstream.train.loop import keyed_generator
from millstream.train.rl.recipe import PolicyRecipe
from millstream.train.rl.rollouts import RolloutPlan

HOST = torch.device("cpu")
EVALUATED = 515151
"""Seed of the scenes whose captions are evaluated; others than in training and in `millstream train eval`."""


def step_plan(recipe: PolicyRecipe, step: int) -> RolloutPlan:
    """Return a step's plan, with `tried` times as many prompts as are learnt from."""
    generator = keyed_generator(HOST, "tune", recipe.seed, step)
    place, switch = torch.rand(2, generator=generator).tolist()
    least, most = recipe.fork
    fork_at = least + int(place * (most - least + 1)) if most else 0
    before = _prompts(recipe, generator) if fork_at and switch < recipe.switched else ()
    return RolloutPlan(
        prompts=_prompts(recipe, generator),
        group=recipe.group,
        chunks=recipe.chunks,
        fork_at=fork_at,
        before=before,
        shared_start=recipe.shared_start,
        seed=_number(generator),
    )


def evaluated_prompts(recipe: PolicyRecipe) -> tuple[str, ...]:
    """Return the prompts of every evaluation."""
    count = recipe.evaluate_prompts
    if recipe.prompts:
        return tuple(recipe.prompts[i % len(recipe.prompts)] for i in range(count))
    return tuple(canonical_captions(sample_scenes(count, seed=EVALUATED)))


def _prompts(recipe: PolicyRecipe, generator: torch.Generator) -> tuple[str, ...]:
    count = recipe.prompts_per_step * recipe.tried
    if recipe.prompts:
        chosen = torch.randint(len(recipe.prompts), (count,), generator=generator)
        return tuple(recipe.prompts[i] for i in chosen.tolist())
    return tuple(captions(sample_scenes(count, seed=_number(generator)), seed=_number(generator)))


def _number(generator: torch.Generator) -> int:
    return int(torch.randint(2**40, (), generator=generator))
