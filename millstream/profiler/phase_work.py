"""What the phases of a chunk must compute and move at least, part by part, from what a trace of ours says of itself.

Counted from the model's shapes, as if every tensor were read and written once and everything between products were free. Knows
no times and no device. Phases whose work depends on more than is written down have no parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from millstream.core.config import DiTConfig, ModelSpec, StreamConfig
from millstream.core.errors import MillstreamError
from millstream.core.presets import find_model
from millstream.planner.flops import attention_flops, block_products
from millstream.planner.memory import tokens_per_frame
from millstream.planner.vae_layers import Conv, decoder_convs

_VALUE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_GROUPS = ("qkv", "out", "cross", "mlp", "mlp")
"""Which layer group each of a block's products is of, in the planner's order."""
_FP8 = re.compile(r"fp8 \(([\w ]*)\)")
"""As `core/speed.py` says it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Work of one kind that one ceiling is for."""

    family: str
    flops: float
    moved: float
    """Bytes."""
    eight_bit: bool = False

    def times(self, count: float) -> Part:
        return replace(self, flops=count * self.flops, moved=count * self.moved)


def phase_parts(about: Mapping[str, Any]) -> dict[str, tuple[Part, ...]]:
    """By phase, of one chunk with its window full. Nothing where `about` does not say what ran, or where ranks shared it."""
    if about.get("topology") != "local":
        return {}
    try:
        spec = find_model(about["model"])
        stream, value_bytes = _stream(spec, about), _VALUE_BYTES[about["dtype"]]
        call = tuple(_call(spec.dit, stream, value_bytes, str(about["fast"])))
    except (MillstreamError, KeyError, ValueError, TypeError):
        return {}  # anybody can write a trace: what is not understood is not counted
    commits = (spec.dit.layers - 1) / spec.dit.layers  # a commit stops at its last layer's keys
    convs = decoder_convs(spec.vae, stream.frames_per_chunk, stream.height, stream.width)
    return {
        "step": tuple(part.times(len(stream.steps)) for part in call),
        "commit": tuple(part.times(commits) for part in call),
        "decode": tuple(_convolution(conv, value_bytes) for conv in convs),
    }


def _stream(spec: ModelSpec, about: Mapping[str, Any]) -> StreamConfig:
    height, _, width = str(about["size"]).partition("x")
    return replace(
        spec.stream,
        height=int(height),
        width=int(width),
        window=int(about["window"]),
        steps=tuple(float(step) for step in about["steps"]),
        frames_per_chunk=int(about.get("frames_per_chunk", spec.stream.frames_per_chunk)),
    )


def _call(dit: DiTConfig, stream: StreamConfig, value_bytes: int, fast: str) -> Iterator[Part]:
    """One model call: its blocks; embeddings and head are below a thousandth of it."""
    named = _FP8.search(fast)
    groups = named.group(1).split() if named else []
    frame = tokens_per_frame(dit, stream)
    tokens = stream.frames_per_chunk * frame
    for group, product in zip(_GROUPS, block_products(dit, tokens), strict=True):
        weights = product.inner * product.outer * (1 if group in groups else value_bytes)
        moved = product.count * (product.rows * (product.inner + product.outer) * value_bytes + weights)
        yield Part(family="product", flops=product.flops, moved=moved, eight_bit=group in groups).times(dit.layers)
    for keys, eight_bit in ((stream.window * frame, "low_attention" in fast), (dit.text_tokens, False)):
        moved = 2 * value_bytes * dit.width * (keys + tokens)
        flops = attention_flops(tokens, keys, dit.width)
        yield Part(family="attention", flops=flops, moved=moved, eight_bit=eight_bit).times(dit.layers)


def _convolution(conv: Conv, value_bytes: int) -> Part:
    values = (conv.inner + conv.outer) * conv.frames * conv.rows * conv.columns + conv.inner * conv.outer * conv.taps
    return Part(family="convolution", flops=conv.flops, moved=values * value_bytes)
