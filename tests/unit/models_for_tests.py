"""Small models with weights that are neither zero nor one anywhere, so that no mistake hides behind them."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from millstream.core.config import DiTConfig, VAEConfig
from millstream.core.controls import Cut
from millstream.engine.engine import Engine
from millstream.models.dit import CausalDiT
from millstream.models.kv import KVRing
from millstream.models.ring_shape import RingShape
from millstream.models.wan.vae import WanVAE

DIT = DiTConfig(
    layers=3, width=48, heads=2, ffn=80, channels=4, text_width=24, text_tokens=7, time_features=32
)
VAE = VAEConfig(width=4, channels=4, mean=(0.1, -0.2, 0.3, 0.0), std=(1.5, 0.5, 1.0, 2.0))
SMALL = dict(height=16, width=32, window=6, seed=4)
"""A stream that is quickly made."""


def shaken(module: nn.Module, scale: float = 0.3, seed: int = 1) -> nn.Module:
    """Every parameter moved away from its initial value."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(
                scale
                * torch.randn(parameter.shape, generator=generator)
                / max(1, parameter[0].numel()) ** 0.5
            )
    return module.eval().requires_grad_(False)


def dit(config: DiTConfig = DIT) -> CausalDiT:
    torch.manual_seed(0)
    return shaken(CausalDiT(config))


def vae(config: VAEConfig = VAE) -> WanVAE:
    torch.manual_seed(0)
    return shaken(WanVAE(config))


def ring(
    config: DiTConfig, grid: tuple[int, int], window: int, sink: int = 0, positions: str = "absolute"
) -> KVRing:
    shape = RingShape(
        layers=config.layers,
        heads=config.heads,
        head_width=config.head_width,
        grid=grid,
        window=window,
        sink=sink,
        positions=positions,
    )
    return KVRing(shape, device=torch.device("cpu"), dtype=torch.float32)


def relative_error(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape, f"{tuple(found.shape)} against {tuple(expected.shape)}"
    assert torch.isfinite(found).all()
    return float((found - expected).norm() / expected.norm())


@cache
def tiny_engine(dtype: str = "float32") -> Engine:
    """One untrained engine for all tests that only stream."""
    return Engine("wan-tiny", weights="random:3", device="cpu", dtype=dtype)


def pictures(engine: Engine, chunks: int = 5, **changes: object) -> np.ndarray:
    """Of a stream with a cut, as numbers that can be subtracted."""
    with engine.session("sea", **SMALL, **changes) as session:
        session.control(Cut(), at_chunk=3)
        return np.concatenate([chunk.frames for chunk in session.stream(chunks)]).astype(np.int16)
