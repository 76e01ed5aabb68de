"""Consistency distillation on ranks: wherever on a teacher's guided path a student begins, it says the same
end.

Discrete: the end it says one step of the teacher further on is what it is to say here. Continuous: the same
for an infinitely small step, by the derivative of its flow along the teacher's, taken forwards with the flow
itself. All chunks of real clips are learnt at once, each after the clean ones before it, or noisy ones.
Shapes: B rows, K chunks, F frames, C latent channels, Y and X latent rows and columns.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from millstream.core.schedule import FULL, even_steps, noise_levels
from millstream.models.entries import Entries
from millstream.train.distil.row_randomness import RowRandomness
from millstream.train.distil.training_rows import (
    ClipBatch,
    Distillation,
    DistilSetting,
    forced_flows,
    training_rows,
)
from millstream.train.noising import at_levels, clean_estimate, per_pixel, spread_levels
from millstream.train.options import ConsistencyOptions
from millstream.train.parallel.learner import ModuleLearner
from millstream.train.parallel.predictor import Predictor
from millstream.train.parallel.task import FlowRows, LearntStep, MayStep
from millstream.train.rollout import guided_flow
from millstream.train.sequence import ChunkedSequence, forced_input, teacher_forced

NOISE = 0
CONTEXT = 1
"""Epoch of the noise for each use."""
MARGIN = 0.005
"""Share of the range that noise levels keep from both ends: at 0 there is no flow to learn."""
CALM = 0.1
"""Added to the size of a derivative that is brought to unit size."""


class ConsistencyDistillation(Distillation):
    def __init__(
        self, student: ModuleLearner, teacher: Predictor, setting: DistilSetting, options: ConsistencyOptions
    ) -> None:
        self._student = student
        self._teacher = teacher
        self._setting = setting
        self._options = options
        frames = options.frames_per_chunk
        layout = teacher_forced(range(setting.latent_frames // frames), frames, options.window)
        self._sequence = ChunkedSequence(layout, setting.config, setting.latent_size, setting.device)
        path = noise_levels(even_steps(options.teacher_steps), shift=options.shift, warp=True)
        self._grid = torch.tensor([*path, 0.0], device=setting.device)

    def learn(self, step: int, batch: ClipBatch, may_step: Mapping[str, MayStep]) -> dict[str, LearntStep]:
        lots = RowRandomness(batch.seed, "consistency", step, self._setting.numbers, self._setting.device)
        shown = self._shown(batch.clean_BFCYX, lots)
        if self._options.consistency == "discrete":
            rows = self._neighbours(batch, lots, *shown)
        else:
            rows = self._along(
                batch, lots, *shown, share=min(1.0, step / max(1, self._options.tangent_warm_up))
            )
        return {"consistency": self._student.learn(rows, may_step["student"])}

    def _neighbours(self, batch: ClipBatch, lots: RowRandomness, past: Tensor, past_BF: Tensor) -> FlowRows:
        place_BK = (lots.uniform("place", self._chunks) * self._options.teacher_steps).long()
        here_BF, next_BF = (self._per_frame(self._grid[place_BK + ahead]) for ahead in (0, 1))
        noisy = at_levels(batch.clean_BFCYX, lots.noise(batch.clean_BFCYX.shape[1:], epoch=NOISE), here_BF)
        entries = self._setting.entries(batch.actions_BFA)
        flow = self._taught(past, past_BF, noisy, here_BF, batch.text_BSE, entries)
        further = noisy - per_pixel(here_BF - next_BF) / FULL * flow
        said = forced_flows(
            self._student.predictor, past, further, next_BF, batch.text_BSE, self._sequence, past_BF, entries
        )
        wanted = clean_estimate(further, next_BF, said)
        return training_rows(
            past,
            noisy,
            here_BF,
            batch.text_BSE,
            wanted,
            self._sequence,
            context_BF=past_BF,
            entries=entries,
        )

    def _along(
        self, batch: ClipBatch, lots: RowRandomness, past: Tensor, past_BF: Tensor, *, share: float
    ) -> FlowRows:
        """The student's end does not move along the path where its flow is the teacher's less the level times
        its own change; what it is off by is brought to unit size, of which the part that changes comes in
        over the first steps."""
        frames = self._options.frames_per_chunk
        shift = self._options.shift
        level_BF = spread_levels(lots.uniform("levels", self._chunks), frames, shift, margin=MARGIN)
        noisy = at_levels(batch.clean_BFCYX, lots.noise(batch.clean_BFCYX.shape[1:], epoch=NOISE), level_BF)
        entries = self._setting.entries(batch.actions_BFA)
        taught = self._taught(past, past_BF, noisy, level_BF, batch.text_BSE, entries)
        both, levels = forced_input(past, noisy, level_BF, self._sequence, past_BF)
        context = both.shape[1] - noisy.shape[1]
        still = both.new_zeros(both[:, :context].shape)
        moving = torch.full_like(level_BF, FULL)
        along = (
            torch.cat([still, taught], dim=1),
            torch.cat([levels.new_zeros(levels[:, :context].shape), moving], dim=1),
        )
        entered = self._sequence.entered(entries)
        found = self._student.predictor.changing_flows(
            both, levels, batch.text_BSE, self._sequence, along, entered
        )
        flow, change = (each[:, context:] for each in found)
        off = flow - taught + share * per_pixel(level_BF) / FULL * change
        size = off.square().mean(dim=(1, 2, 3, 4), keepdim=True).sqrt()
        wanted = flow - off / (size + CALM)
        return FlowRows(both, levels, batch.text_BSE, wanted, None, self._sequence, entered)

    def _taught(
        self,
        past: Tensor,
        past_BF: Tensor,
        noisy: Tensor,
        level_BF: Tensor,
        text: Tensor,
        entries: Entries,
    ) -> Tensor:
        """Return the guided teacher's flow."""
        asked, without = (
            forced_flows(self._teacher, past, noisy, level_BF, prompt, self._sequence, past_BF, entries)
            for prompt in (text, self._setting.no_prompt(len(text)))
        )
        return guided_flow(asked, without, self._options.guidance)

    def _shown(self, clip: Tensor, lots: RowRandomness) -> tuple[Tensor, Tensor]:
        """Return a clip as the past of its own chunks, and its levels."""
        if self._options.forcing == "teacher":
            return clip, torch.zeros(clip.shape[:2], device=clip.device)
        noisy, _, level_BF = lots.noised(
            clip, self._options.frames_per_chunk, self._options.context_shift, epoch=CONTEXT
        )
        return noisy, level_BF

    @property
    def _chunks(self) -> int:
        return self._setting.latent_frames // self._options.frames_per_chunk

    def _per_frame(self, level_BK: Tensor) -> Tensor:
        return level_BK.repeat_interleave(self._options.frames_per_chunk, dim=1)
