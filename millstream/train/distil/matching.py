"""Distribution matching: a student's pictures are pulled to where its judges would have them.

What has a student paint says what it was shown and how its pictures are judged. Here it paints every chunk of
a clip after the real ones before it, shown clean (teacher forcing) or at random noise levels (diffusion
forcing), and is judged after the clean ones. So it learns of pasts that it will not have when it streams:
`self_forcing.py` is the same on its own.

Shapes: B rows, F frames, C latent channels, Y and X latent rows and columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from millstream.models import sampler
from millstream.models.entries import NO_ENTRIES, Entries
from millstream.train.distil.judges import MARGIN, Judged, Judging, StreamView
from millstream.train.distil.row_randomness import RowRandomness
from millstream.train.distil.training_rows import (
    ClipBatch,
    Distillation,
    DistilSetting,
    forced_flows,
    painted_steps,
    training_rows,
)
from millstream.train.noising import clean_estimate
from millstream.train.options import DMDOptions, MatchingOptions
from millstream.train.parallel.learner import ModuleLearner
from millstream.train.parallel.predictor import Predictor
from millstream.train.parallel.states import ParameterState, Read
from millstream.train.parallel.task import LearntStep, MayStep
from millstream.train.sequence import ChunkedSequence, teacher_forced

PAINTED = 0
CONTEXT = 1
JUDGED = 2
"""Epoch of the noise for each use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Painted:
    """Chunks that a student painted without gradients, and what is needed to paint one step of each again
    with them."""

    text: Tensor
    past: Tensor
    """[B, F, C, Y, X], clean, from its first frame on; of what follows nothing is looked at."""
    starts: Tensor
    """Latents that one step of each chunk started from."""
    level_BF: Tensor
    """The noise level of that step."""
    made: StreamView
    """View in which the student painted."""
    pictures: Tensor
    """Painted pictures, as latents."""
    judged: StreamView
    """View in which teacher and critic judge, given the past as it is."""
    guidance: float
    shown: tuple[Tensor, Tensor] | None = None
    """Past as the student saw it, and its noise levels [B, F], where it was not the clean one."""
    entries: Entries = NO_ENTRIES
    """Entries beside the frames of the past."""


class Painting(Protocol):
    views: list[StreamView]
    """Views in which pictures may be judged, in the same order on every rank."""

    def paint(self, batch: ClipBatch, lots: RowRandomness) -> Painted:
        """Paint chunks with the student, on every rank."""

    def states(self) -> Iterator[ParameterState]:
        """Yield the state that painting keeps from one step to the next."""

    def load_state(self, read: Read) -> None: ...


