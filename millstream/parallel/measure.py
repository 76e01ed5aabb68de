"""Time that a rank takes for one block and for what is around the blocks, measured before any weights are
read.

One block with random weights, over a full window, in the size that the model streams in by default. Times do
not depend on what the weights are. The quickest of a few tries counts: whatever else a machine does only
makes it slower.
Shapes: B batch, F frames, C latent channels, Y and X latent rows and columns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from millstream.core.config import ModelSpec
from millstream.models.dit import CausalDiT
from millstream.models.empty import empty_modules
from millstream.models.kv import KVRing
from millstream.models.ring_shape import RingShape
from millstream.models.weights.fill import fill_random

TRIES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class CallCosts:
    """Seconds of one model call."""

    block_s: float
    embed_s: float
    """Seconds of the embedding on every stage: each embeds the latents and levels of a call itself."""
    head_s: float
    """Seconds of the head, on the last stage."""

    def __post_init__(self) -> None:
        assert min(self.block_s, self.embed_s, self.head_s) >= 0, f"a call took {self}"


@torch.inference_mode()
def measure_call(spec: ModelSpec, *, device: torch.device, dtype: torch.dtype) -> CallCosts:
    config = replace(spec.dit, layers=1)
    stream = spec.stream
    with empty_modules():
        dit = CausalDiT(config)
    fill_random(dit, seed=0, device=device, dtype=dtype)
    rows, columns = stream.latent_size
    ring = KVRing(RingShape.of(config, stream), device=device, dtype=dtype)
    ring.place(list(range(stream.window)))  # attention over zeros takes as long as over anything
    ring.place(list(range(stream.window - stream.frames_per_chunk, stream.window)))
    latents_BFCYX = torch.zeros(
        1, stream.frames_per_chunk, config.channels, rows, columns, device=device, dtype=dtype
    )
    level_BF = torch.zeros(1, stream.frames_per_chunk, device=device)
    cross = dit.read_prompt(torch.zeros(1, config.text_tokens, config.text_width, device=device, dtype=dtype))
    embedded = dit.embed(latents_BFCYX, level_BF)
    return CallCosts(
        block_s=quickest(lambda: dit.blocks(embedded.x_BFTD, embedded.levels_BF6D, ring, cross), device),
        embed_s=quickest(lambda: dit.embed(latents_BFCYX, level_BF), device),
        head_s=quickest(lambda: dit.head(embedded.x_BFTD, embedded.time_BFD, embedded.grid), device),
    )


def quickest(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the quickest of a few tries, after one that is not counted."""
    work()
    return min(_timed(work, device) for _ in range(TRIES))


def _timed(work: Callable[[], object], device: torch.device) -> float:
    _wait_for(device)
    begun = time.perf_counter()
    work()
    _wait_for(device)
    return time.perf_counter() - begun


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
