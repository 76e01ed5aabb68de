"""One rank's side of a training step, whatever the plan: its rows in, everybody's mean loss out, weights changed.

A loss is a mean over rows, so the mean over ranks with equally many rows is that of the whole batch, and a plan changes where
things are computed and nothing else. Ranks that have parts of the same tokens each count their own part of the gradient:
their loss is weighted by their number, so that the mean over them is the sum.
Shapes: B rows, F frames, C latent channels, Y and X latent rows and columns, S text tokens, E text width.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from millstream.core.errors import UnusedParameters
from millstream.models.prompted import PromptedDiT, reads_prompt
from millstream.models.weights.unread import bring
from millstream.parallel.shares import split_along
from millstream.parallel.training.blocks import share_blocks
from millstream.parallel.training.fully_sharded import shard_fully
from millstream.parallel.training.groups import TrainingGroups
from millstream.parallel.training.optimisers.choice import OptimiserChoice
from millstream.parallel.training.optimisers.own import WEIGHT
from millstream.parallel.training.parts import HeldParts, UnitParts
from millstream.parallel.training.precision import LossScale, in_precision
from millstream.parallel.training.predictor import Predictor
from millstream.parallel.training.replicas import Replicas
from millstream.parallel.training.stages import LayerPipeline
from millstream.parallel.training.states import (
    AVERAGE,
    ParameterState,
    Read,
    states_of,
    states_of_zero,
    take_states,
    take_states_of_zero,
)
from millstream.parallel.training.task import FlowRows, LearntStep, MayStep, TrainingTask
from millstream.parallel.training.zero import Stage, Unit, Zero

SCALE = "loss scale"
"""Under which name its state is kept."""
ZERO: dict[str, Stage] = {"zero1": 1, "zero2": 2, "zero3": 3}


class Learner(ABC):
    """A model that ranks hold together."""

    optimiser: torch.optim.Optimizer

    def __init__(self, task: TrainingTask) -> None:
        self.plan, self.groups, self.options = task.plan, task.groups, task.options
        self.loss_scale = LossScale() if task.options.precision == "fp16" else None
        self.changes = 0
        """How often its weights have: a copy that has seen as many is one still."""

    def mine(self, batch: FlowRows) -> FlowRows:
        """This rank's rows of a whole batch."""
        return batch.part(self.plan.dp, self.groups.place.dp)

    def learn(self, rows: FlowRows, may_step: MayStep = math.isfinite) -> LearntStep:
        """One step, of which these are this rank's rows. `may_step` is told the norm of all gradients, alike on every rank."""
        loss, scale = self._backward(rows), self._scale
        squares = self._squares() / scale**2
        fits = self.loss_scale is None or self.loss_scale.may_step(squares)
        taken = fits and may_step(float(squares.sqrt()))  # an overflow of float16 is nobody else's concern
        if taken:
            self._scale_gradients(self.options.clip_factor(squares) / scale)
            self._step()
            self._follow()
            self.changes += 1
        self.optimiser.zero_grad(set_to_none=True)
        return LearntStep(self.groups.batch.sum(loss, "loss") / self.groups.batch.size, squares.sqrt(), taken)

    def set_rate(self, lr: float) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = lr

    def each_weight(self) -> Iterator[tuple[str, Tensor]]:
        """Of those that this rank and the ones beside it hold, whole, one after the other. All of them go through it."""
        for state in self._states(None):
            yield state.name, state.tensors[WEIGHT]

    def weights(self, kind: str = WEIGHT) -> dict[str, Tensor]:
        """All of the DiT's that learn, on every rank, by name; or their averages; of what took no step, itself."""
        states = self._states(None if kind == WEIGHT and not self.options.optimiser.has_masters else self.optimiser)
        mine = {state.name: state.tensors.get(kind, state.tensors[WEIGHT]) for state in states}
        return {name: weight for part in self.groups.pipe.gather(mine, "weights") for name, weight in part.items()}

    def states(self) -> Iterator[ParameterState]:
        """All that it has learnt, of those parameters that it and the ranks beside it hold. All of them go through it."""
        yield from self._states(self.optimiser)
        if self.loss_scale is not None:
            yield ParameterState(SCALE, self.loss_scale.state())

    def take(self, read: Read) -> None:
        """Go on from states that some learner had, of this plan or of another."""
        self._take(read)
        self.changes += 1
        if self.loss_scale is not None:
            self.loss_scale.take(read(SCALE))

    def _states(self, optimiser: torch.optim.Optimizer | None) -> Iterator[ParameterState]:
        """Without an optimiser, weights."""
        return states_of(self._named(), optimiser, self.groups.tensor)

    def _take(self, read: Read) -> None:
        take_states(self._named(), self.optimiser, self.groups.tensor, read)

    @property
    def _scale(self) -> float:
        """Of losses and gradients in the backward pass."""
        return 1.0 if self.loss_scale is None else self.loss_scale.value

    @torch.no_grad()
    def _follow(self) -> None:
        """Averages are kept where the optimiser keeps its own, sharded as they are."""
        if not self.options.ema:
            return
        for parameter, state in self.optimiser.state.items():
            steps = float(state["step"])
            keep = min(self.options.ema, steps / (9 + steps))  # young averages follow more closely
            state.setdefault(AVERAGE, parameter.detach().clone()).lerp_(parameter.detach(), 1.0 - keep)

    def _scale_gradients(self, factor: Tensor) -> None:
        for group in self.optimiser.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(factor.to(parameter.grad.dtype))

    def _make_optimiser(self, choice: OptimiserChoice | None = None) -> torch.optim.Optimizer:
        """Of parameters as this rank holds them: made when they are shared out. As the options say, or otherwise."""
        named = list(self._named())
        return (choice or self.options.optimiser).make(named, HeldParts(named, self.groups.tensor))

    @abstractmethod
    def _named(self) -> Iterable[tuple[str, nn.Parameter]]:
        """Parameters that learn and that this rank holds, or parts of which it holds, by their names in the whole DiT."""

    @abstractmethod
    def _backward(self, rows: FlowRows) -> Tensor:
        """Leave gradients that are the mean over the batch's ranks. This rank's loss, by itself."""

    def _squares(self) -> Tensor:
        """Of all gradients of the model, summed."""
        return model_squares(self._named(), self.groups)

    def _step(self) -> None:
        self.optimiser.step()