class MatchingDistillation(Distillation):
    def __init__(
        self,
        student: ModuleLearner,
        judges: Judging,
        painting: Painting,
        setting: DistilSetting,
        options: MatchingOptions,
    ) -> None:
        self._student = student
        self._judges = judges
        self._painting = painting
        self._setting = setting
        self._options = options

    def learn(self, step: int, batch: ClipBatch, may_step: Mapping[str, MayStep]) -> dict[str, LearntStep]:
        """Take the student's step, where it has a turn, and the critic's, each on pictures painted for it."""
        learnt = dict[str, LearntStep]()
        if has_turn(self._options, step):
            learnt["match"] = self._teach_student(
                batch, self._lots("student", batch, step), may_step["student"]
            )
        lots = self._lots("critic", batch, step)
        painted = self._painting.paint(batch, lots)
        judged = self._judged(painted.pictures, painted, lots)
        return learnt | {"critic": self._judges.learn(judged, painted.judged, may_step["critic"])}

    def states(self) -> Iterator[ParameterState]:
        yield from self._judges.states()
        yield from self._painting.states()

    def load_state(self, read: Read) -> None:
        self._judges.load_state(read)
        self._painting.load_state(read)

    def set_rate(self, lr: float) -> None:
        self._judges.set_rate(lr)

    def _lots(self, turn: str, batch: ClipBatch, step: int) -> RowRandomness:
        return RowRandomness(batch.seed, turn, step, self._setting.numbers, self._setting.device)

    def _teach_student(self, batch: ClipBatch, lots: RowRandomness, may_step: MayStep) -> LearntStep:
        painted = self._painting.paint(batch, lots)
        past, past_BF = painted.shown or (painted.past, None)
        sequence = painted.made.sequence
        start = painted.starts
        level_BF = painted.level_BF
        entries = painted.entries
        flow = forced_flows(
            self._student.predictor, past, start, level_BF, painted.text, sequence, past_BF, entries
        )
        mine = clean_estimate(start, level_BF, flow)
        wanted = self._judges.pull(self._judged(mine, painted, lots), painted.judged, painted.guidance)
        rows = training_rows(
            past,
            start,
            level_BF,
            painted.text,
            wanted,
            sequence,
            context_BF=past_BF,
            factor=0.5,
            entries=entries,
        )
        return self._student.learn(rows, may_step)

    def _judged(self, clean: Tensor, painted: Painted, lots: RowRandomness) -> Judged:
        seen = lots.noised(clean, painted.judged.alike, self._options.shift, epoch=JUDGED, margin=MARGIN)
        return Judged(clean, painted.past, seen, painted.text, painted.entries)


def clip_views(setting: DistilSetting, options: DMDOptions) -> list[StreamView]:
    """Options of how chunks are made and judged after real ones."""
    frames = options.frames_per_chunk
    window = options.window
    layout = teacher_forced(range(window // frames), frames, window)
    return [StreamView(ChunkedSequence(layout, setting.config, setting.latent_size, setting.device), frames)]


def has_turn(options: MatchingOptions, step: int) -> bool:
    """The student, at a step: the critic has one at each."""
    return step >= options.critic_first and step % options.student_every == 0


class ClipPainting:
    """All chunks of real clips at once: none sees another that is painted."""

    def __init__(self, student: Predictor, setting: DistilSetting, options: DMDOptions) -> None:
        self._student = student
        self._setting = setting
        self._options = options
        self.views = clip_views(setting, options)
        (self._view,) = self.views

    @torch.no_grad()
    def paint(self, batch: ClipBatch, lots: RowRandomness) -> Painted:
        clip = batch.clean_BFCYX[:, : self._options.window]
        levels = self._setting.levels
        shown = self._shown(clip, lots)
        past, past_BF = shown or (clip, None)
        entries = self._setting.entries(batch.actions_BFA).frames(slice(0, self._options.window))

        def flow(start: Tensor, level_BF: Tensor) -> Tensor:
            return forced_flows(
                self._student, past, start, level_BF, batch.text_BSE, self._view.sequence, past_BF, entries
            )

        starts, clean = painted_steps(
            flow, levels, lambda step: lots.noise(clip.shape[1:], epoch=PAINTED, step=step)
        )
        chosen = lots.choice("step", len(levels))
        return Painted(
            text=batch.text_BSE,
            past=clip,
            starts=starts[chosen],
            level_BF=sampler.per_frame(levels[chosen], clip),
            made=self._view,
            pictures=clean,
            judged=self._view,
            guidance=self._options.guidance,
            shown=shown,
            entries=entries,
        )

    def states(self) -> Iterator[ParameterState]:
        return iter(())

    def load_state(self, read: Read) -> None:
        """Nothing is kept."""

    def _shown(self, clip: Tensor, lots: RowRandomness) -> tuple[Tensor, Tensor] | None:
        """A clip as a noisy past, each chunk at a level of its own."""
        if self._options.forcing == "teacher":
            return None
        noisy, _, level_BF = lots.noised(
            clip, self._options.frames_per_chunk, self._options.context_shift, epoch=CONTEXT
        )
        return noisy, level_BF
