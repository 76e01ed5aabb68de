"""A fine-tuning run as plain data: one TOML file, read and checked before anything is loaded."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from millstream.core.config import DiTConfig, Recompute
from millstream.core.errors import ConfigError
from millstream.core.schedule import FULL
from millstream.models.adapters import AdaptedPart
from millstream.models.weights.parts import Layout
from millstream.train.finetune.roles import MethodRecipe
from millstream.train.parallel.optimisers.choice import OptimiserChoice, OptimiserName
from millstream.train.parallel.precision import IN_BFLOAT16, Precision
from millstream.train.parallel.task import StepOptions
from millstream.train.recipe import check_above_0, check_from_0, check_share, read_recipe_file


class LoRAPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rank: int = 16
    alpha: float = 16.0
    """Scale of the adapters: they count alpha / rank times."""
    parts: tuple[AdaptedPart, ...] = ("self_attn", "cross_attn", "ffn")
    """Parts of each block that have adapters."""

    def check(self, dit: DiTConfig) -> None:
        if not 1 <= self.rank <= dit.width or not self.parts or not 0 < self.alpha < math.inf:
            raise ConfigError(
                f"[lora] needs a rank of 1 to {dit.width} (the model's width), an alpha above 0 and parts, "
                f"got {self.rank}, "
                f"{self.alpha:g} and {list(self.parts)}"
            )


class TuningRecipe(MethodRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    data: str
    """Folder made by `millstream train data prepare`; relative to the recipe's folder."""
    drop: float = 0.1
    """Share of the prompts that are left out, so that guidance has something to differ from."""
    noise_from: float = 0.0
    noise_to: float = 1000.0
    """Noise levels that are learnt. A model of few steps makes its picture at the highest and would learn a
    blur there: leave those out (`noise_to = 600`) to change how things look and keep what they are."""
    precision: Precision = "fp32"
    recompute: Recompute = "none"
    optimiser: OptimiserName = "adamw"
    state_bits: Literal[8, 32] = 32
    """Bits of each of AdamW's two moments."""
    masters: bool = False
    """Keep weights and gradients in bfloat16, and float32 weights with AdamW's moments; with precision =
    "bf16"."""
    offload: Literal["none", "optimiser"] = "none"
    """Part of the state in host memory: with `optimiser`, AdamW's moments and float32 weights."""
    compile: Literal["auto", "off", "inductor", "aot_eager", "eager"] = "auto"
    """Backend that compiles the blocks, once for all of them; `auto` is inductor on a GPU for `flow`. Not
    with tp, cp or pp."""
    spike: float = 0.0
    """Factor over the usual norm of gradients above which a step is left out; with 0 only steps are left out
    whose gradients are not finite."""
    keep: int = 3
    """Number of checkpoints that are kept."""
    export: Layout = "millstream"
    """Layout of a tuned DiT: `diffusers` and `original` are for other programs, and read here too."""
    samples: int = 0
    """Number of streams that are made at every checkpoint with the current weights, and saved as clips in
    `samples/`."""
    sample_prompts: tuple[str, ...] = ()
    """Prompts of those streams; captions of the data if there are none here."""
    wandb: str = ""
    """Project of Weights & Biases, if that is installed."""
    lora: LoRAPlan | None = None
    """Adapters that learn; without them, every weight of the DiT learns."""
    actions: bool = False
    """Learn what keys and the mouse do, from clips that were prepared with actions: a small network learns
    whole, beside the DiT or its LoRA, and is saved beside it. A model without it begins with an idle one."""

    @property
    def options(self) -> StepOptions:
        return StepOptions(
            optimiser=OptimiserChoice(
                name=self.optimiser,
                lr=self.lr,
                weight_decay=self.weight_decay,
                state_bits=self.state_bits,
                masters=self.masters,
                offload=self.offload == "optimiser",
            ),
            grad_clip=self.grad_clip,
            precision=self.precision,
            recompute=self.recompute,
            ema=self.ema,
        )

    @property
    def critic_options(self) -> StepOptions:
        """Options of a critic, which learns as the student does, at a rate of its own; its average is not
        kept."""
        options = self.options
        return replace(options, optimiser=replace(options.optimiser, lr=self.critic.lr or self.lr), ema=0.0)

    @property
    def learns_in(self) -> Precision:
        """Precision in which weights that learn are kept on the device."""
        apart = (self.masters or self.offload == "optimiser") and self.plan.data not in ("fsdp", "hsdp")
        return "bf16" if apart and self.precision in IN_BFLOAT16 else "fp32"

    def backend(self, device: str) -> str:
        """Return the backend that compiles the blocks on a device; empty if none does."""
        if self.compile == "auto":
            is_known_to_pay = device == "cuda" and self.method == "flow" and not self._shares_blocks
            return "inductor" if is_known_to_pay else ""
        return "" if self.compile == "off" else self.compile

    @property
    def _shares_blocks(self) -> bool:
        return not all(self.plan_of(role).has_whole_blocks for role in self.roles)

    @property
    def shows_streams(self) -> bool:
        return self.samples > 0 or len(self.sample_prompts) > 0

    def check(self, dit: DiTConfig) -> None:
        """Check what can be known before weights and clips are read."""
        self.check_numbers()
        if not 0 <= self.noise_from < self.noise_to <= FULL:
            raise ConfigError(
                f"noise_from must be below noise_to, both 0 to 1000, got {self.noise_from:g} and "
                f"{self.noise_to:g}"
            )
        if self.optimiser != "adamw" and (self.state_bits != 32 or self.offload != "none" or self.masters):
            raise ConfigError(
                f"state_bits, masters and offload are for optimiser = adamw, got {self.optimiser}"
            )
        if self.masters and (self.learns_in != "bf16" or self.lora is not None):
            raise ConfigError(
                'masters = true is for precision = "bf16", and not for fsdp, hsdp or a LoRA, in float32'
            )
        if self.spike and self.spike <= 1:
            raise ConfigError(f"spike must be above 1, or 0 for none, got {self.spike:g}")
        if self.lora is not None:
            self.lora.check(dit)
        if self._shares_blocks and self.backend("cpu"):
            raise ConfigError(
                f"blocks that tp, cp or pp shares out are not compiled; leave out compile = {self.compile!r}"
            )
        if self.actions and (self.method != "flow" or self.plan.pp > 1):
            raise ConfigError(
                'actions = true goes with method = "flow" and pp = 1; take fsdp or tp instead of pp'
            )
        self.plan.check(dit, self.batch)
        if self.method != "flow" and (self.noise_from, self.noise_to) != (0.0, FULL):
            raise ConfigError(
                f'noise_from and noise_to are for method = "flow"; {self.method!r} chooses its levels itself'
            )
        self.check_method(dit)

    def check_numbers(self) -> None:
        super().check_numbers()
        check_above_0(self, ("batch", "keep"))
        check_from_0(self, ("samples", "frames_per_chunk", "window", "shift", "spike"))
        check_share(self, ("drop",))


def read_recipe(path: Path) -> TuningRecipe:
    return read_recipe_file(path, TuningRecipe, command="millstream train")
