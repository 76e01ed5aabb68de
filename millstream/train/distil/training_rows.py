"""Base of the distillation methods: clips in, and rows that a learner takes out.

Every method wants clean frames of a student. A student that should predict `wanted` from `start` at a level
should have the flow that leads there, and an error of the clean frames is that of the flow times the share of
noise. So every method is flow matching with another target, and is shared out over ranks as that is.
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
from millstream.models import sampler
from millstream.models.conditions.injectors import Injectors
from millstream.models.dit import CrossKV
from millstream.models.entries import NO_ENTRIES, Entries
from millstream.models.kv import Memory
from millstream.train.distil.row_randomness import RowRandomness
from millstream.train.finetune.dataset import ClipSet
from millstream.train.finetune.rows import clip_order
from millstream.train.noising import clean_estimate, per_pixel
from millstream.train.parallel.learner import Learner
from millstream.train.parallel.predictor import Predictor
from millstream.train.parallel.states import ParameterState, Read
from millstream.train.parallel.task import FlowRows, LearntStep, MayStep
from millstream.train.sequence import ChunkedSequence, forced_input

NO_CROSS = CrossKV((), ())
"""Placeholder for a prompt's keys and values, where a model reads its prompt by itself."""


class ClipBatch(NamedTuple):
    """Clips of a rank in one step."""

    seed: int
    clips: Sequence[int]
    """Numbers of the clips in the dataset."""
    clean_BFCYX: Tensor
    text_BSE: Tensor
    actions_BFA: Tensor | None = None
    """Actions of each frame, of a model that takes any."""


def clip_batch(clips: ClipSet, numbers: Sequence[int], step: int, *, batch: int, seed: int) -> ClipBatch:
    """Return the clips with these numbers of a step's batch, in host memory."""
    order = clip_order(len(clips), seed, batch, step)
    found = [clips[order[number]] for number in numbers]
    latents, text = (torch.stack(each) for each in zip(*((clip[1], clip[2]) for clip in found), strict=True))
    held = [clip.actions_FA for clip in found if clip.actions_FA is not None]
    actions = torch.stack(held) if held else None
    return ClipBatch(seed, [order[number] for number in numbers], latents, text, actions)


@dataclass(frozen=True, kw_only=True, slots=True)
class DistilSetting:
    """Setting that all methods are given."""

    config: DiTConfig
    latent_size: tuple[int, int]
    latent_frames: int
    """Latent frames of a clip."""
    levels: tuple[float, ...]
    """Noise levels of a student's steps, high to low."""
    numbers: range
    """Numbers of this rank's rows of a batch."""
    batch: int
    no_prompt_SE: Tensor
    paints_in: torch.dtype
    """Dtype of rings, and of the student that rolls out."""
    device: torch.device
    injectors: Injectors | None = None
    """The teacher's, which no student changes: a key means the same to all roles."""
    tracks_of: Callable[[Sequence[int], RowRandomness], Tensor] | None = None
    """Draws what is held from now on in streams of these captions [B, F, A]; None: what is in a batch's clips."""

    def no_prompt(self, rows: int) -> Tensor:
        return self.no_prompt_SE.to(self.device).expand(rows, -1, -1)

    @torch.no_grad()
    def entries(self, actions_BFA: Tensor | None) -> Entries:
        """Return the entries of frames with these actions."""
        if actions_BFA is None:
            return NO_ENTRIES
        assert self.injectors is not None, "actions for a model that takes none"
        found: Entries = self.injectors(actions_BFA)
        return found


class Distillation(ABC):
    """Method by which a student learns from others."""

    @abstractmethod
    def learn(self, step: int, batch: ClipBatch, may_step: Mapping[str, MayStep]) -> dict[str, LearntStep]:
        """Take one step, on every rank; return what each role that took one learnt, by the name of its
        loss."""

    def states(self) -> Iterator[ParameterState]:
        """Yield the state that is kept besides the student's, the same on every rank."""
        return iter(())

    def load_state(self, read: Read) -> None:  # noqa: B027 - most have nothing to go on from
        """Load that state."""

    def set_rate(self, lr: float) -> None:  # noqa: B027 - most have no critic
        """Set the learning rate of the critic, where there is one."""


