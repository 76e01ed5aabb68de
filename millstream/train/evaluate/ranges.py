"""Ranges of the inputs of a Brook's layers over streams of captions, as its matmuls in 8 bits need them.

Knows no files. A range is the least and the greatest value that was seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from millstream.core.config import StreamConfig
from millstream.models.brook.int8 import Ranges, int8_layers
from millstream.models.registry import LoadedModel
from millstream.ops.int8 import Range
from millstream.train.data.captions import canonical_captions
from millstream.train.data.scene import sample_scenes
from millstream.train.evaluate.streams import Tick, latent_ticks, stream_latents

SEED = 515151
"""Seed of the scenes whose captions are the prompts: neither those that training uses nor those that are
judged."""
CHUNKS = 5
"""Chunks of each stream, until the window is full and beyond."""


def measure_ranges(
    model: LoadedModel, count: int, *, config: StreamConfig, tick: Tick = lambda: None
) -> Ranges:
    scenes = sample_scenes(count, seed=SEED, held_out=False, device=model.device)
    with _watched(int8_layers(model.dit)) as seen:
        stream_latents(model, canonical_captions(scenes), CHUNKS, config=config, tick=tick)
    return {name: _joined(ranges) for name, ranges in seen.items()}


def range_ticks(count: int, device: torch.device) -> int:
    """Return how often `measure_ranges` will tick."""
    return latent_ticks(count, CHUNKS, device)


@contextmanager
def _watched(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, list[Range]]]:
    """Record the range of each layer's input at each call."""
    seen: dict[str, list[Range]] = {name: [] for name in layers}

    def watch(name: str, inputs: tuple[Tensor, ...]) -> None:
        low, high = inputs[0].aminmax()
        seen[name].append(Range(low.item(), high.item()))

    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs, name=name: watch(name, inputs))
        for name, layer in layers.items()
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _joined(ranges: Sequence[Range]) -> Range:
    assert ranges, "a layer that was never called has no range"
    return Range(min(r.low for r in ranges), max(r.high for r in ranges))
