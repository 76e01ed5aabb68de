"""One rank's side of a training step, whatever the plan: takes this rank's rows, returns the mean loss over
all ranks, changes the weights.

A loss is a mean over rows, so the mean over ranks with equally many rows is that of the whole batch, and a
plan changes where things are computed and nothing else. Ranks that have parts of the same tokens each count
their own part of the gradient: their loss is weighted by their number, so that the mean over them is the sum.
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
from millstream.train.parallel.blocks import share_blocks
from millstream.train.parallel.fully_sharded import shard_fully
from millstream.train.parallel.groups import TrainingGroups
from millstream.train.parallel.optimisers.choice import OptimiserChoice
from millstream.train.parallel.optimisers.own import WEIGHT
from millstream.train.parallel.parts import HeldParts, UnitParts
from millstream.train.parallel.precision import LossScale, in_precision
from millstream.train.parallel.predictor import Predictor
from millstream.train.parallel.replicas import Replicas
from millstream.train.parallel.stages import LayerPipeline
from millstream.train.parallel.states import (
    AVERAGE,
    ParameterState,
    Read,
    states_of,
    states_of_zero,
    take_states,
    take_states_of_zero,
)
from millstream.train.parallel.task import FlowRows, LearntStep, MayStep, TrainingTask
from millstream.train.parallel.zero import Stage, Unit, Zero

INJECTORS = "injectors"
"""Under which name they learn beside a DiT."""
SCALE = "loss scale"
"""Name under which the loss scale's state is saved."""
ZERO: dict[str, Stage] = {"zero1": 1, "zero2": 2, "zero3": 3}


class Learner(ABC):
    """Model that ranks hold and train together."""

    optimiser: torch.optim.Optimizer

    def __init__(self, task: TrainingTask) -> None:
        self.plan = task.plan
        self.groups = task.groups
        self.options = task.options
        self.loss_scale = LossScale() if task.options.precision == "fp16" else None
        self.changes = 0
        """Number of times that the weights have changed: a copy with the same number is still up to date."""

    def mine(self, batch: FlowRows) -> FlowRows:
        """Return this rank's rows of a whole batch."""
        return batch.part(self.plan.dp, self.groups.place.dp)

    def learn(self, rows: FlowRows, may_step: MayStep = math.isfinite) -> LearntStep:
        """Take one step, of which these are this rank's rows. `may_step` is given the norm of all gradients,
        which is the same on every rank."""
        loss = self._backward(rows)
        scale = self._scale
        squares = self._grad_norm_squared() / scale**2
        fits = self.loss_scale is None or self.loss_scale.may_step(squares)
        taken = fits and may_step(float(squares.sqrt()))  # an overflow is the loss scale's matter
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
        """Yield the name and whole weight of each parameter that this rank and the ranks beside it hold, one
        after the other. All these ranks iterate together."""
        for state in self._states(None):
            yield state.name, state.tensors[WEIGHT]

    def weights(self, kind: str = WEIGHT) -> dict[str, Tensor]:
        """Return all weights of the DiT that learn, by name, on every rank; or their averages. A weight that
        took no step is returned for its average."""
        states = self._states(
            None if kind == WEIGHT and not self.options.optimiser.has_masters else self.optimiser
        )
        mine = {state.name: state.tensors.get(kind, state.tensors[WEIGHT]) for state in states}
        return {
            name: weight for part in self.groups.pipe.gather(mine, "weights") for name, weight in part.items()
        }

    def states(self) -> Iterator[ParameterState]:
        """Yield the state of each parameter that this rank and the ranks beside it hold. All these ranks
        iterate together."""
        yield from self._states(self.optimiser)
        if self.loss_scale is not None:
            yield ParameterState(SCALE, self.loss_scale.state())

    def load_state(self, read: Read) -> None:
        """Load states that a learner of this plan or of another had."""
        self._load_state(read)
        self.changes += 1
        if self.loss_scale is not None:
            self.loss_scale.load_state(read(SCALE))

    def _states(self, optimiser: torch.optim.Optimizer | None) -> Iterator[ParameterState]:
        """Yield the parameters' states; without an optimiser, their weights alone."""
        return states_of(self._named(), optimiser, self.groups.tensor)

    def _load_state(self, read: Read) -> None:
        take_states(self._named(), self.optimiser, self.groups.tensor, read)

    @property
    def _scale(self) -> float:
        """Factor by which losses and gradients are scaled in the backward pass."""
        return 1.0 if self.loss_scale is None else self.loss_scale.value

    @torch.no_grad()
    def _follow(self) -> None:
        """Update the averages, which are kept beside the optimiser's state and sharded as it is."""
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
        """Make the optimiser of the parameters as this rank holds them, after they are shared out: the one
        that the options name, or `choice`."""
        named = list(self._named())
        return (choice or self.options.optimiser).make(named, HeldParts(named, self.groups.tensor))

    @abstractmethod
    def _named(self) -> Iterable[tuple[str, nn.Parameter]]:
        """Return the parameters that learn and that this rank holds, whole or in part, by their names in the
        whole DiT."""

    @abstractmethod
    def _backward(self, rows: FlowRows) -> Tensor:
        """Compute gradients that are the mean over the batch's ranks; return this rank's own loss."""

    def _grad_norm_squared(self) -> Tensor:
        """Return the sum of the squares of all gradients of the model."""
        return model_squares(self._named(), self.groups)

    def _step(self) -> None:
        self.optimiser.step()


