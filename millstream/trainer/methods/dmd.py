"""Distribution matching with a given past: the student paints every chunk of a clip after the real ones before it, shown clean
(teacher forcing) or at random noise levels (diffusion forcing), and is judged after the clean ones.

What it learns it learns of pasts that it will not have when it streams: self-forcing is the same on its own.
Shapes: B batch, F frames, C latent channels, Y and X latent rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from millstream.models import sampler
from millstream.models.dit import CausalDiT
from millstream.ops.precision import mixed_precision
from millstream.trainer.methods.flow import TextAndDiT
from millstream.trainer.methods.matching import Matching, Painted, StreamView
from millstream.trainer.noising import clean_estimate, noised
from millstream.trainer.options import DMDOptions
from millstream.trainer.pool import LatentPool
from millstream.trainer.sequence import ChunkedSequence, teacher_forced
from millstream.trainer.share import ALONE, BatchShare


class DMDMethod:
    def __init__(
        self,
        student: TextAndDiT,
        teacher: TextAndDiT,
        critic: CausalDiT,
        pool: LatentPool,
        *,
        batch: int,
        levels: tuple[float, ...],
        options: DMDOptions,
        share: BatchShare = ALONE,
    ) -> None:
        _, _, _, rows, columns = pool.latents_KFCYX.shape
        frames, window, device = options.frames_per_chunk, options.window, pool.latents_KFCYX.device
        assert window % frames == 0, f"window {window} is not whole chunks of {frames}"
        self._student, self._pool, self._levels, self._options = student, pool, levels, options
        self._batch, self._share = batch // share.ranks, share
        self._matching = Matching(student, teacher, critic, options=options, tokens=pool.ids_KWS.shape[-1], share=share)
        self.turns = self._matching.turns(self._paint)
        layout = teacher_forced(range(window // frames), frames, window)
        self._view = StreamView(ChunkedSequence(layout, student.dit.config, (rows, columns), device), frames)

    @torch.no_grad()
    def _paint(self, generator: torch.Generator) -> Painted:
        """All chunks of real clips at once: none sees another that is painted."""
        clip, ids, _ = self._pool.draw(self._batch, generator, self._share)
        clip, text = clip[:, : self._options.window], self._student.text(ids)
        shown = self._shown(clip, generator)
        past, past_BF = shown or (clip, None)
        chosen = int(torch.randint(len(self._levels), (1,), generator=generator, device=clip.device))
        with mixed_precision(clip.device):
            cross = self._student.dit.read_prompt(text)
            starts, clean = painted_steps(
                lambda start, level_BF: self._view.flows(self._student.dit, past, start, level_BF, cross, past_BF),
                self._levels,
                lambda step: self._share.normal(clip.shape, generator),
            )
        return Painted(
            text=text,
            past=clip,
            starts=starts[chosen],
            level_BF=sampler.per_frame(self._levels[chosen], clip),
            made=self._view,
            pictures=clean,
            judged=self._view,
            guidance=self._options.guidance,
            shown=shown,
        )

    def _shown(self, clip: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor] | None:
        """A clip as a noisy past, each chunk at a level of its own."""
        if self._options.forcing == "teacher":
            return None
        frames, shift = self._options.frames_per_chunk, self._options.context_shift
        noisy, _, level_BF = noised(clip, frames, shift, generator, share=self._share)
        return noisy, level_BF


def painted_steps(
    flow: Callable[[Tensor, Tensor], Tensor], levels: tuple[float, ...], noise: Callable[[int], Tensor]
) -> tuple[list[Tensor], Tensor]:
    """What each step of a few starts from, its own last estimate with new noise in it, and the last one's clean end."""
    starts, clean = list[Tensor](), noise(0)
    for step, level in enumerate(levels):
        starts.append(clean if step == 0 else sampler.mix(clean, noise(step), level))
        level_BF = sampler.per_frame(level, clean)
        clean = clean_estimate(starts[-1], level_BF, flow(starts[-1], level_BF))
    return starts, clean