class ModuleLearner(Learner):
    """One whose rank can do a whole forward pass, with the others or by itself."""

    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        self._dit, self._loss = task.dit, task.loss
        self._prompted = PromptedDiT(share_blocks(task.dit, task.groups), task.sequence)
        self._model: nn.Module = self._prompted
        """What is called."""
        self.predictor = Predictor(self._prompted, task.options.precision, task.plan.micro_batches)

    def _named(self) -> Iterable[tuple[str, nn.Parameter]]:
        return [named for named in self._dit.named_parameters() if named[1].requires_grad]

    def _backward(self, rows: FlowRows) -> Tensor:
        parts, losses = self.plan.micro_batches, list[Tensor]()
        for number, part in enumerate(rows.split(parts), start=1):
            with nullcontext() if number == parts else self._no_sync():
                with in_precision(self.options.precision, rows.target_BFCYX.device):
                    flow = self._model(*part[:3], part.memory)
                loss = self._loss(flow.float(), *part.wanted)
                (loss * (self._scale * self.plan.cp / parts)).backward()
            losses.append(loss.detach())
        self._finish()
        return torch.stack(losses).mean()

    @abstractmethod
    def _no_sync(self) -> AbstractContextManager[None]:
        """While gradients only add up."""

    @abstractmethod
    def _finish(self) -> None:
        """Wait until gradients are means."""


class ReplicaLearner(ModuleLearner):
    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        self._replicas = Replicas(self._model, self.groups.batch)
        self.optimiser = self._make_optimiser()

    def _no_sync(self) -> AbstractContextManager[None]:
        return self._replicas.no_sync()

    def _finish(self) -> None:
        self._replicas.finish()


class DDPLearner(ModuleLearner):
    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        bring(self._model.parameters())
        self.optimiser = self._make_optimiser()
        self._model = self._copies = DistributedDataParallel(
            self._model, process_group=self.groups.batch.handle, gradient_as_bucket_view=True
        )

    def _no_sync(self) -> AbstractContextManager[None]:
        return self._copies.no_sync()

    def _finish(self) -> None:
        pass  # torch waits at the end of the backward pass


