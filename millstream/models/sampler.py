"""A few steps from noise to a clean chunk, with fresh noise in between.

The same loop serves streaming and the trainer's rollouts. It knows neither sessions nor where noise comes from.
Shapes: B batch, F frames, C channels, Y and X latent rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from millstream.core.schedule import FULL
from millstream.models.dit import CrossKV
from millstream.models.kv import Memory


class FlowModel(Protocol):
    """What the sampler needs of a DiT: the flow of a chunk, and a pass that only leaves keys and values."""

    def __call__(self, latents_BFCYX: Tensor, level_BF: Tensor, memory: Memory, cross: CrossKV) -> Tensor: ...

    def commit(self, latents_BFCYX: Tensor, level_BF: Tensor, memory: Memory, cross: CrossKV) -> None: ...


def mix(clean: Tensor, noise: Tensor, level: float | Tensor) -> Tensor:
    """Latents at a noise level, in float32."""
    share = level / FULL
    return (1.0 - share) * clean.float() + share * noise.float()


def denoise(
    model: FlowModel,
    latents_BFCYX: Tensor,
    levels: tuple[float, ...],
    memory: Memory,
    cross: CrossKV,
    noise: Callable[[int], Tensor],
) -> Tensor:
    """Clean latents in the dtype of `latents_BFCYX`, which are at `levels[0]`. `noise(i)` is what step i starts from."""
    dtype, current = latents_BFCYX.dtype, latents_BFCYX.float()
    clean = current
    for step, level in enumerate(levels):
        if step:
            current = mix(clean, noise(step), level)
        flow = model(current.to(dtype), per_frame(level, current), memory, cross)
        clean = current - level / FULL * flow.float()
    return clean.to(dtype)


def settle(clean_BFCYX: Tensor, level: float, noise: Callable[[], Tensor]) -> Tensor:
    """Clean latents at the level the window is kept at, which is mostly 0: then as they are."""
    return clean_BFCYX if level == 0 else mix(clean_BFCYX, noise(), level).to(clean_BFCYX.dtype)


def commit(model: FlowModel, settled_BFCYX: Tensor, level: float, memory: Memory, cross: CrossKV) -> None:
    """Leave a finished chunk's keys and values in the window."""
    model.commit(settled_BFCYX, per_frame(level, settled_BFCYX), memory, cross)


def per_frame(level: float, latents_BFCYX: Tensor) -> Tensor:
    return torch.full(latents_BFCYX.shape[:2], level, device=latents_BFCYX.device, dtype=torch.float32)
