"""Setup of a distillation: which roles are loaded, how they are shared out, and by which method the student
learns from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from millstream.core.errors import ConfigError
from millstream.models.adapters import LoRALinear
from millstream.models.dit import CausalDiT
from millstream.models.weights.unread import bring
from millstream.train.distil.consistency import ConsistencyDistillation
from millstream.train.distil.judges import Judges, StreamView
from millstream.train.distil.matching import ClipPainting, MatchingDistillation, Painting, clip_views
from millstream.train.distil.ode import ODEDistillation
from millstream.train.distil.remote_judges import JudgesApart, PlacedRoles, RemoteJudges
from millstream.train.distil.self_forcing import Painter, StreamPainting, StreamViews
from millstream.train.distil.training_rows import Distillation, DistilSetting
from millstream.train.finetune.dataset import ClipSet
from millstream.train.finetune.recipe import TuningRecipe
from millstream.train.finetune.roles import Role
from millstream.train.options import (
    ConsistencyOptions,
    DMDOptions,
    MatchingOptions,
    MethodOptions,
    ODEOptions,
    SelfForcingOptions,
)
from millstream.train.parallel.groups import TrainingGroups, create_training_groups
from millstream.train.parallel.learner import ModuleLearner, make_learner
from millstream.train.parallel.predictor import Predictor, frozen_predictor
from millstream.train.parallel.task import TrainingTask

TextOf = Callable[[Sequence[int]], Tensor]
"""Embeds the prompts of these clips, or these prompts, by number [B, S, E]."""


class Load(Protocol):
    def __call__(self, role: Role, dtype: torch.dtype | None = None) -> CausalDiT:
        """A role's DiT, as it begins; in another dtype than it learns in, if so asked."""


def setting_of(
    recipe: TuningRecipe, clips: ClipSet, task: TrainingTask, numbers: range, device: torch.device
) -> DistilSetting:
    return DistilSetting(
        config=task.dit.config,
        latent_size=task.latent_size,
        latent_frames=clips.card.latent_frames,
        levels=recipe.levels,
        numbers=numbers,
        batch=recipe.batch,
        no_prompt_SE=clips.no_prompt_SE,
        paints_in={"bf16": torch.bfloat16, "fp16": torch.float16}.get(recipe.precision, torch.float32),
        device=device,
    )


def make_distillation(
    recipe: TuningRecipe,
    setting: DistilSetting,
    task: TrainingTask,
    learner: ModuleLearner,
    clips: ClipSet,
    load: Load,
    placement: PlacedRoles,
) -> Distillation:
    """`task` is the learner's, who is the student, or on the judges' own ranks the critic."""
    options = recipe.method_options

    def painter() -> Painter:
        dit = load("student", setting.paints_in)
        bring(dit.parameters())
        adapted = any(isinstance(module, LoRALinear) for module in dit.modules())
        return Painter(dit, setting.paints_in, is_fast=setting.device.type == "cuda" and not adapted)

    def text_of(numbers: Sequence[int]) -> Tensor:
        return torch.stack([clips[number].text_SE for number in numbers]).to(setting.device)

    if placement.exchange is not None:
        assert isinstance(options, MatchingOptions), f"{recipe.method} has no judges"
        if placement.learns == "critic":
            judges = Judges(_teacher(recipe, task, load), learner, setting.no_prompt_SE)
            views = _views(setting, options)
            return JudgesApart(judges, placement.exchange, views, options)
        painting = painting_of(options, setting, learner, painter, text_of)
        return MatchingDistillation(
            learner, RemoteJudges(placement.exchange, painting.views), painting, setting, options
        )
    teacher = _teacher(recipe, task, load)
    return distillation_of(
        options, setting, learner, teacher, lambda: _critic(recipe, task, load), painter, text_of
    )


def distillation_of(
    options: MethodOptions,
    setting: DistilSetting,
    student: ModuleLearner,
    teacher: Predictor,
    critic: Callable[[], ModuleLearner],
    painter: Callable[[], Painter],
    text_of: TextOf,
) -> Distillation:
    """The method of these options, with all roles on the same ranks. A critic and a painter are made where it
    has one."""
    match options:
        case ODEOptions():
            return ODEDistillation(student, teacher, setting, options)
        case ConsistencyOptions():
            return ConsistencyDistillation(student, teacher, setting, options)
        case MatchingOptions():
            judges = Judges(teacher, critic(), setting.no_prompt_SE)
            painting = painting_of(options, setting, student, painter, text_of)
            return MatchingDistillation(student, judges, painting, setting, options)
        case _:
            raise AssertionError(f"{type(options).__name__} are of no method with a teacher")


def painting_of(
    options: MatchingOptions,
    setting: DistilSetting,
    student: ModuleLearner,
    painter: Callable[[], Painter],
    text_of: TextOf,
) -> Painting:
    match options:
        case DMDOptions():
            if setting.latent_frames < options.window:
                raise ConfigError(
                    f"clips of {setting.latent_frames} latent frames do not fill a window of "
                    f"{options.window}; set window, or "
                    "prepare longer ones"
                )
            return ClipPainting(student.predictor, setting, options)
        case SelfForcingOptions():
            return StreamPainting(painter(), student, text_of, setting, options)
        case _:
            raise AssertionError(f"no painting for {type(options)}")


def _views(setting: DistilSetting, options: MatchingOptions) -> list[StreamView]:
    """As the student's ranks have them."""
    if isinstance(options, DMDOptions):
        return clip_views(setting, options)
    assert isinstance(options, SelfForcingOptions), f"no judges for {type(options)}"
    return StreamViews(setting.config, setting.latent_size, setting.device, options).all()


def _teacher(recipe: TuningRecipe, task: TrainingTask, load: Load) -> Predictor:
    dit = load("teacher")
    plan = recipe.plan_of("teacher")
    return frozen_predictor(dit, task.sequence, plan, _groups(recipe, "teacher", task), recipe.precision)


def _critic(recipe: TuningRecipe, task: TrainingTask, load: Load) -> ModuleLearner:
    critic = make_learner(
        TrainingTask(
            dit=load("critic"),
            sequence=task.sequence,
            latent_size=task.latent_size,
            loss=task.loss,
            plan=recipe.plan_of("critic"),
            groups=_groups(recipe, "critic", task),
            options=replace(recipe.critic_options, compile=task.options.compile),
        )
    )
    assert isinstance(critic, ModuleLearner), f"a critic is called by itself, got {type(critic)}"
    return critic


def _groups(recipe: TuningRecipe, role: Role, task: TrainingTask) -> TrainingGroups:
    """The student's, where it is shared out as that is."""
    plan = recipe.plan_of(role)
    return (
        task.groups if plan == task.plan else create_training_groups(plan, next(task.dit.parameters()).device)
    )