class ZeroLearner(ModuleLearner):
    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        stage = ZERO[self.plan.data]
        self._zero = Zero(
            self._model,
            self.groups.batch,
            stage,
            self._optimiser_of_units,
            units=list(self._dit.blocks),
            named=self._named(),
            shared=reads_prompt,
            alone=lambda name, parameter: self.options.optimiser.needs_whole(name, parameter.ndim),
        )
        self.optimiser = self._zero.optimiser

    def _optimiser_of_units(self, units: Sequence[Unit]) -> torch.optim.Optimizer:
        return self.options.optimiser.make([(unit.named[0][0], unit.mine) for unit in units], UnitParts(units))

    def _states(self, optimiser: torch.optim.Optimizer | None) -> Iterator[ParameterState]:
        return states_of_zero(self._zero, optimiser)

    def _take(self, read: Read) -> None:
        take_states_of_zero(self._zero, read)

    def _no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()  # sums of parts are parts of sums

    def _finish(self) -> None:
        self._zero.finish()

    def _squares(self) -> Tensor:
        return self._zero.squares()

    def _step(self) -> None:
        self._zero.step()


class ShardedLearner(ModuleLearner):
    """By torch's fully sharded data parallel."""

    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        assert self.groups.mesh is not None, "one process shards nothing"
        axes = ("replicate", "shard") if self.plan.data == "hsdp" else ("shard",)
        offloads = self.options.optimiser.offload
        shard_fully(self._prompted, self._dit, self.groups.mesh[axes], offloads=offloads)
        choice = replace(self.options.optimiser, masters=False, offload=False)  # shards are float32, where they are to be
        self.optimiser = self._make_optimiser(choice)

    def _no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()  # a rank has no room for gradients that are not its own

    def _finish(self) -> None:
        unused = [name for name, parameter in self._named() if parameter.grad is None]
        if unused:
            raise UnusedParameters(unused)


class PipelineLearner(Learner):
    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        share_blocks(task.dit, task.groups)
        self._pipeline = LayerPipeline(
            task.dit,
            task.sequence,
            task.plan,
            task.groups.pipe,
            latent_size=task.latent_size,
            loss=lambda flow, target: task.loss(flow.float(), target) * self._scale,
            precision=task.options.precision,
        )
        self._replicas = Replicas(self._pipeline.module, task.groups.batch)
        self.optimiser = self._make_optimiser()

    def _named(self) -> Iterable[tuple[str, nn.Parameter]]:
        return [named for part in self._pipeline.parts.values() for named in part.learning()]

    def _backward(self, rows: FlowRows) -> Tensor:
        with self._replicas.no_sync():
            found = self._pipeline.backward(rows[:3], rows.target_BFCYX)
        self._replicas.finish()
        mine = rows.target_BFCYX.new_zeros(()) if found is None else found / self._scale
        return self.groups.pipe.sum(mine, "loss")


def make_learner(task: TrainingTask) -> Learner:
    plan = task.plan
    task.prepare_blocks()
    if plan.pp > 1:
        return PipelineLearner(task)
    if plan.world_size == 1:
        return ReplicaLearner(task)
    match plan.data:
        case "replicas":
            return ReplicaLearner(task)
        case "ddp":
            return DDPLearner(task)
        case "zero1" | "zero2" | "zero3":
            return ZeroLearner(task)
        case "fsdp" | "hsdp":
            return ShardedLearner(task)


def model_squares(named: Iterable[tuple[str, nn.Parameter]], groups: TrainingGroups) -> Tensor:
    """The squares of all gradients of a model that several ranks hold: a part once, and what each has whole as often less."""
    squares = dict[bool, list[Tensor]]({True: [], False: []})
    for name, parameter in named:
        if parameter.grad is not None:
            square = parameter.grad.float().square().sum()
            squares[split_along(name) is not None].append(square.full_tensor() if isinstance(square, DTensor) else square)
    parts, whole = (torch.stack(each).sum() if each else torch.zeros(()) for each in squares.values())
    return groups.model.sum(parts + whole / groups.tensor.size, "norm")
