"""What a chunk must compute and move at least, phase by phase: the figures that measured times are divided by.

Counted as if every tensor were read and written once: weights, keys and values, a product's or convolution's ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.core.config import DiTConfig, ModelSpec, StreamConfig
from millstream.planner.flops import Product, block_products, call_flops
from millstream.planner.memory import tokens_per_frame
from millstream.planner.vae_layers import Conv, decoder_convs


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseWork:
    """One phase of one chunk."""

    flops: float
    bytes: float

    def rates(self, ms: float) -> dict[str, float]:
        return {"tflop_s": self.flops / ms / 1e9, "gb_s": self.bytes / ms / 1e6}


def chunk_work(spec: ModelSpec, stream: StreamConfig, *, value_bytes: int, weight_bytes: int) -> dict[str, PhaseWork]:
    """With the window full: all steps, the commit, the decoding."""
    tokens = stream.frames_per_chunk * tokens_per_frame(spec.dit, stream)
    keys = stream.window * tokens_per_frame(spec.dit, stream)
    call = _call(spec.dit, tokens, keys, value_bytes, weight_bytes)
    share = (spec.dit.layers - 1) / spec.dit.layers  # a commit stops at its last layer's keys
    convs = decoder_convs(spec.vae, stream.frames_per_chunk, stream.height, stream.width)
    return {
        "step": PhaseWork(flops=len(stream.steps) * call.flops, bytes=len(stream.steps) * call.bytes),
        "commit": PhaseWork(flops=share * call.flops, bytes=share * call.bytes),
        "decode": PhaseWork(flops=sum(conv.flops for conv in convs), bytes=sum(_moved(conv, value_bytes) for conv in convs)),
    }


def _call(dit: DiTConfig, tokens: int, keys: int, value_bytes: int, weight_bytes: int) -> PhaseWork:
    products = sum(_ends(product, value_bytes, weight_bytes) for product in block_products(dit, tokens))
    attended = 2 * value_bytes * dit.width * (keys + dit.text_tokens + 2 * tokens)
    return PhaseWork(flops=call_flops(dit, tokens, keys), bytes=dit.layers * (products + attended))


def _ends(product: Product, value_bytes: int, weight_bytes: int) -> int:
    ends = product.rows * (product.inner + product.outer) * value_bytes
    return product.count * (ends + product.inner * product.outer * weight_bytes)


def _moved(conv: Conv, value_bytes: int) -> int:
    places = conv.frames * conv.rows * conv.columns
    return ((conv.inner + conv.outer) * places + conv.inner * conv.outer * conv.taps) * value_bytes
