"""Sequences for all sizes that clips have: the one in use is what a model attends in.

The object that a model is given once, when it is wrapped for training, stays the same; before a step it
switches to that step's size.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor

from millstream.core.config import DiTConfig
from millstream.models.kv import WholeSequence
from millstream.ops.rope import Phases
from millstream.train.sequence import ChunkedSequence, Layout

MOST = 8
"""Number of sequences that are kept: for a long clip, each holds some megabytes of rotary phases."""


class SizedSequence(WholeSequence):
    """Memory, as `ChunkedSequence` is, for latents of several sizes."""

    def __init__(
        self, layout: Layout, config: DiTConfig, latent_size: tuple[int, int], device: torch.device
    ) -> None:
        self._layout = layout
        self._config = config
        self._device = device
        self._made: OrderedDict[tuple[int, int], ChunkedSequence] = OrderedDict()
        self.turn_to(latent_size)

    def turn_to(self, latent_size: tuple[int, int]) -> None:
        """Switch to latents of this size."""
        assert all(side % self._config.patch == 0 for side in latent_size), (
            f"{latent_size} is not whole patches"
        )
        if latent_size not in self._made:
            self._made[latent_size] = ChunkedSequence(self._layout, self._config, latent_size, self._device)
        self._made.move_to_end(latent_size)
        if len(self._made) > MOST:
            self._made.popitem(last=False)
        self._now = self._made[latent_size]

    @property
    def num_tokens(self) -> int:
        return self._now.num_tokens

    @property
    def keys_per_query(self) -> float:
        return self._now.keys_per_query

    @property
    def phases(self) -> Phases:
        return self._now.phases

    def write(self, layer: int, k_BLNH: Tensor, v_BLNH: Tensor) -> None:
        self._now.write(layer, k_BLNH, v_BLNH)

    def attend(self, layer: int, q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor) -> Tensor:
        return self._now.attend(layer, q_BLNH, k_BLNH, v_BLNH)
