"""A fine-tuning run as plain data: one TOML file, read and checked before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from millstream.core.config import DiTConfig, Recompute
from millstream.core.errors import ConfigError
from millstream.core.schedule import FULL
from millstream.models.adapters import AdaptedPart
from millstream.parallel.training.learner import StepOptions
from millstream.parallel.training.precision import Precision
from millstream.trainer.tuning.roles import MethodRecipe


class LoRAPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rank: int = 16
    alpha: float = 16.0
    """What is learnt counts alpha / rank times."""
    parts: tuple[AdaptedPart, ...] = ("self_attn", "cross_attn", "ffn")
    """Of each block."""


class TuningRecipe(MethodRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    data: str
    """A folder made by `millstream train data prepare`; from where the recipe lies."""
    steps: int
    schedule: Literal["cosine", "constant"] = "cosine"
    cosine_over: int = 0
    warm_up: int = 20
    seed: int = 0
    drop: float = 0.1
    """Share of the prompts that are left out, so that guidance has something to differ from."""
    noise_from: float = 0.0
    noise_to: float = 1000.0
    """Noise levels that are learnt. A model of few steps makes its picture at the highest and would learn a blur there: leave
    those out (`noise_to = 600`) to change how things look and keep what they are."""
    precision: Precision = "fp32"
    recompute: Recompute = "none"
    clip: float = 1.0
    weight_decay: float = 0.01
    ema: float = 0.0
    spike: float = 0.0
    """Steps whose gradients are so many times the usual are left out; 0 for those that are no numbers alone."""
    checkpoint_every: int = 100
    keep: int = 3
    lora: LoRAPlan | None = None
    """Without it, every weight of the DiT learns."""

    @property
    def options(self) -> StepOptions:
        return StepOptions(
            lr=self.lr,
            weight_decay=self.weight_decay,
            clip=self.clip,
            precision=self.precision,
            recompute=self.recompute,
            ema=self.ema,
        )

    @property
    def critic_options(self) -> StepOptions:
        """A critic learns as the student does, at a rate of its own; nobody keeps its average."""
        return replace(self.options, lr=self.critic.lr or self.lr, ema=0.0)

    def check(self, dit: DiTConfig) -> None:
        """What can be known before weights and clips are read."""
        positive = ("steps", "batch", "checkpoint_every", "keep", "lr", "clip")
        for name in positive:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")
        for name, most in (("drop", 1.0), ("ema", 1.0)):
            if not 0 <= getattr(self, name) < most:
                raise ConfigError(f"{name} must be from 0 to less than {most:g}, got {getattr(self, name)}")
        if not 0 <= self.noise_from < self.noise_to <= FULL:
            raise ConfigError(
                f"noise_from must be below noise_to, both 0 to 1000, got {self.noise_from:g} and {self.noise_to:g}"
            )
        if self.spike and self.spike <= 1:
            raise ConfigError(f"spike must be above 1, or 0 for none, got {self.spike:g}")
        if self.lora is not None and (self.lora.rank < 1 or not self.lora.parts):
            raise ConfigError(f"[lora] needs a rank of 1 or more and parts, got {self.lora.rank} and {list(self.lora.parts)}")
        if self.lora is not None and any(self.plan_of(role).tp > 1 for role in self.roles if role != "teacher"):
            raise ConfigError("a LoRA is trained with tp = 1: its factors are too thin to share out; take dp, cp or pp")
        self.plan.check(dit, self.batch)
        if self.method != "flow" and (self.noise_from, self.noise_to) != (0.0, FULL):
            raise ConfigError(f'noise_from and noise_to are for method = "flow"; {self.method!r} chooses its levels itself')
        self.check_method(dit)


def read_recipe(path: Path) -> TuningRecipe:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=TuningRecipe)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; name a recipe, or see millstream train --help") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"{path} is not a recipe: {error}") from None
