"""Inputs and outputs of a training step: all that a learner is given, whatever the plan.

Shapes: B rows, F frames, C latent channels, Y and X latent rows and columns, S text tokens, E text width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from millstream.core.config import Recompute
from millstream.models.conditions.injectors import Injectors
from millstream.models.dit import CausalDiT
from millstream.models.entries import NO_ENTRIES, Entries
from millstream.models.kv import Memory
from millstream.train.parallel.float8 import use_float8
from millstream.train.parallel.groups import TrainingGroups
from millstream.train.parallel.optimisers.choice import OptimiserChoice
from millstream.train.parallel.plan import ParallelPlan
from millstream.train.parallel.precision import Precision
from millstream.train.parallel.recompute import prepare_blocks

Loss = Callable[..., Tensor]
"""Loss of a predicted and a wanted flow, with each frame's weight where frames do not count alike: a mean
over rows."""
MayStep = Callable[[float], bool]
"""Function that decides, by the norm of all gradients, whether a step is taken."""
ADAMW = OptimiserChoice()


class FlowRows(NamedTuple):
    """Rows that a step learns from."""

    latents_BFCYX: Tensor
    level_BF: Tensor
    text_BSE: Tensor
    target_BFCYX: Tensor
    weight_BF: Tensor | None = None
    """Weight of each wanted frame's squared error; None where all count alike."""
    memory: Memory | None = None
    """Memory that these rows attend in, if not the task's."""
    entries: Entries = NO_ENTRIES
    """Entries beside each of their frames."""
    actions_BFA: Tensor | None = None
    """Actions in each of their frames, for a model whose injectors learn what that does."""

    @property
    def wanted(self) -> tuple[Tensor, ...]:
        """Arguments of a loss beside the predicted flow."""
        return (self.target_BFCYX,) if self.weight_BF is None else (self.target_BFCYX, self.weight_BF)

    def part(self, parts: int, place: int) -> FlowRows:
        return list(self.split(parts))[place]

    def split(self, parts: int) -> Iterator[FlowRows]:
        weights = [None] * parts if self.weight_BF is None else self.weight_BF.chunk(parts)
        cut = zip(*(tensor.chunk(parts) for tensor in self[:4]), strict=True)
        entries = self.entries.split(parts)
        held = iter([None] * parts if self.actions_BFA is None else self.actions_BFA.chunk(parts))
        for (latents, level, text, target), weight, entered in zip(cut, weights, entries, strict=True):
            yield FlowRows(latents, level, text, target, weight, self.memory, entered, next(held))


class LearntStep(NamedTuple):
    loss: Tensor
    """Mean over all ranks, the same on every rank."""
    norm: Tensor
    """Norm of all gradients before clipping."""
    taken: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOptions:
    optimiser: OptimiserChoice = ADAMW
    grad_clip: float = 1.0
    """Largest norm of all gradients together."""
    precision: Precision = "fp32"
    recompute: Recompute = "none"
    ema: float = 0.0
    """Share of the weights' average that is kept at each step; 0 for no average."""
    compile: str = ""
    """Backend that compiles the blocks, one of parallel.compiled.BACKENDS; empty for none."""

    def clip_factor(self, squares: Tensor) -> Tensor:
        return (self.grad_clip / (squares.sqrt() + 1e-6)).clamp(max=1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingTask:
    """Model, loss, plan and options of a training, from which a learner is made."""

    dit: CausalDiT
    """Whole model, the same on every rank, though its blocks may not be read yet; the learner shares it out
    in place."""
    sequence: Memory
    latent_size: tuple[int, int]
    loss: Loss
    plan: ParallelPlan
    groups: TrainingGroups
    options: StepOptions
    injectors: Injectors | None = None
    """Injectors that learn with it, which every rank has whole."""

    def prepare_blocks(self) -> None:
        """Prepare the blocks, before they are shared out."""
        if self.options.precision == "fp8":
            use_float8(self.dit)
        prepare_blocks(self.dit, self.options.recompute, backend=self.options.compile)
