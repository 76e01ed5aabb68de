"""Few steps from many: the student learns to land where the teacher's guided path ends, from where it began.

The pair (noise, end of path) is deterministic, so a plain squared error keeps pictures sharp. From the second step
on the student starts from its own estimate with new noise in it, as it will when it streams. Guidance goes into the
target, so the student needs none. Its context is clean (teacher forcing) or at random noise levels (diffusion forcing).
Shapes: B batch, F frames, C latent channels, Y and X latent rows and columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from millstream.core.schedule import FULL, even_steps, noise_levels
from millstream.models import sampler
from millstream.models.brook.text import PAD
from millstream.models.dit import CrossKV
from millstream.ops.precision import mixed_precision
from millstream.trainer.loop import LossTurn
from millstream.trainer.methods.flow import TextAndDiT
from millstream.trainer.noising import noised
from millstream.trainer.options import ODEOptions
from millstream.trainer.pool import LatentPool
from millstream.trainer.rollout import Guided, guided_end, ring_for
from millstream.trainer.sequence import ChunkedSequence, diffusion_forced
from millstream.trainer.share import ALONE, BatchShare


class ODEMethod:
    def __init__(
        self,
        student: TextAndDiT,
        teacher: TextAndDiT,
        pool: LatentPool,
        *,
        batch: int,
        levels: tuple[float, ...],
        options: ODEOptions,
        share: BatchShare = ALONE,
    ) -> None:
        self.turns = (LossTurn("student", student.dit, self._losses),)
        self._student, self._teacher, self._pool = student, teacher, pool
        self._batch, self._share = batch // share.ranks, share
        self._levels, self._options, self._frames = levels, options, options.frames_per_chunk
        _, frames, _, rows, columns = pool.latents_KFCYX.shape
        longest = min(frames, options.window) // self._frames
        layouts = (diffusion_forced(count, self._frames, options.window) for count in range(1, longest + 1))
        size, device = (rows, columns), pool.latents_KFCYX.device
        self._sequences = [ChunkedSequence(layout, student.dit.config, size, device) for layout in layouts]
        """For a chunk with none, one, two ... before it."""
        self._path = teacher_path(options)

    def _losses(self, generator: torch.Generator) -> dict[str, Tensor]:
        clip, ids, _ = self._pool.draw(self._batch, generator, self._share)
        device = clip.device
        chunk = int(torch.randint(-1, len(self._sequences), (1,), generator=generator, device=device))
        before = self._frames * max(0, chunk)  # the first chunk twice as often: it is the hardest
        context = clip[:, :before]
        noise = self._share.normal(clip[:, : self._frames].shape, generator)
        with mixed_precision(device):
            text = self._teacher.text(ids).detach()
            target = self._teach(context, noise, text, ids)
            cross = self._student.dit.read_prompt(text)
            told, context_BF = self._forced(context, generator)
            losses, clean = {}, noise
            for step, level in enumerate(self._levels):
                fresh = self._share.normal(noise.shape, generator)
                start = noise if step == 0 else sampler.mix(clean.detach(), fresh, level)
                clean = self._estimate(told, context_BF, start, level, cross)
                losses[f"step {step}"] = (clean - target).square().mean()
        return losses

    @torch.no_grad()
    def _teach(self, context: Tensor, noise: Tensor, text: Tensor, ids: Tensor) -> Tensor:
        """Where the guided teacher goes from `noise`, given the clean frames before it."""
        dit, empty = self._teacher.dit, self._teacher.text(torch.full_like(ids, PAD))
        cross, shape = dit.read_prompt(torch.cat([text, empty])), (2 * noise.shape[0], *noise.shape[1:])
        ring = ring_for(dit, shape, window=self._options.window, device=noise.device)
        return guided_end(Guided(dit, self._options.guidance), context, noise, self._path, ring, cross)

    def _forced(self, context: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The context as the student is shown it, and the noise level of each of its frames."""
        if self._options.forcing == "teacher" or not context.shape[1]:
            return context, torch.zeros(context.shape[:2], device=context.device)
        noisy, _, level_BF = noised(context, self._frames, self._options.context_shift, generator, share=self._share)
        return noisy, level_BF

    def _estimate(self, context: Tensor, context_BF: Tensor, start: Tensor, level: float, cross: CrossKV) -> Tensor:
        """The student's clean chunk, with gradients."""
        before = context.shape[1]
        sequence = self._sequences[before // self._frames]
        levels = torch.cat([context_BF, sampler.per_frame(level, start)], dim=1)
        flow: Tensor = self._student.dit(torch.cat([context, start], dim=1), levels, sequence, cross)[:, before:]
        return start - level / FULL * flow.float()


def teacher_path(options: ODEOptions) -> tuple[float, ...]:
    """The noise levels a teacher goes through, high to low."""
    return noise_levels(even_steps(options.teacher_steps), shift=options.shift, warp=True)
