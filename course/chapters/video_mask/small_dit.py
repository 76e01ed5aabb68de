"""A small DiT with weights that matter everywhere, and its ring: for the scripts of this chapter."""

from __future__ import annotations

import torch
from torch import Tensor

from course.brook import CPU
from millstream.core.config import DiTConfig
from millstream.models.dit import CausalDiT
from millstream.models.kv import KVRing
from millstream.models.ring_shape import RingShape

CONFIG = DiTConfig(
    layers=2, width=48, heads=2, ffn=80, channels=4, text_width=24, text_tokens=7, time_features=32
)
ROWS = 4
COLUMNS = 6
"""Columns of the latents; a token has 2 x 2 latents."""
TOKENS = ROWS * COLUMNS // CONFIG.patch**2


def make_dit() -> CausalDiT:
    """Make a small model with every parameter moved: a fresh one predicts nothing, since its last layer is
    zero."""
    torch.manual_seed(0)
    dit = CausalDiT(CONFIG)
    with torch.no_grad():
        for parameter in dit.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape) / max(1, parameter[0].numel()) ** 0.5)
    return dit.eval().requires_grad_(False)


def make_ring(window: int) -> KVRing:
    shape = RingShape(
        layers=CONFIG.layers,
        heads=CONFIG.heads,
        head_width=CONFIG.head_width,
        grid=(ROWS // CONFIG.patch, COLUMNS // CONFIG.patch),
        window=window,
        sink=0,
    )
    return KVRing(shape, device=CPU, dtype=torch.float32)


def make_latents(frames: int) -> Tensor:
    return torch.randn(1, frames, CONFIG.channels, ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))


def make_prompt() -> Tensor:
    return torch.randn(1, CONFIG.text_tokens, CONFIG.text_width, generator=torch.Generator().manual_seed(2))
