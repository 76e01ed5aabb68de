"""Count the work of a chunk from its model's shapes: each matmul of a block, attention, the VAE's
convolutions.

Operations are exact; bytes are the least that must move, as if every tensor were read and written once and
everything between matmuls were free. Knows no times and no device. Shapes of a product: [rows, inner] times
[inner, outer].
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from millstream.core.config import DiTConfig, ModelSpec, StreamConfig
from millstream.core.vae_layers import Conv, decoder_convs

RAY = 6
"""Coordinates of the ray that a camera's injector reads for each latent cell."""
_GROUPS = ("qkv", "out", "cross", "mlp", "mlp")
"""Layer group of each of a block's products, in their order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    rows: int
    inner: int
    outer: int
    count: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.inner * self.outer * self.count

    @property
    def weights(self) -> int:
        return self.inner * self.outer * self.count


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


def tokens_per_frame(dit: DiTConfig, stream: StreamConfig) -> int:
    cell = stream.stride * dit.patch
    return (stream.height // cell) * (stream.width // cell)


def block_products(dit: DiTConfig, tokens: int, *, tp: int = 1) -> list[Product]:
    """One rank's share: q, k, v and the MLP's first are split by columns, o and the MLP's second by rows.
    Cross-attention's are whole on every rank."""
    narrow = dit.width // tp
    hidden = dit.ffn // tp
    return [
        Product(rows=tokens, inner=dit.width, outer=narrow, count=3),
        Product(rows=tokens, inner=narrow, outer=dit.width),
        Product(rows=tokens, inner=dit.width, outer=dit.width, count=2),
        Product(rows=tokens, inner=dit.width, outer=hidden),
        Product(rows=tokens, inner=hidden, outer=dit.width),
    ]


def attention_flops(queries: int, keys: int, width: int) -> int:
    """Scores and their weighted sum."""
    return 4 * queries * keys * width


def call_flops(dit: DiTConfig, tokens: int, window_tokens: int) -> int:
    """The blocks of one model call; embeddings and head are below a thousandth of it."""
    products = sum(product.flops for product in block_products(dit, tokens))
    attention = attention_flops(tokens, window_tokens, dit.width) + attention_flops(
        tokens, dit.text_tokens, dit.width
    )
    return dit.layers * (products + attention)


def chunk_parts(
    spec: ModelSpec,
    stream: StreamConfig,
    *,
    value_bytes: int,
    fp8: Collection[str] = (),
    low_attention: bool = False,
) -> dict[str, tuple[Part, ...]]:
    """By phase, with the window full: all steps, the commit, the decoding. `fp8` are layer groups in 8
    bits."""
    call = tuple(_call(spec.dit, stream, value_bytes, fp8, low_attention))
    commits = (spec.dit.layers - 1) / spec.dit.layers  # a commit stops at its last layer's keys
    convs = decoder_convs(spec.vae, stream.frames_per_chunk, stream.height, stream.width)
    steps = tuple(part.times(len(stream.steps)) for part in call)
    return {
        "step": (*steps, *_injected(spec, stream, value_bytes)),
        "commit": tuple(part.times(commits) for part in call),
        "decode": tuple(_convolution(conv, value_bytes) for conv in convs),
    }


@lru_cache(maxsize=64)
def chunk_flops(spec: ModelSpec, stream: StreamConfig) -> float:
    """Operations of a whole chunk with its window full."""
    return sum(part.flops for parts in chunk_parts(spec, stream, value_bytes=4).values() for part in parts)


def _call(
    dit: DiTConfig, stream: StreamConfig, value_bytes: int, fp8: Collection[str], low_attention: bool
) -> Iterator[Part]:
    """One model call: its blocks; embeddings and head are below a thousandth of it."""
    frame = tokens_per_frame(dit, stream)
    tokens = stream.frames_per_chunk * frame
    for group, product in zip(_GROUPS, block_products(dit, tokens), strict=True):
        weights = product.inner * product.outer * (1 if group in fp8 else value_bytes)
        moved = product.count * (product.rows * (product.inner + product.outer) * value_bytes + weights)
        yield Part(family="product", flops=product.flops, moved=moved, eight_bit=group in fp8).times(
            dit.layers
        )
    for keys, eight_bit in ((stream.window * frame, low_attention), (dit.text_tokens, False)):
        moved = 2 * value_bytes * dit.width * (keys + tokens)
        flops = attention_flops(tokens, keys, dit.width)
        yield Part(family="attention", flops=flops, moved=moved, eight_bit=eight_bit).times(dit.layers)


def injector_products(spec: ModelSpec, stream: StreamConfig) -> list[Product]:
    """All that a chunk's keys and camera are multiplied by, once for all of its calls; nothing of it where
    they are idle or as in a chunk before."""
    dit = spec.dit
    frames = stream.frames_per_chunk
    products = []
    if spec.conditions.actions is not None:
        products.append(Product(rows=frames, inner=spec.conditions.actions.features, outer=dit.width))
        products.append(Product(rows=frames, inner=dit.width, outer=dit.width))
    if spec.conditions.camera:
        tokens = frames * tokens_per_frame(dit, stream)
        products.append(Product(rows=tokens, inner=RAY * dit.patch**2, outer=dit.width))
    return products


def _injected(spec: ModelSpec, stream: StreamConfig, value_bytes: int) -> Iterator[Part]:
    for product in injector_products(spec, stream):
        values = product.rows * (product.inner + product.outer) + product.weights
        yield Part(family="product", flops=product.flops, moved=values * value_bytes)


def _convolution(conv: Conv, value_bytes: int) -> Part:
    values = (
        conv.inner + conv.outer
    ) * conv.frames * conv.rows * conv.columns + conv.inner * conv.outer * conv.taps
    return Part(family="convolution", flops=conv.flops, moved=values * value_bytes)
