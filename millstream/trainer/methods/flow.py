"""Learning the flow from noise to clips, chunk by chunk: teacher forcing or diffusion forcing.

Teacher forcing shows each noisy chunk the clean chunks before it; diffusion forcing shows it those before it at noise
levels of their own. A share of the prompts is left out, so that guidance has something to differ from.
Shapes: B batch, F frames, K chunks, C latent channels, Y and X latent rows and columns, S text tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from millstream.core.schedule import FULL
from millstream.models.brook.text import PAD, BrookText
from millstream.models.dit import CausalDiT
from millstream.trainer.loop import Turn
from millstream.trainer.pool import LatentPool
from millstream.trainer.sequence import ChunkedSequence, diffusion_forced, teacher_forced


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
        shift: float = 3.0,
        drop: float = 0.1,
    ) -> None:
        self.turns = (Turn("student", pair, self._losses),)
        self._pair, self._pool, self._batch = pair, pool, batch
        self._frames, self._shift, self._drop, self._forcing = frames_per_chunk, shift, drop, forcing
        _, frames, _, rows, columns = pool.latents_KFCYX.shape
        assert frames % frames_per_chunk == 0, f"{frames} latent frames are not whole chunks of {frames_per_chunk}"
        config, device = pair.dit.config, pool.latents_KFCYX.device
        plan = teacher_forced if forcing == "teacher" else diffusion_forced
        positions, pieces = plan(frames // frames_per_chunk, frames_per_chunk, window)
        grid = rows // config.patch, columns // config.patch
        self._sequence = ChunkedSequence(positions, pieces, grid, config.head_width, device)

    def _losses(self, generator: torch.Generator) -> dict[str, Tensor]:
        clean, ids = self._pool.draw(self._batch, generator)
        noise = torch.randn(clean.shape, generator=generator, device=clean.device)
        level_BF = self._levels(clean, generator)
        share = (level_BF / FULL)[..., None, None, None]
        noisy = (1 - share) * clean + share * noise
        ids = ids.masked_fill(torch.rand(len(ids), 1, generator=generator, device=ids.device) < self._drop, PAD)
        with torch.autocast(clean.device.type, dtype=torch.bfloat16):
            cross = self._pair.dit.read_prompt(self._pair.text(ids))
            if self._forcing == "teacher":
                both, levels = torch.cat([clean, noisy], dim=1), torch.cat([torch.zeros_like(level_BF), level_BF], dim=1)
                flow = self._pair.dit(both, levels, self._sequence, cross)[:, clean.shape[1] :]
            else:
                flow = self._pair.dit(noisy, level_BF, self._sequence, cross)
        return {"flow": (flow.float() - (noise - clean)).square().mean()}

    def _levels(self, clean: Tensor, generator: torch.Generator) -> Tensor:
        """One level a chunk, moved towards noise as the schedule is."""
        chunks = clean.shape[1] // self._frames
        uniform = torch.rand(clean.shape[0], chunks, generator=generator, device=clean.device)
        level = FULL * self._shift * uniform / (1 + (self._shift - 1) * uniform)
        return level.repeat_interleave(self._frames, dim=1)
