"""Few steps from many: the student learns to land where the teacher's guided path ends, from where it began.

The pair (noise, end of path) is deterministic, so a plain squared error keeps pictures sharp. From the second
step on the student starts from its own estimate with new noise in it, as it will when it streams; its steps
are learnt all in one batch. Guidance goes into the target, so the student needs none. Its context is clean
(teacher forcing) or at random noise levels (diffusion forcing).

Shapes: B rows, F frames, C latent channels, Y and X latent rows and columns.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from millstream.core.schedule import even_steps, noise_levels
from millstream.models import sampler
from millstream.models.entries import Entries
from millstream.train.data.frame_actions import idle_before
from millstream.train.distil.row_randomness import RowRandomness
from millstream.train.distil.training_rows import (
    NO_CROSS,
    ClipBatch,
    Distillation,
    DistilSetting,
    PromptedFlow,
    forced_flows,
    painted_steps,
    training_rows,
)
from millstream.train.options import GIVEN, ODEOptions
from millstream.train.parallel.learner import ModuleLearner
from millstream.train.parallel.predictor import Predictor
from millstream.train.parallel.task import FlowRows, LearntStep, MayStep
from millstream.train.rollout import Guided, guided_end, ring_for
from millstream.train.sequence import ChunkedSequence, diffusion_forced

PATH = 0
CONTEXT = 1
"""Epochs of the noise that each is given."""


class ODEDistillation(Distillation):
    def __init__(
        self, student: ModuleLearner, teacher: Predictor, setting: DistilSetting, options: ODEOptions
    ) -> None:
        self._student = student
        self._teacher = teacher
        self._setting = setting
        self._options = options
        self._frames = options.frames_per_chunk
        self._path = teacher_path(options)
        longest = min(setting.latent_frames, options.window) // self._frames
        assert longest >= 1, f"a chunk of {self._frames} frames in clips of {setting.latent_frames}"
        self._sequences = self._after(0, longest)
        """For a chunk with none, one, two ... before it."""
        in_clip = (setting.latent_frames - GIVEN) // self._frames
        self._after_picture = self._after(GIVEN, min(longest, in_clip)) if options.first_frame else []
        """Likewise, after a picture's."""
        assert self._after_picture or not options.first_frame, (
            f"clips of {setting.latent_frames} are too short"
        )

    def learn(self, step: int, batch: ClipBatch, may_step: Mapping[str, MayStep]) -> dict[str, LearntStep]:
        lots = RowRandomness(batch.seed, "ode", step, self._setting.numbers, self._setting.device)
        return {"ode": self._student.learn(self._rows(batch, lots), may_step["student"])}

    def _rows(self, batch: ClipBatch, lots: RowRandomness) -> FlowRows:
        is_given = self._options.first_frame > lots.shared("first frame")[0]
        given = GIVEN if is_given else 0
        sequences = self._after_picture if is_given else self._sequences
        chunk = (
            lots.choice("chunk", len(sequences) + 1) - 1
        )  # the first chunk twice as often: it is the hardest
        context = batch.clean_BFCYX[:, : given + self._frames * max(0, chunk)]
        sequence = sequences[max(0, chunk)]
        shape = batch.clean_BFCYX[0, : self._frames].shape
        noises = [
            lots.noise(shape, epoch=PATH, chunk=max(0, chunk), step=step)
            for step in range(len(self._setting.levels))
        ]
        held = idle_before(batch.actions_BFA, given)
        entries = self._setting.entries(held).frames(slice(0, sequence.num_frames))
        wanted = self._teach(context, noises[0], batch.text_BSE, entries, given)
        shown, shown_BF = self._forced(context, lots)

        def flow(start: Tensor, level_BF: Tensor) -> Tensor:
            return forced_flows(
                self._student.predictor,
                shown,
                start,
                level_BF,
                batch.text_BSE,
                sequence,
                shown_BF,
                entries,
            )

        starts, _ = painted_steps(flow, self._setting.levels, noises.__getitem__)
        level_BF = torch.cat([sampler.per_frame(level, starts[0]) for level in self._setting.levels])
        count = len(starts)
        return training_rows(
            shown.repeat(count, 1, 1, 1, 1),
            torch.cat(starts),
            level_BF,
            batch.text_BSE.repeat(count, 1, 1),
            wanted.repeat(count, 1, 1, 1, 1),
            sequence,
            context_BF=shown_BF.repeat(count, 1),
            factor=count,  # the steps' errors are summed, and rows' are averaged
            entries=entries.repeated(count),
        )

    def _after(self, given: int, longest: int) -> list[ChunkedSequence]:
        setting = self._setting
        return [
            ChunkedSequence(
                diffusion_forced(count, self._frames, self._options.window, given),
                setting.config,
                setting.latent_size,
                setting.device,
            )
            for count in range(1, longest + 1)
        ]

    def _teach(self, context: Tensor, noise: Tensor, text: Tensor, entries: Entries, given: int) -> Tensor:
        """Compute where the guided teacher goes from `noise`, given the clean frames before it."""
        prompts = torch.cat([text, self._setting.no_prompt(len(text))])
        shape = (2 * len(noise), *noise.shape[1:])
        ring = ring_for(
            self._teacher.dit,
            shape,
            window=self._options.window,
            device=noise.device,
            dtype=self._setting.paints_in,
        )
        guided = Guided(PromptedFlow(self._teacher.flow, prompts), self._options.guidance)
        return guided_end(guided, context, noise, self._path, ring, NO_CROSS, entries, given)

    def _forced(self, context: Tensor, lots: RowRandomness) -> tuple[Tensor, Tensor]:
        """The context as the student is shown it, and the noise level of each of its frames."""
        if self._options.forcing == "teacher" or not context.shape[1]:
            return context, torch.zeros(context.shape[:2], device=context.device)
        given = context.shape[1] % self._frames  # a picture's frames are clean, as when it is shown
        chunks = context[:, given:]
        noisy, _, level_BF = lots.noised(chunks, self._frames, self._options.context_shift, epoch=CONTEXT)
        clean_BF = level_BF.new_zeros(len(context), given)
        return torch.cat([context[:, :given], noisy], dim=1), torch.cat([clean_BF, level_BF], dim=1)


def teacher_path(options: ODEOptions) -> tuple[float, ...]:
    """The noise levels a teacher goes through, high to low."""
    return noise_levels(even_steps(options.teacher_steps), shift=options.shift, warp=True)
