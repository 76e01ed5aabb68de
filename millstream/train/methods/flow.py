"""Learning the flow from noise to clips, chunk by chunk: teacher forcing or diffusion forcing.

Teacher forcing shows each noisy chunk the clean chunks before it; diffusion forcing shows it those before it
at noise levels of their own. A teacher may besides learn whole windows at one level with nothing before them:
it can then judge a stream by what it shows, whatever its past (see `self_forcing`). A share of the prompts is
left out, so that guidance has something to differ from; keys never are, since nothing held means standing
still and guidance is towards words alone. What a caption is not true of, the scene before a switch, is context
and not learnt. A share of the batches comes after a clip's first latent frame, as a stream does that begins
from a picture: its chunks begin one frame later.
Shapes: B batch, F frames, K chunks, C latent channels, Y and X latent rows and columns, S text tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from millstream.core.config import NO_CONDITIONS
from millstream.models.brook.text import PAD, BrookText
from millstream.models.conditions.injectors import Injectors
from millstream.models.dit import CausalDiT
from millstream.ops.precision import mixed_precision
from millstream.train.data.frame_actions import idle_before
from millstream.train.loop import LossTurn
from millstream.train.noising import at_levels, chunk_levels
from millstream.train.options import GIVEN, FlowOptions
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


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowLayout:
    """One layout of a clip's frames, and what is learnt in it."""

    given: int
    """Frames before the first chunk."""
    apart: int
    """Frames that are learnt chunk by chunk; those after them as one."""
    learnt: Tensor
    """Frame of the clip that each learnt frame is."""
    shown: Tensor
    """Frame of the clip that each frame of the sequence is."""
    sequence: ChunkedSequence


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
        # with a second layout no dimension may become dynamic: each is compiled for itself
        only = False if options.first_frame else None
        self._flow = torch.compile(pair.dit, dynamic=only) if compiled else pair.dit
        assert options.forcing == "teacher" or not (options.noisy or options.whole or options.first_frame), (
            "diffusion forcing learns every chunk once"
        )
        device = pool.latents_KFCYX.device
        self._products = mixed_precision(device) if precision is None else in_precision(precision, device)
        self._layouts = [self._laid_out(0)]
        if options.first_frame:
            self._layouts.append(self._laid_out(GIVEN))

    def _laid_out(self, given: int) -> FlowLayout:
        options = self._options
        frames_per_chunk = options.frames_per_chunk
        latents = self._pool.latents_KFCYX
        _, frames, _, rows, columns = latents.shape
        chunks = (frames - given) // frames_per_chunk
        assert given or frames % frames_per_chunk == 0, (
            f"{frames} latent frames are not whole chunks of {frames_per_chunk}"
        )
        assert chunks > 0, f"clips of {frames} latent frames have no chunk after {given}"
        learnt = [chunk for chunk in options.noisy or range(chunks) if chunk < chunks]
        if options.forcing == "teacher":
            layout = teacher_forced(learnt, frames_per_chunk, options.window, given)
        else:
            layout = _every_chunk(learnt, frames_per_chunk, options.window)
        places = frames_of(learnt, frames_per_chunk, given)
        if options.whole:
            layout = beside(layout, together(options.window))
            places = [*places, *range(frames - options.window, frames)]
        sequence = ChunkedSequence(layout, self._pair.dit.config, (rows, columns), latents.device)
        learnt_frames = torch.tensor(places, device=latents.device)
        context = torch.arange(sequence.num_frames - len(places), device=latents.device)
        return FlowLayout(
            given=given,
            apart=len(learnt) * frames_per_chunk,
            learnt=learnt_frames,
            shown=torch.cat([context, learnt_frames]),
            sequence=sequence,
        )

    def _losses(self, generator: torch.Generator) -> dict[str, Tensor]:
        laid = self._layout(generator)
        clip, ids, true_from, actions, things = self._pool.draw(self._batch, generator, self._share)
        clean = clip[:, laid.learnt]
        told_BF = laid.learnt >= true_from[:, None]
        told_BF[:, laid.apart :] = (true_from == 0)[:, None]
        noise = self._share.normal(clean.shape, generator)
        level_BF = self._levels(clean, laid.apart, generator)
        noisy = at_levels(clean, noise, level_BF)
        ids = ids.masked_fill(self._share.uniform((len(ids), 1), generator) < self._options.drop, PAD)
        with self._products:
            cross = self._pair.dit.read_prompt(self._pair.text(ids))
            held = idle_before(actions, laid.given)
            entries = self._pair.injectors(held).frames(laid.shown)
            if self._options.forcing == "teacher":
                flow = forced_flow(self._flow, clip, noisy, level_BF, laid.sequence, cross, entries=entries)
            else:
                flow = self._flow(noisy, level_BF, laid.sequence, cross, entries)
        errors = (flow.float() - (noise - clean)).square()
        if things is not None and self._options.thing_weight:
            weight_BFYX = 1.0 + self._options.thing_weight * things[:, laid.learnt]
            errors = errors * weight_BFYX[:, :, None]
        errors_BF = errors.mean(dim=(2, 3, 4))
        return {"flow": (errors_BF * told_BF).sum() / self._share.mean(told_BF.sum())}

    def _layout(self, generator: torch.Generator) -> FlowLayout:
        """The layout of a step, by its number: all ranks' generators begin alike, and none is drawn from."""
        if len(self._layouts) == 1:
            return self._layouts[0]
        lot = random.Random(generator.initial_seed()).random()
        return self._layouts[lot < self._options.first_frame]

    def _levels(self, clean: Tensor, num_apart: int, generator: torch.Generator) -> Tensor:
        """One a chunk, and one for the whole window."""
        apart = clean[:, :num_apart]
        window = clean[:, num_apart:]
        shift = self._options.shift
        level_BF = chunk_levels(apart, self._options.frames_per_chunk, shift, generator, share=self._share)
        if not window.shape[1]:
            return level_BF
        return torch.cat(
            [level_BF, chunk_levels(window, window.shape[1], shift, generator, share=self._share)], dim=1
        )


def _every_chunk(chunks: Sequence[int], frames_per_chunk: int, window: int) -> Layout:
    return diffusion_forced(len(chunks), frames_per_chunk, window)
