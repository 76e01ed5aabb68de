"""A run of tuning by reward as plain data: one TOML file, read and checked before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from millstream.core.config import BrookVAEConfig, ModelSpec, StreamConfig, pixel_frames
from millstream.core.errors import ConfigError
from millstream.core.files import file_digest
from millstream.models.weights.parts import Layout
from millstream.parallel.training.precision import IN_BFLOAT16
from millstream.trainer.evaluate.classifier import FRAMES, JUDGE
from millstream.trainer.policy.control import DivergenceControl
from millstream.trainer.policy.learner import LearnerOptions
from millstream.trainer.policy.steps import StepNoise
from millstream.trainer.recipe_file import read_recipe_file
from millstream.trainer.reward.outside import find_function
from millstream.trainer.reward.rewards import BUNDLED, RewardPlan
from millstream.trainer.tuning.recipe import LoRAPlan

Placement = Literal["auto", "together", "hybrid", "apart"]


class PolicyRecipe(LearnerOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str
    weights: tuple[str, ...]
    rewards: tuple[RewardPlan, ...]
    steps: int
    seed: int = 0
    height: int = 0
    width: int = 0
    """Of streams, in pixels; the model's own where it is 0."""

    prompts: tuple[str, ...] = ()
    """To learn from; captions of Brook's world, new ones each step, if there are none."""
    prompts_per_step: int = 4
    group: int = 8
    """Streams of each prompt that are compared."""
    tried: int = 1
    """Prompts that are streamed for each that is learnt from: those whose stream is worth least are."""
    chunks: int = 3
    """Of each stream, that are learnt from."""
    fork: tuple[int, int] = (0, 0)
    """Streams of a group share a past of so many chunks, at least and at most; with 0 they begin apart."""
    shared_start: bool = True
    """Whether the streams of a group start each chunk from the same noise: what then differs is what they learn from."""
    switched: float = 0.0
    """Share of the steps in which the prompt changes at the fork."""
    eta: float = 1.0
    last_noise: float = 0.0
    learn_steps: tuple[int, ...] = ()
    """See `StepNoise`."""

    schedule: Literal["cosine", "constant"] = "constant"
    cosine_over: int = 0
    warm_up: int = 5

    average: float = 0.0
    """What a moving average of the weights keeps at a step; it is what is evaluated and exported then. 0 averages nothing."""

    kl_coefficient: float = 0.01
    kl_target: float = 5.0
    """Nats a chunk, that the coefficient follows; 0 and a coefficient of 0 hold the model to nothing."""
    kl_bound: float = 50.0
    teacher: tuple[str, ...] = ()
    """Of `matching`: weights of the model of many steps that pictures are pulled to."""
    reference: tuple[str, ...] = ()
    """Weights that the model is held to; as it begins, if none are named."""

    reward_patience: int = 8
    """Clips without a reward, one after the other, that end the run."""
    judge: str = ""
    """The held-back one, from `millstream train judge`; from where the recipe lies."""
    evaluate_every: int = 10
    evaluate_prompts: int = 16
    samples: int = 2
    """Clips that each evaluation leaves."""
    part_tolerance: float = 0.02
    part_patience: int = 3
    """The run ends when, for so many evaluations, the reward is above and the judge so far below what they were at its best."""
    checkpoint_every: int = 10
    placement: Placement = "auto"
    """Where rollouts and learning are: `together` on one device, `hybrid` on it in turns with what learns in host memory
    meanwhile, `apart` on a rank each; `auto` takes the quickest of those that fit."""
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
    def control(self) -> DivergenceControl:
        return DivergenceControl(coefficient=self.kl_coefficient, target=self.kl_target, bound=self.kl_bound)

    def judge_path(self, folder: Path) -> Path | None:
        if not self.judge:
            return None
        return JUDGE if self.judge == BUNDLED else folder / self.judge

    def check(self, spec: ModelSpec, folder: Path) -> None:
        """What can be known before weights are read. `folder` is where the recipe lies."""
        self._check_numbers()
        if self.lora is not None:
            self.lora.check(spec.dit)
        self._check_streams(spec)
        self._check_rewards(spec, folder)

    def _check_numbers(self) -> None:
        positive = (
            "steps", "prompts_per_step", "tried", "chunks", "epochs", "minibatches", "rows_at_once", "lr", "clip", "most_norm",
            "critic_lr", "critic_epochs", "temperature", "evaluate_every", "evaluate_prompts", "checkpoint_every",
            "reward_patience", "part_patience",
        )  # fmt: skip
        for name in positive:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")
        if self.seed < 0:
            raise ConfigError(f"seed must be 0 or more, got {self.seed}")
        if self.group < (1 if self.algorithm in ("ppo", "gradient") else 2):
            raise ConfigError(f"{self.algorithm} compares the streams of a group: give group = 2 or more, got {self.group}")
        if (self.algorithm == "matching") != bool(self.teacher):
            raise ConfigError(
                'algorithm = "matching" needs a teacher, and no other does: teacher = ["teacher/brook.safetensors"]'
            )
        if self.algorithm in ("gradient", "matching") and (self.asynchronous or self.placement == "apart"):
            raise ConfigError(
                f"{self.algorithm} learns from rollouts of its own weights, on its own device: leave asynchronous and apart out"
            )
        if self.algorithm == "gradient" and not any(reward.is_followed for reward in self.rewards):
            raise ConfigError('algorithm = "gradient" follows pixels: give a reward of kind "attributes" or "flicker"')
        if self.asynchronous and self.placement == "hybrid":
            raise ConfigError("hybrid takes turns on one device, and asynchronous rollouts do not: choose one of the two")
        if not 0 <= self.average < 1:
            raise ConfigError(f"average is 0 to below 1, what is kept of it at a step, got {self.average:g}")
        least, most = self.fork
        if not 0 <= least <= most:
            raise ConfigError(f"fork is [at least, at most] chunks, 0 or more, got {list(self.fork)}")
        if not 0 <= self.switched <= 1 or (self.switched and not most):
            raise ConfigError(f"switched is a share of the steps and needs fork = [1, 4] or the like, got {self.switched:g}")
        if min(self.kl_coefficient, self.kl_target, self.kl_bound) < 0 or self.kl_bound < self.kl_target:
            raise ConfigError("kl_coefficient, kl_target and kl_bound are 0 or more, and the bound not below the target")

    def _check_streams(self, spec: ModelSpec) -> None:
        stream = self.stream(spec)
        if stream.sink or stream.context_noise or stream.kv_bias != 1 or stream.anchor != "off":
            raise ConfigError(f"{spec.name} streams with a sink, context noise, a bias or an anchor, which are not tuned yet")
        if not self.prompts and not isinstance(spec.vae, BrookVAEConfig):
            raise ConfigError(f"give prompts: only Brook has a world to draw captions from, and the model is {spec.name}")
        self.noise(spec)

    def _check_rewards(self, spec: ModelSpec, folder: Path) -> None:
        if not self.rewards:
            raise ConfigError('give a reward: [[rewards]] with kind = "attributes", or another that docs/tuning.md lists')
        frames = pixel_frames(3 if self.fork[0] else 0, self.chunks * self.stream(spec).frames_per_chunk)
        judge = self.judge_path(folder)
        looks = judge is not None or any(reward.kind == "attributes" for reward in self.rewards)
        if looks and frames < FRAMES:
            raise ConfigError(f"a classifier looks at {FRAMES} frames and {self.chunks} chunks have {frames}; give more chunks")
        judge_digest = None if judge is None else _digest(judge)
        for reward in self.rewards:
            reward.check()
            if reward.kind == "python":
                find_function(reward.call, folder)
            if reward.kind == "switch" and not self.switched:
                raise ConfigError('a reward of kind "switch" needs steps with a switch: switched = 0.5, fork = [1, 4]')
            path = reward.classifier_path
            if path is not None and _digest(folder / path) == judge_digest:
                assert judge is not None
                raise ConfigError(f"{judge.name} rewards and judges; train another that is held back: millstream train judge")


def _digest(path: Path) -> str:
    if not path.is_file():
        raise ConfigError(f"there is no classifier {path}; millstream train judge makes one")
    return file_digest(path)


def read_policy_recipe(path: Path) -> PolicyRecipe:
    return read_recipe_file(path, PolicyRecipe, command="millstream tune")
