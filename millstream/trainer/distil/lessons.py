"""What the methods have in common: clips in, and rows that a learner takes out.

Whatever a method wants of a student, it wants clean frames: one that is to say `wanted` from `start` at a level is to have the
flow that leads there, and an error of the clean frames is that of the flow times the share of noise. So every method is
flow matching with another target, and is shared out over ranks as that is.
Shapes: B rows, F frames, C latent channels, Y and X latent rows and columns, S text tokens, E text width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from millstream.core.config import DiTConfig
from millstream.core.schedule import FULL
from millstream.models.dit import CrossKV
from millstream.models.kv import Memory
from millstream.parallel.training.learner import Learner
from millstream.parallel.training.predictor import Predictor
from millstream.parallel.training.states import ParameterState, Read
from millstream.parallel.training.task import FlowRows, LearntStep, MayStep
from millstream.trainer.noising import per_pixel
from millstream.trainer.sequence import ChunkedSequence, forced_input
from millstream.trainer.tuning.dataset import ClipSet
from millstream.trainer.tuning.rows import clip_order

NO_CROSS = CrossKV((), ())
"""Where a model reads its prompt by itself."""


class ClipBatch(NamedTuple):
    """A rank's clips of a step."""

    seed: int
    clips: Sequence[int]
    """Their numbers in the dataset."""
    clean_BFCYX: Tensor
    text_BSE: Tensor


def clip_batch(clips: ClipSet, numbers: Sequence[int], step: int, *, batch: int, seed: int) -> ClipBatch:
    """Those of a step's rows that have these numbers, in host memory."""
    order = clip_order(len(clips), seed, batch, step)
    found = [clips[order[number]] for number in numbers]
    latents, text = (torch.stack(each) for each in zip(*((clip[1], clip[2]) for clip in found), strict=True))
    return ClipBatch(seed, [order[number] for number in numbers], latents, text)


@dataclass(frozen=True, kw_only=True, slots=True)
class DistilSetting:
    """What all methods are told."""

    config: DiTConfig
    latent_size: tuple[int, int]
    latent_frames: int
    """Of a clip."""
    levels: tuple[float, ...]
    """The noise levels of a student's steps, high to low."""
    numbers: range
    """This rank's rows of a batch."""
    batch: int
    no_prompt_SE: Tensor
    paints_in: torch.dtype
    """Of rings, and of the student that rolls out."""
    device: torch.device

    def no_prompt(self, rows: int) -> Tensor:
        return self.no_prompt_SE.to(self.device).expand(rows, -1, -1)


class Distillation(ABC):
    """How a student learns from others."""

    @abstractmethod
    def learn(self, step: int, batch: ClipBatch, may_step: Mapping[str, MayStep]) -> dict[str, LearntStep]:
        """One step, on every rank; what each role that took one learnt, by the name of its loss."""

    def states(self) -> Iterator[ParameterState]:
        """What outlives a step besides the student, on every rank alike."""
        return iter(())

    def take(self, read: Read) -> None:  # noqa: B027 - most have nothing to go on from
        """Go on from that."""

    def set_rate(self, lr: float) -> None:  # noqa: B027 - most have no critic
        """Of the critic, where there is one."""


class RoleStates:
    """All that a run goes on from: the student, and what its method keeps besides."""

    def __init__(self, student: Learner, distillation: Distillation) -> None:
        self.groups, self._parts = student.groups, (student, distillation)

    def states(self) -> Iterator[ParameterState]:
        for part in self._parts:
            yield from part.states()

    def take(self, read: Read) -> None:
        for part in self._parts:
            part.take(read)


def lesson(
    context_BFCYX: Tensor,
    start_BFCYX: Tensor,
    level_BF: Tensor,
    text_BSE: Tensor,
    wanted_BFCYX: Tensor,
    sequence: ChunkedSequence,
    *,
    context_BF: Tensor | None = None,
    factor: float = 1.0,
) -> FlowRows:
    """`factor` times the squared error of the clean frames that a student makes of `start` in one step."""
    assert start_BFCYX.shape == wanted_BFCYX.shape, f"{tuple(wanted_BFCYX.shape)} wanted of {tuple(start_BFCYX.shape)}"
    assert level_BF.shape == start_BFCYX.shape[:2], f"levels {tuple(level_BF.shape)} of {tuple(start_BFCYX.shape)}"
    both, levels = forced_input(context_BFCYX, start_BFCYX, level_BF, sequence, context_BF)
    share_BF = level_BF / FULL
    return FlowRows(both, levels, text_BSE, (start_BFCYX - wanted_BFCYX) / per_pixel(share_BF), factor * share_BF**2, sequence)


def forced_flows(
    model: Predictor,
    context_BFCYX: Tensor,
    noisy_BFCYX: Tensor,
    level_BF: Tensor,
    text_BSE: Tensor,
    sequence: ChunkedSequence,
    context_BF: Tensor | None = None,
) -> Tensor:
    """Flows of the noisy frames after the others."""
    both, levels = forced_input(context_BFCYX, noisy_BFCYX, level_BF, sequence, context_BF)
    return model.flows(both, levels, text_BSE, sequence)[:, -noisy_BFCYX.shape[1] :]


@dataclass(frozen=True, slots=True)
class PromptedFlow:
    """A model under a prompt as the sampler takes one."""

    flow: Callable[[Tensor, Tensor, Tensor, Memory], Tensor]
    text_BSE: Tensor

    def __call__(self, latents_BFCYX: Tensor, level_BF: Tensor, memory: Memory, cross: CrossKV) -> Tensor:
        return self.flow(latents_BFCYX, level_BF, self.text_BSE, memory)

    def commit(self, latents_BFCYX: Tensor, level_BF: Tensor, memory: Memory, cross: CrossKV) -> None:
        """A whole call: shards are collected as a block's call begins, and a commit would leave the last block out."""
        self.flow(latents_BFCYX, level_BF, self.text_BSE, memory)
