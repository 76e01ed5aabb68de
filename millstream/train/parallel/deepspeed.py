"""DeepSpeed's engine in the place of our own learners: its ZeRO stages, its optimiser, its checkpoints, under
the same loop.

An extra (`pip install millstream[deepspeed]`). What a configuration leaves open, or calls `auto`, is the
recipe's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from millstream.core.errors import ConfigError, WeightsError
from millstream.models.weights.unread import bring
from millstream.train.parallel.checkpoint import Checkpoints, Remembers, step_of
from millstream.train.parallel.learner import ModuleLearner
from millstream.train.parallel.optimisers.own import WEIGHT
from millstream.train.parallel.precision import Precision, in_precision
from millstream.train.parallel.task import FlowRows, LearntStep, MayStep, TrainingTask

AUTO = "auto"
BESIDE = "beside"


class DeepSpeedLearner(ModuleLearner):
    def __init__(self, task: TrainingTask, config: Mapping[str, Any], batch: int) -> None:
        """`batch` rows of all ranks together."""
        if not dist.is_initialized():
            raise ConfigError(
                "DeepSpeed needs ranks, even one: start it with torchrun --nproc-per-node 1 -m millstream "
                "train"
            )
        bring(task.dit.parameters())
        device = next(task.dit.parameters()).device
        os.environ.setdefault(
            "DS_ACCELERATOR", device.type
        )  # else it asks every accelerator whether it is there
        try:
            import deepspeed
        except ImportError:
            raise ConfigError(
                "DeepSpeed is not installed: pip install millstream[deepspeed] --no-build-isolation"
            ) from None
        plan = task.plan
        if not plan.has_whole_blocks or task.options.ema:
            raise ConfigError(
                "DeepSpeed shares out the batch alone: take dp for all ranks, and no pp, cp, tp or ema"
            )
        if task.options.precision == "fp8":
            raise ConfigError("DeepSpeed goes with precision = fp32, bf16 or fp16; take one of them")
        if not task.options.optimiser.is_plain:
            raise ConfigError("DeepSpeed steps by itself: put those options in its own configuration")
        task.prepare_blocks()
        super().__init__(task)
        self.loss_scale = None  # the engine has its own
        settled = _settled(config, batch, plan.dp, plan.micro_batches, task.options.grad_clip)
        learning = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        own = None if "optimizer" in settled else task.options.optimiser.adamw(learning)
        self._deepspeed = deepspeed
        try:
            self.engine, self.optimiser, _, schedule = deepspeed.initialize(
                model=self._model,
                model_parameters=learning,
                optimizer=own,
                config=settled,
                dist_init_required=False,
            )
        except (ValueError, TypeError, AssertionError, deepspeed.DeepSpeedConfigError) as error:
            raise ConfigError(
                f"DeepSpeed cannot begin with its configuration: {' '.join(str(error).split())}"
            ) from None
        self._follows_recipe = schedule is None
        reduced: dict[bool, Precision] = {
            self.engine.bfloat16_enabled(): "bf16",
            self.engine.fp16_enabled(): "fp16",
        }
        self._precision: Precision = reduced.get(True, "fp32")

    def learn(self, rows: FlowRows, may_step: MayStep = math.isfinite) -> LearntStep:
        """Take one step; DeepSpeed clips and steps by itself. At stage 0 `may_step` is given the norm before
        the step. From stage 1 on the norm is known only inside the step: DeepSpeed skips a step whose
        gradients are not finite, and `may_step` is given the norms of the others afterwards."""
        losses = list[Tensor]()
        norm = None
        taken = True
        for part in rows.split(self.plan.micro_batches):
            with in_precision(self._precision, rows.target_BFCYX.device):
                flow = self.engine(*part[:3])
            loss = self._loss(flow.float(), *part.wanted)
            self.engine.backward(loss)
            norm = self._norm_of_whole_gradients()
            taken = norm is None or may_step(norm)
            if taken:
                self.engine.step()
            else:
                self.engine.zero_grad()
                self.engine.micro_steps += 1  # as its own step does
            losses.append(loss.detach())
        if norm is None:
            said = self.engine.get_global_grad_norm()
            norm = float("nan" if said is None else said)
            taken = may_step(norm) and bool(self.engine.was_step_applied())
        mean = self.groups.batch.sum(torch.stack(losses).mean(), "loss") / self.groups.batch.size
        return LearntStep(mean, torch.tensor(norm), taken)

    def set_rate(self, lr: float) -> None:
        """Unless the configuration has a schedule of its own."""
        if self._follows_recipe:
            super().set_rate(lr)

    def weights(self, kind: str = WEIGHT) -> dict[str, Tensor]:
        assert kind == WEIGHT, f"DeepSpeed keeps no {kind}"
        return {name: self._whole(parameter) for name, parameter in self._named()}

    def _whole(self, parameter: torch.nn.Parameter) -> Tensor:
        """Return the whole parameter in float32, collected from the ranks that hold it."""
        if self.engine.zero_optimization_stage() == 0:
            return parameter.detach().float().clone()
        found: Tensor = self._deepspeed.utils.safe_get_full_fp32_param(parameter)
        return found.detach().clone()

    def _norm_of_whole_gradients(self) -> float | None:
        """Where every rank has them, and before a step: DeepSpeed then says none."""
        if self.engine.zero_optimization_stage() > 0 or not self.engine.is_gradient_accumulation_boundary():
            return None
        squares = [
            parameter.grad.square().sum() for _, parameter in self._named() if parameter.grad is not None
        ]
        return float(torch.stack(squares).sum().sqrt())

    def _no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()  # the engine knows which micro-batch is the last

    def _finish(self) -> None:
        """The engine has waited."""


class DeepSpeedCheckpoints(Checkpoints):
    """In DeepSpeed's own format: for the same configuration on as many ranks."""

    def __init__(
        self,
        folder: Path,
        learner: DeepSpeedLearner,
        *,
        keep: int,
        beside: Mapping[str, Remembers] | None = None,
    ) -> None:
        self._engine = learner.engine
        super().__init__(folder, learner, keep=keep, beside=beside)

    def _write(self, path: Path) -> Future[Any] | None:
        beside = {name: each.state() for name, each in self._beside.items()}
        how: dict[str, Any] = dict(
            save_latest=False, exclude_frozen_parameters=True, client_state={BESIDE: beside}
        )
        self._engine.save_checkpoint(str(path.parent), tag=path.name, **how)
        return None

    def load(self, path: Path) -> int:
        found, kept = self._engine.load_checkpoint(str(path.parent), tag=path.name, load_module_strict=False)
        if found is None:
            raise WeightsError(
                f"{path} cannot be read by DeepSpeed: it is half written, or of another configuration; "
                "remove it"
            )
        beside = (kept or {}).get(BESIDE, {})
        for name in self._beside.keys() & beside.keys():
            self._beside[name].load_state(beside[name])
        return step_of(path)


def _settled(
    config: Mapping[str, Any], batch: int, ranks: int, micro_batches: int, clip: float
) -> dict[str, Any]:
    """The configuration with what the recipe decides filled in; what contradicts it is refused."""
    decided = {
        "train_batch_size": batch,
        "train_micro_batch_size_per_gpu": batch // ranks // micro_batches,
        "gradient_accumulation_steps": micro_batches,
    }
    for name, value in decided.items():
        if config.get(name, AUTO) not in (AUTO, value):
            raise ConfigError(
                f"{name} is {config[name]} in DeepSpeed's configuration and {value} by the recipe; make it "
                "auto"
            )
    rest = {name: value for name, value in config.items() if value != AUTO}
    ours = {
        "gradient_clipping": clip,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    return {**ours, **rest, **decided}
