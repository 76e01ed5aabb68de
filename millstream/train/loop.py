"""A stage of Brook's training as a run, resumable to the same bits from any checkpoint and after Ctrl-C.

Knows neither models nor data: a `Training` takes the steps.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from millstream.core.errors import MillstreamError, WeightsError
from millstream.train.checkpoint import read_checkpoint, save_checkpoint
from millstream.train.interrupt import Interrupt, Stopped
from millstream.train.optimise import Average, Optimisers, learning_rate
from millstream.train.parallel.replicas import Replicas
from millstream.train.plan import StagePlan
from millstream.train.run import TrainingRun
from millstream.train.share import ALONE, BatchShare

LOG_EVERY = 25


@dataclass(frozen=True, slots=True)
class LossTurn:
    """One module and the loss it follows."""

    name: str
    module: nn.Module
    losses: Callable[[torch.Generator], dict[str, Tensor]]
    """Named terms for one batch; their sum is minimised. All randomness comes from the generator."""


class Method(Protocol):
    """Method by which a stage learns by itself. The first turn's module is what the stage is for: it is the
    one that is averaged."""

    @property
    def turns(self) -> tuple[LossTurn, ...]: ...


class Diverged(MillstreamError):
    """A loss that is not a number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    step: int
    total: int
    losses: dict[str, float]
    """Losses and norms of gradients by name."""
    lr: float
    seconds: float
    """Seconds since the stage (or its continuation) began."""


class Training(Protocol):
    """Training of a stage. Ranks that share a batch call it alike."""

    def step(self, step: int) -> dict[str, Tensor]:
        """Change weights by one step; return losses and norms of gradients by name."""

    def state(self) -> dict[str, Any]:
        """All that training goes on from, on every rank: the first one saves it."""

    def load_state(self, state: Mapping[str, Any]) -> None: ...

    def averaged(self) -> nn.Module:
        """The module that the stage is for, with its averaged weights."""


class TurnTraining:
    """Modules that each follow a loss of their own, with gradients that are those of all ranks."""

    def __init__(
        self, method: Method, stage: StagePlan, *, seed: int, device: torch.device, share: BatchShare = ALONE
    ) -> None:
        self._turns = method.turns
        self._stage = stage
        self._seed = seed
        self._device = device
        self._modules = {turn.name: turn.module for turn in method.turns}
        assert len(self._modules) == len(method.turns), (
            f"two turns have one name: {[turn.name for turn in method.turns]}"
        )
        self._optimisers = {turn.name: Optimisers(turn.module, stage) for turn in method.turns}
        self._copies = {
            turn.name: Replicas(turn.module, share.group)
            for turn in method.turns
            if share.group.handle is not None
        }
        self._average = Average(method.turns[0].module, stage.ema)

    def step(self, step: int) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        for turn in self._turns:
            found = turn.losses(
                keyed_generator(self._device, self._seed, f"{self._stage.name}.{turn.name}", step)
            )
            torch.stack(list(found.values())).sum().backward()
            if self._copies:
                self._copies[turn.name].finish()
            found["norm" if turn is self._turns[0] else f"{turn.name} norm"] = self._optimisers[
                turn.name
            ].step(step)
            losses |= found
        self._average.update(self._turns[0].module, step)
        return losses

    def state(self) -> dict[str, Any]:
        return {
            "weights": {name: module.state_dict() for name, module in self._modules.items()},
            "average": self._average.module.state_dict(),
            "optimisers": {name: each.state_dict() for name, each in self._optimisers.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        for name, module in self._modules.items():
            module.load_state_dict(state["weights"][name])
            self._optimisers[name].load_state_dict(state["optimisers"][name])
        self._average.module.load_state_dict(state["average"])

    def averaged(self) -> nn.Module:
        return self._average.module


class StageRun(TrainingRun[StepReport]):
    """A stage of Brook's."""

    def __init__(
        self,
        stage: StagePlan,
        training: Training,
        folder: Path,
        *,
        device: torch.device,
        checkpoint_every: int,
        at_checkpoint: Callable[[int, nn.Module], None],
        stop_after: int | None,
        share: BatchShare,
    ) -> None:
        self.steps = stage.steps if stop_after is None else min(stage.steps, stop_after)
        self.checkpoint_every = checkpoint_every
        self.curve = folder / f"{stage.name}.jsonl"
        self.is_first = share.is_first
        self.was_asked = False
        self._stage = stage
        self._training = training
        self._path = folder / f"{stage.name}.pt"
        self._device = device
        self._at_checkpoint = at_checkpoint
        self._share = share
        self._losses = dict[str, Tensor]()

    def load(self) -> int:
        self._begun = time.perf_counter()
        if not self._path.exists():
            return 0
        state = read_checkpoint(self._path)
        try:
            self._training.load_state(state)
        except KeyError as error:
            raise WeightsError(
                f"{self._path} has no {error}: an older version wrote it; remove it to start the stage over"
            ) from None
        return int(state["step"])

    def take_step(self, step: int) -> int:
        self._losses = self._training.step(step)
        return step + 1

    def report(self, step: int) -> tuple[StepReport, dict[str, Any]] | None:
        number = step - 1
        if number % LOG_EVERY and step != self.steps:
            return None
        found = self._share.mean(torch.stack([loss.float() for loss in self._losses.values()]))
        values = {name: round(value, 6) for name, value in zip(self._losses, found.tolist(), strict=True)}
        if any(value != value for value in values.values()):
            raise Diverged(
                f"stage {self._stage.name} diverged at step {number} ({values}); lower its lr or its "
                "grad_clip"
            )
        seconds = time.perf_counter() - self._begun
        lr = learning_rate(self._stage, number)
        report = StepReport(step=number, total=self._stage.steps, losses=values, lr=lr, seconds=seconds)
        return report, {"step": number, "seconds": round(seconds, 2), **values}

    def save(self, step: int) -> None:
        state = self._training.state()
        if self.is_first:
            save_checkpoint(self._path, step, state)

    def show(self, step: int) -> None:
        if self.is_first:
            self._at_checkpoint(step, self._training.averaged())

    def is_asked(self, asked: bool) -> bool:
        self.was_asked = self._share.any(asked, self._device)
        return self.was_asked


def train_stage(
    stage: StagePlan,
    training: Training,
    folder: Path,
    *,
    device: torch.device,
    report: Callable[[StepReport], None],
    checkpoint_every: int = 500,
    at_checkpoint: Callable[[int, nn.Module], None] = lambda step, average: None,
    on_asked: Callable[[], None] = lambda: None,
    stop_after: int | None = None,
    share: BatchShare = ALONE,
) -> nn.Module:
    """Train to the stage's end (or `stop_after` steps) and return the averaged module, shown at every
    checkpoint.

    Asked to stop, it calls `on_asked` in the signal's handler, ends its step, saves and raises `Stopped`.
    On every rank of those that share the batches: they learn as one, and the first writes and reports."""
    run = StageRun(
        stage,
        training,
        folder,
        device=device,
        checkpoint_every=checkpoint_every,
        at_checkpoint=at_checkpoint,
        stop_after=stop_after,
        share=share,
    )
    with Interrupt(on_asked) as interrupt:
        run.run(report, lambda: interrupt.asked)
    if run.was_asked:  # at a last step too: another stage may come
        raise Stopped
    return training.averaged()


def keyed_generator(device: torch.device, *key: str | int) -> torch.Generator:
    """Fresh randomness for what the key names, the same however and by whom it was reached."""
    name = hashlib.blake2b(":".join(map(str, key)).encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(name, "little") >> 1)