class RoleStates:
    """State that a run goes on from: the student's, and what its method keeps besides."""

    def __init__(self, student: Learner, distillation: Distillation) -> None:
        self.groups = student.groups
        self._parts = (student, distillation)

    def states(self) -> Iterator[ParameterState]:
        for part in self._parts:
            yield from part.states()

    def load_state(self, read: Read) -> None:
        for part in self._parts:
            part.load_state(read)


def training_rows(
    context_BFCYX: Tensor,
    start_BFCYX: Tensor,
    level_BF: Tensor,
    text_BSE: Tensor,
    wanted_BFCYX: Tensor,
    sequence: ChunkedSequence,
    *,
    context_BF: Tensor | None = None,
    factor: float = 1.0,
    entries: Entries = NO_ENTRIES,
) -> FlowRows:
    """Return rows whose loss is `factor` times the squared error of the clean frames that a student makes of
    `start` in one step. `entries` are those of the clip or stream whose end the sequence is."""
    assert start_BFCYX.shape == wanted_BFCYX.shape, (
        f"{tuple(wanted_BFCYX.shape)} wanted of {tuple(start_BFCYX.shape)}"
    )
    assert level_BF.shape == start_BFCYX.shape[:2], (
        f"levels {tuple(level_BF.shape)} of {tuple(start_BFCYX.shape)}"
    )
    both, levels = forced_input(context_BFCYX, start_BFCYX, level_BF, sequence, context_BF)
    share_BF = level_BF / FULL
    return FlowRows(
        both,
        levels,
        text_BSE,
        (start_BFCYX - wanted_BFCYX) / per_pixel(share_BF),
        factor * share_BF**2,
        sequence,
        sequence.entered(entries),
    )


def forced_flows(
    model: Predictor,
    context_BFCYX: Tensor,
    noisy_BFCYX: Tensor,
    level_BF: Tensor,
    text_BSE: Tensor,
    sequence: ChunkedSequence,
    context_BF: Tensor | None = None,
    entries: Entries = NO_ENTRIES,
) -> Tensor:
    """Return the flows of the noisy frames, given the context before them. `entries` are those of the clip or
    stream whose end the sequence is."""
    both, levels = forced_input(context_BFCYX, noisy_BFCYX, level_BF, sequence, context_BF)
    found = model.flows(both, levels, text_BSE, sequence, sequence.entered(entries))
    return found[:, -noisy_BFCYX.shape[1] :]


@dataclass(frozen=True, slots=True)
class PromptedFlow:
    """Model with a prompt, as the sampler calls one."""

    flow: Callable[[Tensor, Tensor, Tensor, Memory, Entries], Tensor]
    text_BSE: Tensor

    def __call__(
        self,
        latents_BFCYX: Tensor,
        level_BF: Tensor,
        memory: Memory,
        cross: CrossKV,
        entries: Entries = NO_ENTRIES,
    ) -> Tensor:
        return self.flow(latents_BFCYX, level_BF, self.text_BSE, memory, entries)

    def commit(
        self,
        latents_BFCYX: Tensor,
        level_BF: Tensor,
        memory: Memory,
        cross: CrossKV,
        entries: Entries = NO_ENTRIES,
    ) -> None:
        """Call the whole model: shards are collected as a block's call begins, and a commit would leave the
        last block out."""
        self.flow(latents_BFCYX, level_BF, self.text_BSE, memory, entries)


def painted_steps(
    flow: Callable[[Tensor, Tensor], Tensor], levels: tuple[float, ...], noise: Callable[[int], Tensor]
) -> tuple[list[Tensor], Tensor]:
    """Return what each of a few steps starts from, which is the last estimate with new noise in it, and the
    last step's clean end."""
    starts = list[Tensor]()
    clean = noise(0)
    for step, level in enumerate(levels):
        starts.append(clean if step == 0 else sampler.mix(clean, noise(step), level))
        level_BF = sampler.per_frame(level, clean)
        clean = clean_estimate(starts[-1], level_BF, flow(starts[-1], level_BF))
    return starts, clean
