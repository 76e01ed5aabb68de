"""Learning the flow from noise to clips, chunk by chunk: teacher forcing or diffusion forcing.

Teacher forcing shows each noisy chunk the clean chunks before it; diffusion forcing shows it those before it
at noise levels of their own. A teacher may besides learn whole windows at one level with nothing before them:
it can then judge a stream by what it shows, whatever its past (see `self_forcing`). A share of the prompts is
left out, so that guidance has something to differ from. What a caption is not true of, the scene before a
switch, is context and not learnt.
Shapes: B batch, F frames, K chunks, C latent channels, Y and X latent rows and columns, S text tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from millstream.core.config import NO_CONDITIONS
from millstream.models.brook.text import PAD, BrookText
from millstream.models.conditions.injectors import Injectors
from millstream.models.dit import CausalDiT
from millstream.ops.precision import mixed_precision
from millstream.train.loop import LossTurn
from millstream.train.noising import at_levels, chunk_levels
from millstream.train.options import FlowOptions
from millstream.train.parallel.precision import Precision, in_precision
from millstream.train.pool import LatentPool
from millstream.train.sequence import (
    ChunkedSequence,
    Layout,
    beside,
    diffusion_forced,
    forced_flow,
    frames_of,
    teacher_forced,
    together,
)
from millstream.train.share import ALONE, BatchShare


class TextAndDiT(nn.Module):
    """Trained together: what a prompt means is what the picture needs of it, and so is a key."""

    def __init__(self, text: BrookText, dit: CausalDiT, injectors: Injectors | None = None) -> None:
        super().__init__()
        self.text = text
        self.dit = dit
        self.injectors = injectors or Injectors(NO_CONDITIONS, dit.config)


class FlowMethod:
    def __init__(
        self,
        pair: TextAndDiT,
        pool: LatentPool,
        *,
        batch: int,
        options: FlowOptions,
        compiled: bool = False,
        precision: Precision | None = None,
        share: BatchShare = ALONE,
    ) -> None:
        """Matmuls are made in the precision, or in what the device is quick at."""
        self.turns = (LossTurn("student", pair, self._losses),)
        self._pair = pair
        self._pool = pool
        self._batch = batch // share.ranks
        self._share = share
        self._options = options
        frames_per_chunk = options.frames_per_chunk
        window = options.window
        self._flow = torch.compile(pair.dit) if compiled else pair.dit
        _, frames, _, rows, columns = pool.latents_KFCYX.shape
        assert frames % frames_per_chunk == 0, (
            f"{frames} latent frames are not whole chunks of {frames_per_chunk}"
        )
        chunks = frames // frames_per_chunk
        learnt = options.noisy or tuple(range(chunks))
        assert options.forcing == "teacher" or not (options.noisy or options.whole), (
            "diffusion forcing learns every chunk once"
        )
        layout = (teacher_forced if options.forcing == "teacher" else _every_chunk)(
            learnt, frames_per_chunk, window
        )
        self._apart = len(learnt) * frames_per_chunk
        """Frames that are learnt chunk by chunk; those after them as one."""
        places = frames_of(learnt, frames_per_chunk)
        if options.whole:
            layout = beside(layout, together(window))
            places = [*places, *range(frames - window, frames)]
        device = pool.latents_KFCYX.device
        self._products = mixed_precision(device) if precision is None else in_precision(precision, device)
        self._learnt = torch.tensor(places, device=device)
        self._sequence = ChunkedSequence(layout, pair.dit.config, (rows, columns), device)
        context = torch.arange(self._sequence.num_frames - len(places), device=device)
        self._shown = torch.cat([context, self._learnt])
        """Frame of the clip that each frame of the sequence is."""

    def _losses(self, generator: torch.Generator) -> dict[str, Tensor]:
        clip, ids, true_from, actions = self._pool.draw(self._batch, generator, self._share)
        clean = clip[:, self._learnt]
        told_BF = self._learnt >= true_from[:, None]
        told_BF[:, self._apart :] = (true_from == 0)[:, None]
        noise = self._share.normal(clean.shape, generator)
        level_BF = self._levels(clean, generator)
        noisy = at_levels(clean, noise, level_BF)
        ids = ids.masked_fill(self._share.uniform((len(ids), 1), generator) < self._options.drop, PAD)
        with self._products:
            cross = self._pair.dit.read_prompt(self._pair.text(ids))
            entries = self._pair.injectors(actions).frames(self._shown)
            if self._options.forcing == "teacher":
                flow = forced_flow(self._flow, clip, noisy, level_BF, self._sequence, cross, entries=entries)
            else:
                flow = self._flow(noisy, level_BF, self._sequence, cross, entries)
        errors_BF = (flow.float() - (noise - clean)).square().mean(dim=(2, 3, 4))
        return {"flow": (errors_BF * told_BF).sum() / self._share.mean(told_BF.sum())}

    def _levels(self, clean: Tensor, generator: torch.Generator) -> Tensor:
        """One a chunk, and one for the whole window."""
        apart = clean[:, : self._apart]
        window = clean[:, self._apart :]
        shift = self._options.shift
        level_BF = chunk_levels(apart, self._options.frames_per_chunk, shift, generator, share=self._share)
        if not window.shape[1]:
            return level_BF
        return torch.cat(
            [level_BF, chunk_levels(window, window.shape[1], shift, generator, share=self._share)], dim=1
        )


def _every_chunk(chunks: Sequence[int], frames_per_chunk: int, window: int) -> Layout:
    return diffusion_forced(len(chunks), frames_per_chunk, window)
