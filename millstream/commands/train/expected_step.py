"""Expected time and memory of a recipe's step on a GPU that the planner knows, from the size of its clips,
before any is read.

For flow matching in bf16 with whole blocks on every rank, which is what was measured. Collectives are not in
it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from millstream.commands.train.role_memory import learning_bytes
from millstream.core.config import ModelSpec
from millstream.planner.hardware import DEVICES
from millstream.planner.training import (
    LearningWork,
    TrainingState,
    gathered_parameters,
    learning_peak,
    learning_time,
)
from millstream.train.finetune.dataset import CARD, read_card
from millstream.train.finetune.recipe import TuningRecipe
from millstream.train.finetune.run import noising_of
from millstream.train.sequence import frames_seen

DEVICE = DEVICES["h200"]
"""Device on which training was measured."""


class ExpectedStep(NamedTuple):
    seconds: float
    peak_bytes: float

    def __str__(self) -> str:
        fits = "" if self.peak_bytes < DEVICE.memory_bytes else f", more than its {DEVICE.memory_gib:.0f}"
        return f"{self.seconds:.3g} s a step, {self.peak_bytes / 2**30:.1f} GiB at its peak{fits}"


def expected_step(
    recipe: TuningRecipe, spec: ModelSpec, data: Path, state: TrainingState
) -> ExpectedStep | None:
    """None where the planner does not know, or there are no clips yet."""
    plan = recipe.plan
    is_known = recipe.method == "flow" and recipe.precision == "bf16" and plan.has_whole_blocks
    if not is_known or not (data / CARD).exists():
        return None
    card = read_card(data)
    noising = noising_of(recipe, spec)
    cell = spec.stride * spec.dit.patch
    tokens_per_frame = max((height // cell) * (width // cell) for height, width in card.sizes)
    layout = noising.layout(card.latent_frames)
    rows = recipe.batch // plan.dp // plan.micro_batches
    assert rows >= 1, f"{recipe.batch} clips in {plan.micro_batches} parts on {plan.dp} ranks"
    number_bytes = learning_bytes(recipe)
    work = LearningWork(
        dit=spec.dit,
        tokens=rows * len(layout[0]) * tokens_per_frame,
        keys=frames_seen(layout) * tokens_per_frame,
        recompute=recipe.recompute,
        is_frozen=recipe.lora is not None,
        learning_bytes=number_bytes,
        summed=plan.summed_at_once(round(state.gradients / number_bytes), number_bytes),
        gathered=gathered_parameters(spec.dit, plan.data, plan.shards or plan.dp)
        if recipe.lora is None
        else 0,
    )
    seconds = plan.micro_batches * learning_time(work, DEVICE).total / 1e3
    return ExpectedStep(seconds, learning_peak(work, state, accumulates=plan.keeps_gradients))
