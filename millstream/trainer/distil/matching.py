"""Distribution matching on ranks: `methods.matching` for any causal model. Whoever has a student paint says how; here it paints
after the chunks of real clips, as in `methods.dmd`.

Shapes: B rows, F frames, C latent channels, Y and X latent rows and columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from millstream.models import sampler
from millstream.parallel.training.learner import ModuleLearner
from millstream.parallel.training.predictor import Predictor
from millstream.parallel.training.states import ParameterState, Read
from millstream.parallel.training.task import LearntStep, MayStep
from millstream.trainer.distil.judges import Judged, Judging
from millstream.trainer.distil.lessons import ClipBatch, Distillation, DistilSetting, forced_flows, lesson
from millstream.trainer.distil.lots import RowLots
from millstream.trainer.methods.dmd import painted_steps
from millstream.trainer.methods.matching import MARGIN, Painted, StreamView
from millstream.trainer.noising import clean_estimate
from millstream.trainer.options import DMDOptions, MatchingOptions
from millstream.trainer.sequence import ChunkedSequence, teacher_forced

PAINTED, CONTEXT, JUDGED = 0, 1, 2
"""Epochs of the noise that each is given."""


class Painting(Protocol):
    views: list[StreamView]
    """In which pictures may be judged, in the same order on every rank."""

    def paint(self, batch: ClipBatch, lots: RowLots) -> Painted:
        """Chunks of the student's, on every rank."""

    def states(self) -> Iterator[ParameterState]:
        """What painting keeps from one step to the next."""

    def take(self, read: Read) -> None: ...


class MatchingDistillation(Distillation):
    def __init__(
        self, student: ModuleLearner, judges: Judging, painting: Painting, setting: DistilSetting, options: MatchingOptions
    ) -> None:
        self._student, self._judges, self._painting = student, judges, painting
        self._setting, self._options = setting, options

    def learn(self, step: int, batch: ClipBatch, may_step: Mapping[str, MayStep]) -> dict[str, LearntStep]:
        """The student's turn, where it has one, and the critic's, each on what is painted for it."""
        learnt = dict[str, LearntStep]()
        if has_turn(self._options, step):
            learnt["match"] = self._teach_student(batch, self._lots("student", batch, step), may_step["student"])
        lots = self._lots("critic", batch, step)
        painted = self._painting.paint(batch, lots)
        judged = self._judged(painted.pictures, painted, lots)
        return learnt | {"critic": self._judges.learn(judged, painted.judged, may_step["critic"])}

    def states(self) -> Iterator[ParameterState]:
        yield from self._judges.states()
        yield from self._painting.states()

    def take(self, read: Read) -> None:
        self._judges.take(read)
        self._painting.take(read)

    def set_rate(self, lr: float) -> None:
        self._judges.set_rate(lr)

    def _lots(self, turn: str, batch: ClipBatch, step: int) -> RowLots:
        return RowLots(batch.seed, turn, step, self._setting.numbers, self._setting.device)

    def _teach_student(self, batch: ClipBatch, lots: RowLots, may_step: MayStep) -> LearntStep:
        painted = self._painting.paint(batch, lots)
        past, past_BF = painted.shown or (painted.past, None)
        sequence, start, level_BF = painted.made.sequence, painted.starts, painted.level_BF
        flow = forced_flows(self._student.predictor, past, start, level_BF, painted.text, sequence, past_BF)
        mine = clean_estimate(start, level_BF, flow)
        wanted = self._judges.pull(self._judged(mine, painted, lots), painted.judged, painted.guidance)
        rows = lesson(past, start, level_BF, painted.text, wanted, sequence, context_BF=past_BF, factor=0.5)
        return self._student.learn(rows, may_step)

    def _judged(self, clean: Tensor, painted: Painted, lots: RowLots) -> Judged:
        seen = lots.noised(clean, painted.judged.alike, self._options.shift, epoch=JUDGED, margin=MARGIN)
        return Judged(clean, painted.past, seen, painted.text)


def clip_views(setting: DistilSetting, options: DMDOptions) -> list[StreamView]:
    """How chunks are made and judged after real ones."""
    frames, window = options.frames_per_chunk, options.window
    layout = teacher_forced(range(window // frames), frames, window)
    return [StreamView(ChunkedSequence(layout, setting.config, setting.latent_size, setting.device), frames)]


def has_turn(options: MatchingOptions, step: int) -> bool:
    """The student, at a step: the critic has one at each."""
    return step >= options.critic_first and step % options.student_every == 0


class ClipPainting:
    """All chunks of real clips at once: none sees another that is painted."""

    def __init__(self, student: Predictor, setting: DistilSetting, options: DMDOptions) -> None:
        self._student, self._setting, self._options = student, setting, options
        self.views = clip_views(setting, options)
        (self._view,) = self.views

    @torch.no_grad()
    def paint(self, batch: ClipBatch, lots: RowLots) -> Painted:
        clip, levels = batch.clean_BFCYX[:, : self._options.window], self._setting.levels
        shown = self._shown(clip, lots)
        past, past_BF = shown or (clip, None)

        def flow(start: Tensor, level_BF: Tensor) -> Tensor:
            return forced_flows(self._student, past, start, level_BF, batch.text_BSE, self._view.sequence, past_BF)

        starts, clean = painted_steps(flow, levels, lambda step: lots.noise(clip.shape[1:], epoch=PAINTED, step=step))
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
        )

    def states(self) -> Iterator[ParameterState]:
        return iter(())

    def take(self, read: Read) -> None:
        """Nothing is kept."""

    def _shown(self, clip: Tensor, lots: RowLots) -> tuple[Tensor, Tensor] | None:
        """A clip as a noisy past, each chunk at a level of its own."""
        if self._options.forcing == "teacher":
            return None
        noisy, _, level_BF = lots.noised(clip, self._options.frames_per_chunk, self._options.context_shift, epoch=CONTEXT)
        return noisy, level_BF
