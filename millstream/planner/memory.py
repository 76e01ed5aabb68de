"""Bytes that a model and its sessions hold for as long as they live: weights, windows, prompts.

Not in it: activations and the VAE's working set, which depend on kernels. So this is a lower bound, good
for saying no before anything is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from millstream.core.chunk_work import injector_products, tokens_per_frame
from millstream.core.config import (
    BrookTextConfig,
    BrookVAEConfig,
    DiTConfig,
    ModelSpec,
    StreamConfig,
    TextConfig,
    VAEConfig,
)

TILE = 128
"""Keys that share a scale in a window's 8-bit copy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryNeed:
    weight_bytes: int
    window_bytes: int
    """Keys and values of one session."""
    prompt_bytes: int
    """Keys and values of one session's prompt."""

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.window_bytes + self.prompt_bytes


def memory_need(
    spec: ModelSpec, stream: StreamConfig, *, value_bytes: int, with_text: bool = True
) -> MemoryNeed:
    text = text_parameters(spec.text) if with_text else 0
    return MemoryNeed(
        weight_bytes=value_bytes
        * (dit_parameters(spec.dit) + injector_parameters(spec) + vae_parameters(spec.vae) + text),
        window_bytes=window_bytes(spec.dit, stream, value_bytes=value_bytes),
        prompt_bytes=2 * spec.dit.layers * spec.dit.width * spec.dit.text_tokens * value_bytes,
    )


def window_bytes(dit: DiTConfig, stream: StreamConfig, *, value_bytes: int, key_multiple: int = 1) -> int:
    """The key/value ring, with room for a round number of keys; with windowed positions the sink's keys are
    held twice."""
    assert key_multiple > 0, f"keys in multiples of {key_multiple}"
    keys = -(-stream.window * tokens_per_frame(dit, stream) // key_multiple) * key_multiple
    kept_sink = stream.sink * tokens_per_frame(dit, stream) if stream.positions == "windowed" else 0
    return (2 * keys + kept_sink) * dit.layers * dit.width * value_bytes


def packed_bytes(dit: DiTConfig, stream: StreamConfig) -> int:
    """The window's copy in 8 bits, in whole tiles of keys; in float32 two scales for each head's tile and two
    means."""
    tiles = -(-stream.window * tokens_per_frame(dit, stream) // TILE)
    return dit.layers * (2 * tiles * TILE * dit.width + 8 * (tiles * dit.heads + dit.width))


@cache
def dit_parameters(c: DiTConfig) -> int:
    attention = 4 * _linear(c.width, c.width) + 2 * c.width
    block = 6 * c.width + 2 * attention + 2 * c.width + _linear(c.width, c.ffn) + _linear(c.ffn, c.width)
    cells = c.channels * c.patch**2
    embeddings = (
        _linear(c.channels_in * c.patch**2, c.width)
        + _linear(c.text_width, c.width)
        + _linear(c.time_features, c.width)
    )
    embeddings += 2 * _linear(c.width, c.width) + _linear(c.width, 6 * c.width)
    return embeddings + c.layers * block + 2 * c.width + _linear(c.width, cells)


def injector_parameters(spec: ModelSpec) -> int:
    """Weights of what takes in keys and a camera; every rank has all of them."""
    return sum(product.weights for product in injector_products(spec, spec.stream))


@cache
def text_parameters(c: TextConfig | BrookTextConfig) -> int:
    return _brook_text(c) if isinstance(c, BrookTextConfig) else _umt5(c)


@cache
def vae_parameters(c: VAEConfig | BrookVAEConfig) -> int:
    return _brook_vae(c) if isinstance(c, BrookVAEConfig) else _wan_vae(c)


def _umt5(c: TextConfig) -> int:
    heads = c.heads * c.head_width
    layer = 4 * c.width * heads + 3 * c.width * c.ffn + 2 * c.width + c.position_buckets * c.heads
    return c.vocabulary * c.width + c.layers * layer + c.width


def _wan_vae(c: VAEConfig) -> int:
    quantise = _linear(2 * c.channels, 2 * c.channels) + _linear(c.channels, c.channels)
    return _encoder(c) + _decoder(c) + quantise


def _middle(top: int) -> int:
    return 2 * _res_block(top, top) + top + _linear(top, 3 * top) + _linear(top, top)


def _encoder(c: VAEConfig) -> int:
    widths = c.widths_down
    top = widths[-1]
    total = _middle(top) + _conv(c.colours, widths[0], 27) + top + _conv(top, 2 * c.channels, 27)
    for level, (inner, outer) in enumerate(pairwise(widths)):
        total += _res_block(inner, outer) + (c.res_blocks - 1) * _res_block(outer, outer)
        if level < len(c.downsample_time):
            total += _conv(outer, outer, 9) + c.downsample_time[level] * _conv(outer, outer, 3)
    return total


def _decoder(c: VAEConfig) -> int:
    widths = c.widths_up
    top = widths[0]
    doubles = tuple(reversed(c.downsample_time))
    total = _middle(top) + _conv(c.channels, top, 27) + widths[-1] + _conv(widths[-1], c.colours, 27)
    for level, (inner, outer) in enumerate(pairwise(widths)):
        inner = inner // 2 if level and not c.residual else inner
        total += _res_block(inner, outer) + c.res_blocks * _res_block(outer, outer)
        if level < len(doubles):
            total += _conv(outer, outer if c.residual else outer // 2, 9) + doubles[level] * _conv(
                outer, 2 * outer, 3
            )
    return total


def _brook_text(c: BrookTextConfig) -> int:
    layer = _linear(c.width, 3 * c.width) + _linear(c.width, c.width) + 4 * c.width
    layer += _linear(c.width, 2 * c.width) + _linear(2 * c.width, c.width)
    return (c.vocabulary + 1 + c.tokens) * c.width + c.layers * layer + 2 * c.width


def _brook_vae(c: BrookVAEConfig) -> int:
    wide, middle, thin = c.widths
    encoder = (
        _conv(12, thin, 9)
        + _conv(4 * thin, middle, 9)
        + _conv(4 * middle, wide, 9)
        + _conv(4 * wide, wide, 1)
    )
    encoder += _conv(3 * wide, wide, 9) + _conv(wide, 2 * c.channels, 9)
    encoder += 2 * (_conv(thin, thin, 9) + _conv(middle, middle, 9) + 2 * _conv(wide, wide, 9))
    decoder = _conv(3 * c.channels, wide, 9) + _conv(wide, 4 * middle, 1) + _conv(middle, 4 * middle, 9)
    decoder += _conv(middle, 4 * thin, 9) + _conv(thin, 12, 9)
    decoder += sum(
        2 * count * _conv(width, width, 9) for width, count in zip(c.widths, c.blocks, strict=True)
    )
    return encoder + decoder + 2 * c.channels


def _res_block(inner: int, outer: int) -> int:
    shortcut = _conv(inner, outer, 1) if inner != outer else 0
    return inner + _conv(inner, outer, 27) + outer + _conv(outer, outer, 27) + shortcut


def _linear(inner: int, outer: int) -> int:
    return inner * outer + outer


def _conv(inner: int, outer: int, taps: int) -> int:
    return inner * outer * taps + outer
