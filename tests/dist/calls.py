"""Model calls of a few chunks over a ring, on a whole DiT or on a rank's share of one: what parity tests
compare."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from millstream.core.config import DiTConfig
from millstream.models.joint import JointMemory, join_prompts
from millstream.models.kv import KVRing
from millstream.models.paired import PairedMemory
from millstream.models.ring_shape import RingShape
from tests.unit.models_for_tests import dit

FOUR_HEADS = DiTConfig(
    layers=3, width=48, heads=4, ffn=80, channels=4, text_width=24, text_tokens=7, time_features=32
)
GRID = (3, 3)
"""Nine tokens a frame: no number of ranks divides them."""
STREAMS = [dict(window=6, sink=0), dict(window=8, sink=2, positions="windowed")]


def ring_for(model: object, **stream: object) -> KVRing:
    shape = RingShape(
        layers=model.cached_layers,
        heads=model.cached_heads,
        head_width=model.config.head_width,
        grid=GRID,
        **stream,
    )
    return KVRing(shape, device=model.patch_in.weight.device, dtype=model.patch_in.weight.dtype)


@torch.inference_mode()
def flows(model: object, chunks: int = 4, **stream: object) -> Tensor:
    """A noisy call and a commit for every chunk; the flows of all, [chunks, F, C, Y, X]."""
    generator = torch.Generator().manual_seed(7)
    ring = ring_for(model, **stream)
    weight = model.patch_in.weight
    device = weight.device
    cross = model.read_prompt(torch.randn(1, 7, 24, generator=generator).to(weight))
    level = torch.tensor([[700.0, 650.0, 600.0]], device=device)
    clean = torch.zeros(1, 3, device=device)
    found = []
    for chunk in range(chunks):
        latents = torch.randn(1, 3, 4, 2 * GRID[0], 2 * GRID[1], generator=generator).to(weight)
        ring.place([3 * chunk, 3 * chunk + 1, 3 * chunk + 2], kv_bias=0.7 if chunk == 2 else 1.0)
        found.append(model(latents, level, ring, cross))
        model.commit(latents * 0.5, clean, ring, cross)
    return torch.cat(found)


@torch.inference_mode()
def shared_calls(model: object) -> Tensor:
    """A commit carried by the next chunk's step, then two sessions in one call; the flows of both, [4, 3, C,
    Y, X]."""
    generator = torch.Generator().manual_seed(8)
    (latents, more), level = (
        torch.randn(2, 2, 3, 4, 2 * GRID[0], 2 * GRID[1], generator=generator),
        torch.full((2, 3), 600.0),
    )
    rings = [ring_for(model, window=6, sink=0) for _ in range(2)]
    prompts = [model.read_prompt(torch.randn(1, 7, 24, generator=generator)) for _ in rings]
    rings[0].place([0, 1, 2])
    placed = copy.copy(rings[0])
    rings[0].place([3, 4, 5])
    rings[1].place([0, 1, 2])
    levels = torch.cat([torch.zeros(1, 3), level[:1]], dim=1)
    paired = model(latents.flatten(0, 1)[None], levels, PairedMemory(placed, rings[0]), prompts[0])[:, 3:]
    return torch.cat([paired, model(more, level, JointMemory(rings), join_prompts(prompts))])


def whole_flows() -> list[Tensor]:
    return [flows(dit(FOUR_HEADS), **stream) for stream in STREAMS]
