"""Rolled-out streams as whole sequences, for passes that need gradients: the past, then the chunks that are
learnt from."""

from __future__ import annotations

import torch

from millstream.core.config import StreamConfig
from millstream.models.dit import CausalDiT
from millstream.train.sequence import ChunkedSequence, teacher_forced


class StreamSequences:
    """Sequences of rolled-out streams, made when they are first needed: rollouts fork in few places."""

    def __init__(self, dit: CausalDiT, config: StreamConfig, device: torch.device) -> None:
        self._dit = dit.config
        self._config = config
        self._device = device
        self._made = dict[tuple[int, int, int], ChunkedSequence]()

    def of(self, past: int, frames: int, copies: int = 1) -> ChunkedSequence:
        """Return the sequence of `past` clean frames, then `frames` noisy ones, chunk by chunk, `copies`
        times."""
        key = past, frames, copies
        if key not in self._made:
            first = past // self._config.frames_per_chunk
            chunks = frames // self._config.frames_per_chunk
            noisy = [*range(first, first + chunks)] * copies
            layout = teacher_forced(noisy, self._config.frames_per_chunk, self._config.window)
            self._made[key] = ChunkedSequence(layout, self._dit, self._config.latent_size, self._device)
        return self._made[key]
