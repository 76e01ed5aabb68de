"""From a recipe to its roles: who is loaded, how it is shared out, and by which method the student learns from them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from millstream.core.errors import ConfigError
from millstream.models.dit import CausalDiT
from millstream.parallel.training.groups import TrainingGroups, create_training_groups
from millstream.parallel.training.learner import ModuleLearner, TrainingTask, make_learner
from millstream.parallel.training.predictor import Predictor, frozen_predictor
from millstream.trainer.distil.consistency import ConsistencyDistillation
from millstream.trainer.distil.judges import Judges
from millstream.trainer.distil.lessons import Distillation, Setting
from millstream.trainer.distil.matching import ClipPainting, MatchingDistillation, Painting
from millstream.trainer.distil.ode import ODEDistillation
from millstream.trainer.distil.streams import Painter, StreamPainting
from millstream.trainer.options import ConsistencyOptions, DMDOptions, ODEOptions, SelfForcingOptions
from millstream.trainer.tuning.dataset import ClipSet
from millstream.trainer.tuning.recipe import TuningRecipe
from millstream.trainer.tuning.roles import Role

Load = Callable[[Sequence[str], bool], CausalDiT]
"""A DiT from these weights, that is to learn or is not."""


def setting_of(recipe: TuningRecipe, clips: ClipSet, task: TrainingTask, numbers: range, device: torch.device) -> Setting:
    return Setting(
        config=task.dit.config,
        latent_size=clips.latent_size,
        latent_frames=clips.card.latent_frames,
        levels=recipe.levels,
        numbers=numbers,
        batch=recipe.batch,
        no_prompt_SE=clips.no_prompt_SE,
        paints_in={"bf16": torch.bfloat16, "fp16": torch.float16}.get(recipe.precision, torch.float32),
        device=device,
    )


def painter_for(recipe: TuningRecipe, setting: Setting, dit: CausalDiT) -> Painter | None:
    """Before the student is taken apart; none for who paints through it."""
    return Painter(copy.deepcopy(dit), setting.paints_in) if recipe.method == "self-forcing" else None


def make_distillation(
    recipe: TuningRecipe,
    setting: Setting,
    task: TrainingTask,
    student: ModuleLearner,
    painter: Painter | None,
    clips: ClipSet,
    load: Load,
) -> Distillation:
    """`task` is the student's; what others of it are like is its."""
    teacher, options = _teacher(recipe, task, load), recipe.method_options
    match options:
        case ODEOptions():
            return ODEDistillation(student, teacher, setting, options)
        case ConsistencyOptions():
            return ConsistencyDistillation(student, teacher, setting, options)
    critic = _critic(recipe, task, load)
    painting: Painting
    match options:
        case DMDOptions():
            if setting.latent_frames < options.window:
                raise ConfigError(
                    f"clips of {setting.latent_frames} latent frames do not fill a window of {options.window}; set window, or "
                    "prepare longer ones"
                )
            painting = ClipPainting(student.predictor, setting, options)
        case SelfForcingOptions():
            assert painter is not None, "somebody paints the streams"

            def text_of(numbers: Sequence[int]) -> Tensor:
                return torch.stack([clips[number].text_SE for number in numbers]).to(setting.device)

            painting = StreamPainting(painter, student, text_of, setting, options)
        case _:
            raise AssertionError(f"{recipe.method} is no way to distil")
    return MatchingDistillation(student, Judges(teacher, critic, setting.no_prompt_SE), painting, setting, options)


def _teacher(recipe: TuningRecipe, task: TrainingTask, load: Load) -> Predictor:
    dit, plan = load(recipe.weights_of("teacher"), False), recipe.plan_of("teacher")
    return frozen_predictor(dit, task.sequence, plan, _groups(recipe, "teacher", task), recipe.precision)


def _critic(recipe: TuningRecipe, task: TrainingTask, load: Load) -> ModuleLearner:
    critic = make_learner(
        TrainingTask(
            dit=load(recipe.weights_of("critic"), True),
            sequence=task.sequence,
            latent_size=task.latent_size,
            loss=task.loss,
            plan=recipe.plan_of("critic"),
            groups=_groups(recipe, "critic", task),
            options=recipe.critic_options,
        )
    )
    assert isinstance(critic, ModuleLearner), f"a critic is called by itself, got {type(critic)}"
    return critic


def _groups(recipe: TuningRecipe, role: Role, task: TrainingTask) -> TrainingGroups:
    """The student's, where it is shared out as that is."""
    plan = recipe.plan_of(role)
    return task.groups if plan == task.plan else create_training_groups(plan, next(task.dit.parameters()).device)
