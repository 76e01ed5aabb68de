"""The training loop: one stage of one method, resumable to the same bits from any checkpoint and after Ctrl-C.

Knows neither models nor data: a method gives losses for a step, the loop turns them into weights, whose gradients are those of
all ranks.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from millstream.core.errors import MillstreamError
from millstream.parallel.training.replicas import Replicas
from millstream.trainer.checkpoint import load_checkpoint, save_checkpoint
from millstream.trainer.curve import cut_curve
from millstream.trainer.interrupt import Interrupt, Stopped
from millstream.trainer.optimise import Average, Optimisers, learning_rate
from millstream.trainer.plan import StagePlan
from millstream.trainer.share import ALONE, BatchShare

LOG_EVERY = 25


@dataclass(frozen=True, slots=True)
class LossTurn:
    """One module and the loss it follows. Most methods have one; adversarial ones have a critic's besides."""

    name: str
    module: nn.Module
    losses: Callable[[torch.Generator], dict[str, Tensor]]
    """Named terms for one batch; their sum is minimised. All randomness comes from the generator."""
    every: int = 1
    """Taken at every so many steps."""
    after: int = 0
    """Not before this step: what it learns from may need others to learn first."""
    carries: Mapping[str, Tensor] = field(default_factory=dict)
    """What outlives a step beside weights, changed in place; saved with them."""


class Method(Protocol):
    """How a stage learns. The first turn's module is what the stage is for: it is the one that is averaged."""

    @property
    def turns(self) -> tuple[LossTurn, ...]: ...


class Diverged(MillstreamError):
    """A loss that is not a number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    step: int
    total: int
    losses: dict[str, float]
    """And the norms of gradients."""
    lr: float
    seconds: float
    """Since the stage (or its continuation) began."""


def train_stage(
    stage: StagePlan,
    method: Method,
    folder: Path,
    *,
    seed: int,
    device: torch.device,
    report: Callable[[StepReport], None],
    checkpoint_every: int = 500,
    at_checkpoint: Callable[[int, nn.Module], None] = lambda step, average: None,
    on_asked: Callable[[], None] = lambda: None,
    stop_after: int | None = None,
    share: BatchShare = ALONE,
) -> nn.Module:
    """Train to the stage's end (or `stop_after` steps) and return the averaged module, shown at every checkpoint.

    Asked to stop, it calls `on_asked` in the signal's handler, ends its step, saves and raises `Stopped`.
    On every rank of those that share the method's batches: they learn as one, and the first writes and reports."""
    modules = {turn.name: turn.module for turn in method.turns}
    assert len(modules) == len(method.turns), f"two turns have the same name: {[turn.name for turn in method.turns]}"
    optimisers = {turn.name: Optimisers(turn.module, stage) for turn in method.turns}
    carried = {turn.name: turn.carries for turn in method.turns}
    copies = {turn.name: Replicas(turn.module, share.group) for turn in method.turns if share.group.handle is not None}
    student, average = method.turns[0].module, Average(method.turns[0].module, stage.ema)
    path, begun = folder / f"{stage.name}.pt", time.perf_counter()
    done = load_checkpoint(path, modules, optimisers, average, carried) if path.exists() else 0
    if share.is_first:
        cut_curve(folder / f"{stage.name}.jsonl", lambda made: made < done)
    end = stage.steps if stop_after is None else min(stage.steps, stop_after)
    with (
        (folder / f"{stage.name}.jsonl").open("a") if share.is_first else nullcontext() as log,
        Interrupt(on_asked) as interrupt,
    ):
        for step in range(done, end):
            losses: dict[str, Tensor] = {}
            for turn in method.turns:
                if step >= turn.after and step % turn.every == 0:
                    found = turn.losses(keyed_generator(device, seed, f"{stage.name}.{turn.name}", step))
                    torch.stack(list(found.values())).sum().backward()
                    if copies:
                        copies[turn.name].finish()
                    found["norm" if turn.module is student else f"{turn.name} norm"] = optimisers[turn.name].step(step)
                    losses |= found
            average.update(student, step)
            if step % LOG_EVERY == 0 or step == end - 1:
                said = _report(step, stage, losses, time.perf_counter() - begun, share)
                if log is not None:
                    log.write(json.dumps({"step": step, "seconds": round(said.seconds, 2), **said.losses}) + "\n")
                    log.flush()
                    report(said)
            stopped = share.any(interrupt.asked, device)
            if (step + 1) % checkpoint_every == 0 or step == end - 1 or stopped:
                if share.is_first:
                    save_checkpoint(path, step + 1, modules, optimisers, average, carried)
                if stopped:
                    raise Stopped
                if share.is_first:
                    at_checkpoint(step + 1, average.module)
    return average.module


def keyed_generator(device: torch.device, *key: str | int) -> torch.Generator:
    """Fresh randomness for what the key names, the same however and by whom it was reached."""
    name = hashlib.blake2b(":".join(map(str, key)).encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(name, "little") >> 1)


def _report(step: int, stage: StagePlan, losses: dict[str, Tensor], seconds: float, share: BatchShare) -> StepReport:
    found = share.mean(torch.stack([loss.float() for loss in losses.values()]))
    values = {name: round(value, 6) for name, value in zip(losses, found.tolist(), strict=True)}
    if any(value != value for value in values.values()):
        raise Diverged(f"stage {stage.name} diverged at step {step} ({values}); lower its lr or its clip")
    return StepReport(step=step, total=stage.steps, losses=values, lr=learning_rate(stage, step), seconds=seconds)