class ModuleLearner(Learner):
    """Learner whose rank can do a whole forward pass, with the others or by itself."""

    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        self._dit = task.dit
        self._loss = task.loss
        self._prompted = PromptedDiT(share_blocks(task.dit, task.groups), task.sequence, task.injectors)
        self._model: nn.Module = self._prompted
        """Module that a forward pass calls."""
        self.predictor = Predictor(self._prompted, task.options.precision, task.plan.micro_batches)

    def _named(self) -> Iterable[tuple[str, nn.Parameter]]:
        injectors = self._prompted.injectors
        beside = [] if injectors is None else injectors.named_parameters(INJECTORS)
        return [named for named in (*self._dit.named_parameters(), *beside) if named[1].requires_grad]

    def _backward(self, rows: FlowRows) -> Tensor:
        parts = self.plan.micro_batches
        losses = list[Tensor]()
        for number, part in enumerate(rows.split(parts), start=1):
            with nullcontext() if number == parts else self._no_sync():
                with in_precision(self.options.precision, rows.target_BFCYX.device):
                    flow = self._model(*part[:3], part.memory, part.entries, part.actions_BFA)
                loss = self._loss(flow.float(), *part.wanted)
                (loss * (self._scale * self.plan.cp / parts)).backward()
            losses.append(loss.detach())
        self._finish()
        return torch.stack(losses).mean()

    @abstractmethod
    def _no_sync(self) -> AbstractContextManager[None]:
        """Return a context in which gradients only add up and are not summed over ranks."""

    @abstractmethod
    def _finish(self) -> None:
        """Wait until gradients are means over the ranks."""


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
        return self.options.optimiser.make(
            [(unit.named[0][0], unit.mine) for unit in units], UnitParts(units)
        )

    def _states(self, optimiser: torch.optim.Optimizer | None) -> Iterator[ParameterState]:
        return states_of_zero(self._zero, optimiser)

    def _load_state(self, read: Read) -> None:
        take_states_of_zero(self._zero, read)

    def _no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()  # sums of parts are parts of sums

    def _finish(self) -> None:
        self._zero.finish()

    def _grad_norm_squared(self) -> Tensor:
        return self._zero.squares()

    def _step(self) -> None:
        self._zero.step()


class ShardedLearner(ModuleLearner):
    """Learner that uses torch's fully sharded data parallel."""

    def __init__(self, task: TrainingTask) -> None:
        super().__init__(task)
        assert self.groups.mesh is not None, "one process shards nothing"
        axes = ("replicate", "shard") if self.plan.data == "hsdp" else ("shard",)
        offloads = self.options.optimiser.offload
        shard_fully(self._prompted, self._dit, self.groups.mesh[axes], offloads=offloads)
        choice = replace(
            self.options.optimiser, masters=False, offload=False
        )  # shards are float32, where they are to be
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
        steered = not rows.entries.is_empty or rows.actions_BFA is not None
        assert not steered, "no entries travel between the stages of a pipeline that learns"
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
    """Return the sum of the squares of all gradients of a model that several ranks hold: a part counts once,
    and what several ranks hold whole is divided by their number."""
    squares = dict[bool, list[Tensor]]({True: [], False: []})
    for name, parameter in named:
        if parameter.grad is not None:
            square = parameter.grad.float().square().sum()
            squares[split_along(name) is not None].append(
                square.full_tensor() if isinstance(square, DTensor) else square
            )
    parts, whole = (torch.stack(each).sum() if each else torch.zeros(()) for each in squares.values())
    return groups.model.sum(parts + whole / groups.tensor.size, "norm")
