"""Recipe of a run of tuning by reward: one TOML file, read and checked before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from millstream.core.config import BrookVAEConfig, ModelSpec, StreamConfig, pixel_frames
from millstream.core.errors import ConfigError
from millstream.core.files import file_digest
from millstream.models.weights.parts import Layout
from millstream.train.evaluate.classifier import FRAMES, JUDGE
from millstream.train.finetune.recipe import LoRAPlan
from millstream.train.parallel.precision import IN_BFLOAT16
from millstream.train.recipe import check_above_0, read_recipe_file
from millstream.train.reward.outside import find_function
from millstream.train.reward.rewards import BUNDLED, RewardPlan
from millstream.train.rl.algorithms import ALGORITHMS
from millstream.train.rl.learner import LearnerOptions, PolicyLearner
from millstream.train.rl.steps import StepNoise

Placement = Literal["auto", "together", "hybrid", "apart"]


class PolicyRecipe(LearnerOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str
    weights: tuple[str, ...]
    rewards: tuple[RewardPlan, ...]
    height: int = 0
    width: int = 0
    """Width of streams in pixels (`height` likewise); the model's own where it is 0."""

    prompts: tuple[str, ...] = ()
    """Prompts to learn from; if there are none, captions of Brook's world, new ones each step."""
    prompts_per_step: int = 4
    group: int = 8
    """Streams of each prompt that are compared."""
    tried: int = 1
    """Number of prompts that are streamed for each that is learnt from: those whose stream is worth least
    are."""
    chunks: int = 3
    """Chunks of each stream that are learnt from."""
    fork: tuple[int, int] = (0, 0)
    """Smallest and largest number of chunks of past that the streams of a group share; with 0 they begin
    apart."""
    shared_start: bool = True
    """Start each chunk of a group's streams from the same noise, so that they differ only by the steps they
    learn from."""
    switched: float = 0.0
    """Share of the steps in which the prompt changes at the fork."""
    eta: float = 1.0
    last_noise: float = 0.0
    learn_steps: tuple[int, ...] = ()
    """Steps that are learnt from, `StepNoise.only`; `eta` and `last_noise` are its `eta` and `last`."""

    teacher: tuple[str, ...] = ()
    """Weights of the teacher, the model of many steps that pictures are pulled to, for an algorithm that
    needs one."""
    reference: tuple[str, ...] = ()
    """Weights of the reference that the model is held to; the initial ones if none are named."""

    reward_patience: int = 8
    """Number of clips in a row without a reward that ends the run."""
    judge: str = ""
    """Path of the held-back judge, from `millstream train judge`; relative to the recipe's folder."""
    evaluate_every: int = 10
    evaluate_prompts: int = 16
    samples: int = 2
    """Number of clips that each evaluation saves."""
    part_tolerance: float = 0.02
    part_patience: int = 3
    """Number of evaluations in a row, with the reward above and the judge more than `part_tolerance` below
    what they were at its best, that ends the run."""
    placement: Placement = "auto"
    """Placement of rollouts and learning: `together` on one device; `hybrid` on it in turns, with what learns
    in host memory meanwhile; `apart` on a rank each; `auto` takes the quickest of those that fit."""
    lora: LoRAPlan | None = None
    export: Layout = "millstream"

    @property
    def rolls_in(self) -> torch.dtype:
        return torch.bfloat16 if self.precision in IN_BFLOAT16 else torch.float32

    @property
    def batch(self) -> int:
        return self.prompts_per_step * self.group

    def stream(self, spec: ModelSpec) -> StreamConfig:
        own = spec.stream
        return replace(own, height=self.height or own.height, width=self.width or own.width)

    def noise(self, spec: ModelSpec) -> StepNoise:
        levels = spec.stream.noise_levels(spec.stream.steps)
        return StepNoise(levels=levels, eta=self.eta, last=self.last_noise, only=self.learn_steps)

    @property
    def learner(self) -> type[PolicyLearner]:
        return ALGORITHMS[self.algorithm]

    def judge_path(self, folder: Path) -> Path | None:
        if not self.judge:
            return None
        return JUDGE if self.judge == BUNDLED else folder / self.judge

    def check(self, spec: ModelSpec, folder: Path) -> None:
        """Check what can be known before weights are read. `folder` is the recipe's."""
        self.check_numbers()
        self._check_algorithm()
        if self.lora is not None:
            self.lora.check(spec.dit)
        self._check_streams(spec)
        self._check_rewards(spec, folder)

    def check_numbers(self) -> None:
        super().check_numbers()
        positive = (
            "prompts_per_step", "tried", "chunks", "epochs", "minibatches", "rows_at_once", "ppo_clip",
            "critic_lr", "critic_epochs", "temperature", "evaluate_every", "evaluate_prompts",
            "reward_patience", "part_patience",
        )  # fmt: skip
        check_above_0(self, positive)

    def _check_algorithm(self) -> None:
        learner = self.learner
        if self.group < learner.least_group:
            raise ConfigError(
                f"{self.algorithm} compares the streams of a group: give group = 2 or more, got {self.group}"
            )
        if learner.needs_teacher and not self.teacher:
            raise ConfigError(f'{self.algorithm} needs a teacher: teacher = ["teacher/brook.safetensors"]')
        if self.teacher and not learner.needs_teacher:
            others = ", ".join(name for name, each in ALGORITHMS.items() if each.needs_teacher)
            raise ConfigError(f"{others} needs a teacher, and {self.algorithm} none: leave it out")
        if not learner.takes_older and (self.asynchronous or self.placement == "apart"):
            raise ConfigError(
                f"{self.algorithm} learns from rollouts of its own weights, on its own device: leave "
                "asynchronous and apart out"
            )
        if learner.follows_pixels and not any(reward.is_followed for reward in self.rewards):
            raise ConfigError(
                f'{self.algorithm} follows pixels: give a reward of kind "attributes" or "flicker"'
            )
        if self.asynchronous and self.placement == "hybrid":
            raise ConfigError(
                "hybrid takes turns on one device, and asynchronous rollouts do not: choose one of the two"
            )
        least, most = self.fork
        if not 0 <= least <= most:
            raise ConfigError(f"fork is [at least, at most] chunks, 0 or more, got {list(self.fork)}")
        if not 0 <= self.switched <= 1 or (self.switched and not most):
            raise ConfigError(
                f"switched is a share of the steps and needs fork = [1, 4] or the like, got {self.switched:g}"
            )
        if min(self.kl_coefficient, self.kl_target, self.kl_bound) < 0 or self.kl_bound < self.kl_target:
            raise ConfigError(
                "kl_coefficient, kl_target and kl_bound are 0 or more, and the bound not below the target"
            )

    def _check_streams(self, spec: ModelSpec) -> None:
        stream = self.stream(spec)
        if stream.sink or stream.context_noise or stream.kv_bias != 1 or stream.anchor != "off":
            raise ConfigError(
                f"{spec.name} streams with a sink, context noise, a bias or an anchor, which are not tuned "
                "yet"
            )
        if not self.prompts and not isinstance(spec.vae, BrookVAEConfig):
            raise ConfigError(
                f"give prompts: only Brook has a world to draw captions from, and the model is {spec.name}"
            )
        self.noise(spec)

    def _check_rewards(self, spec: ModelSpec, folder: Path) -> None:
        if not self.rewards:
            raise ConfigError(
                'give a reward: [[rewards]] with kind = "attributes", or another that docs/tuning.md lists'
            )
        frames = pixel_frames(3 if self.fork[0] else 0, self.chunks * self.stream(spec).frames_per_chunk)
        judge = self.judge_path(folder)
        looks = judge is not None or any(reward.kind == "attributes" for reward in self.rewards)
        if looks and frames < FRAMES:
            raise ConfigError(
                f"a classifier looks at {FRAMES} frames and {self.chunks} chunks have {frames}; give more "
                "chunks"
            )
        judge_digest = None if judge is None else _digest(judge)
        for reward in self.rewards:
            reward.check()
            if reward.kind == "python":
                find_function(reward.call, folder)
            if reward.kind == "switch" and not self.switched:
                raise ConfigError(
                    'a reward of kind "switch" needs steps with a switch: switched = 0.5, fork = [1, 4]'
                )
            path = reward.classifier_path
            if path is not None and _digest(folder / path) == judge_digest:
                assert judge is not None
                raise ConfigError(
                    f"{judge.name} rewards and judges; train another that is held back: millstream train "
                    "judge"
                )


def _digest(path: Path) -> str:
    if not path.is_file():
        raise ConfigError(f"there is no classifier {path}; millstream train judge makes one")
    return file_digest(path)


def read_policy_recipe(path: Path) -> PolicyRecipe:
    return read_recipe_file(path, PolicyRecipe, command="millstream tune")
