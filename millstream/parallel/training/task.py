"""What a step learns from, how, and what it answers: all that a learner is told, whatever the plan.

Shapes: B rows, F frames, C latent channels, Y and X latent rows and columns, S text tokens, E text width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from millstream.core.config import Recompute
from millstream.models.dit import CausalDiT
from millstream.models.kv import Memory
from millstream.parallel.training.float8 import use_float8
from millstream.parallel.training.groups import TrainingGroups
from millstream.parallel.training.optimisers.choice import OptimiserChoice
from millstream.parallel.training.plan import ParallelPlan
from millstream.parallel.training.precision import Precision
from millstream.parallel.training.recompute import prepare_blocks

Loss = Callable[..., Tensor]
"""Of a predicted and a wanted flow, and of how much each frame counts where they do not count alike: a mean over rows."""
MayStep = Callable[[float], bool]
"""Whether gradients of that norm are to be followed."""
ADAMW = OptimiserChoice()


class FlowRows(NamedTuple):
    """What a step learns from."""

    latents_BFCYX: Tensor
    level_BF: Tensor
    text_BSE: Tensor
    target_BFCYX: Tensor
    weight_BF: Tensor | None = None
    """Of each wanted frame's squared error; None where all count alike."""
    memory: Memory | None = None
    """What these attend in, if not what the task says."""

    @property
    def wanted(self) -> tuple[Tensor, ...]:
        """What a loss is told."""
        return (self.target_BFCYX,) if self.weight_BF is None else (self.target_BFCYX, self.weight_BF)

    def part(self, parts: int, place: int) -> FlowRows:
        return list(self.split(parts))[place]

    def split(self, parts: int) -> Iterator[FlowRows]:
        weights = [None] * parts if self.weight_BF is None else self.weight_BF.chunk(parts)
        cut = zip(*(tensor.chunk(parts) for tensor in self[:4]), strict=True)
        for (latents, level, text, target), weight in zip(cut, weights, strict=True):
            yield FlowRows(latents, level, text, target, weight, self.memory)


class LearntStep(NamedTuple):
    loss: Tensor
    """Everybody's mean, on every rank."""
    norm: Tensor
    """Of all gradients, before they were clipped."""
    taken: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOptions:
    optimiser: OptimiserChoice = ADAMW
    clip: float = 1.0
    """Largest norm of all gradients together."""
    precision: Precision = "fp32"
    recompute: Recompute = "none"
    ema: float = 0.0
    """How much of the weights' average is kept at each step; 0 for no average."""
    compile: str = ""
    """What compiles the blocks, one of parallel.compiled.BACKENDS; nothing by default."""

    def clip_factor(self, squares: Tensor) -> Tensor:
        return (self.clip / (squares.sqrt() + 1e-6)).clamp(max=1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingTask:
    """What is learnt, and how it is shared out."""

    dit: CausalDiT
    """Whole, and the same on every rank, though its blocks may be unread still; whoever takes the task takes it apart."""
    sequence: Memory
    latent_size: tuple[int, int]
    loss: Loss
    plan: ParallelPlan
    groups: TrainingGroups
    options: StepOptions

    def prepare_blocks(self) -> None:
        """Before they are shared out."""
        if self.options.precision == "fp8":
            use_float8(self.dit)
        prepare_blocks(self.dit, self.options.recompute, backend=self.options.compile)
