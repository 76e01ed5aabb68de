"""Rolled-out streams as whole sequences, for passes that need gradients: the past, then the chunks that are learnt from."""

from __future__ import annotations

import torch

from millstream.core.config import StreamConfig
from millstream.models.dit import CausalDiT
from millstream.trainer.sequence import ChunkedSequence, teacher_forced


class StreamSequences:
    """Made when they are first needed: rollouts fork in few places."""

    def __init__(self, dit: CausalDiT, config: StreamConfig, device: torch.device) -> None:
        self._dit, self._config, self._device = dit.config, config, device
        self._made = dict[tuple[int, int, int], ChunkedSequence]()

    def of(self, past: int, frames: int, copies: int = 1) -> ChunkedSequence:
        """`past` clean frames, then `frames` noisy ones, chunk by chunk, so many times."""
        key = past, frames, copies
        if key not in self._made:
            first, chunks = past // self._config.frames_per_chunk, frames // self._config.frames_per_chunk
            noisy = [*range(first, first + chunks)] * copies
            layout = teacher_forced(noisy, self._config.frames_per_chunk, self._config.window)
            self._made[key] = ChunkedSequence(layout, self._dit, self._config.latent_size, self._device)
        return self._made[key]
