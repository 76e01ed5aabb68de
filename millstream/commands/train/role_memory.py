"""Memory that each role of a recipe holds on a rank, before anything is loaded: the planner's figures."""

from __future__ import annotations

from typing import NamedTuple

from millstream.core.config import ModelSpec
from millstream.core.presets import find_model
from millstream.planner.memory import dit_parameters
from millstream.planner.training import (
    TrainingState,
    fullest_rank,
    learner_state,
    lora_parameters,
    optimiser_bytes,
)
from millstream.train.finetune.recipe import TuningRecipe
from millstream.train.finetune.roles import Role
from millstream.train.parallel.precision import IN_BFLOAT16


class RoleMemory(NamedTuple):
    role: str
    state: TrainingState

    def __str__(self) -> str:
        state = self.state
        held = {
            "weights": state.weights,
            "gradients": state.gradients,
            "optimiser": state.optimizer,
            "average": state.average,
        }
        held["masters"] = state.masters
        said = ", ".join(f"{name} {size / 2**20:,.0f}" for name, size in held.items() if size)
        return f"{state.total / 2**20:,.0f}: {said}"


def role_memory(recipe: TuningRecipe, spec: ModelSpec) -> list[RoleMemory]:
    """On a rank that has the role; with self-forcing the student's ranks have it once more, whole, as it is
    served."""
    found = [RoleMemory(role, _state(recipe, role)) for role in recipe.roles]
    if recipe.method == "self-forcing":
        adapters = 0 if recipe.lora is None else lora_parameters(spec.dit, recipe.lora.rank)
        weights = (dit_parameters(spec.dit) + adapters) * _reduced(recipe)
        found.append(
            RoleMemory("painter", TrainingState(weights=weights, gradients=0, optimizer=0, average=0, host=0))
        )
    return found


def _state(recipe: TuningRecipe, role: Role) -> TrainingState:
    dit = find_model(recipe.model_of(role)).dit
    plan = recipe.plan_of(role)
    whole = fullest_rank(dit, tp=plan.tp, pp=plan.pp)
    learns = (
        whole
        if recipe.lora is None
        else fullest_rank(dit, tp=plan.tp, pp=plan.pp, lora_rank=recipe.lora.rank)
    )
    if role == "teacher":
        learns = 0
    return learner_state(
        learns,
        0 if learns == whole else whole,
        data=plan.data,
        ranks=plan.shards or plan.dp * plan.cp,
        frozen_bytes=_reduced(recipe),
        ema=recipe.ema > 0 and role == "student",
        kept_bytes=optimiser_bytes(
            dit, recipe.optimiser, recipe.state_bits, 0 if recipe.lora is None else recipe.lora.rank
        ),
        is_kept_whole=recipe.optimiser == "adafactor",
        learning_bytes=learning_bytes(recipe),
        masters=recipe.masters,
        offload=recipe.offload == "optimiser",
    )


def learning_bytes(recipe: TuningRecipe) -> int:
    """Return the bytes of a weight that learns, as it is computed with."""
    return 2 if recipe.lora is None and recipe.learns_in == "bf16" else 4


def _reduced(recipe: TuningRecipe) -> int:
    """Bytes of a weight that does not learn."""
    return 2 if recipe.precision in IN_BFLOAT16 else 4
