"""Learning the flow from noise to clips, chunk by chunk: teacher forcing or diffusion forcing.

Teacher forcing shows each noisy chunk the clean chunks before it; diffusion forcing shows it those before it at noise
levels of their own. A share of the prompts is left out, so that guidance has something to differ from. What a caption is
not true of, the scene before a switch, is context and not learnt.
Shapes: B batch, F frames, K chunks, C latent channels, Y and X latent rows and columns, S text tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from millstream.models.brook.text import PAD, BrookText
from millstream.models.dit import CausalDiT
from millstream.trainer.loop import Turn
from millstream.trainer.noising import at_levels, chunk_levels
from millstream.trainer.pool import LatentPool
from millstream.trainer.sequence import ChunkedSequence, diffusion_forced, forced_flow, frames_of, teacher_forced


class TextAndDiT(nn.Module):
    """Trained together: what a prompt means is what the picture needs of it."""

    def __init__(self, text: BrookText, dit: CausalDiT) -> None:
        super().__init__()
        self.text = text
        self.dit = dit


class FlowMethod:
    def __init__(
        self,
        pair: TextAndDiT,
        pool: LatentPool,
        *,
        batch: int,
        frames_per_chunk: int = 3,
        window: int = 9,
        forcing: str = "teacher",
        noisy: Sequence[int] = (),
        shift: float = 3.0,
        drop: float = 0.1,
        compiled: bool = False,
    ) -> None:
        """`noisy` numbers the chunks that teacher forcing learns, some more often than others; all once if empty."""
        self.turns = (Turn("student", pair, self._losses),)
        self._pair, self._pool, self._batch = pair, pool, batch
        self._frames, self._shift, self._drop, self._forcing = frames_per_chunk, shift, drop, forcing
        self._flow = torch.compile(pair.dit) if compiled else pair.dit
        _, frames, _, rows, columns = pool.latents_KFCYX.shape
        assert frames % frames_per_chunk == 0, f"{frames} latent frames are not whole chunks of {frames_per_chunk}"
        chunks = frames // frames_per_chunk
        learnt = tuple(noisy) or tuple(range(chunks))
        assert forcing == "teacher" or not noisy, "diffusion forcing learns every chunk once"
        if forcing == "teacher":
            layout = teacher_forced(learnt, frames_per_chunk, window)
        else:
            layout = diffusion_forced(chunks, frames_per_chunk, window)
        device = pool.latents_KFCYX.device
        self._learnt = torch.tensor(frames_of(learnt, frames_per_chunk), device=device)
        self._sequence = ChunkedSequence(layout, pair.dit.config, (rows, columns), device)

    def _losses(self, generator: torch.Generator) -> dict[str, Tensor]:
        clip, ids, true_from = self._pool.draw(self._batch, generator)
        clean, told_BF = clip[:, self._learnt], self._learnt >= true_from[:, None]
        noise = torch.randn(clean.shape, generator=generator, device=clean.device)
        level_BF = chunk_levels(clean, self._frames, self._shift, generator)
        noisy = at_levels(clean, noise, level_BF)
        ids = ids.masked_fill(torch.rand(len(ids), 1, generator=generator, device=ids.device) < self._drop, PAD)
        with torch.autocast(clean.device.type, dtype=torch.bfloat16):
            cross = self._pair.dit.read_prompt(self._pair.text(ids))
            if self._forcing == "teacher":
                flow = forced_flow(self._flow, clip, noisy, level_BF, self._sequence, cross)
            else:
                flow = self._flow(noisy, level_BF, self._sequence, cross)
        errors_BF = (flow.float() - (noise - clean)).square().mean(dim=(2, 3, 4))
        return {"flow": (errors_BF * told_BF).sum() / told_BF.sum()}
