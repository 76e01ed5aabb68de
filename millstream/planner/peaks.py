"""Bytes that come and go: the working set of a DiT call, of the VAE, and what a session's VAE keeps between
chunks.

Counted from what the networks of `models/` hold at their fullest moment, one operation after another, as
eager execution does; a compiler can only hold less. Attention is counted as a fused kernel, without its
scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from millstream.core.chunk_work import tokens_per_frame
from millstream.core.config import (
    TEMPORAL_STRIDE,
    BrookVAEConfig,
    DiTConfig,
    StreamConfig,
    VAEConfig,
    size_unit,
)
from millstream.core.errors import ConfigError
from millstream.core.vae_layers import Conv, decoder_convs, encoder_convs

_FLOAT = 4


def dit_peak(
    dit: DiTConfig, stream: StreamConfig, *, value_bytes: int, batch: int = 1, tp: int = 1, sp: int = 1
) -> int:
    """In the last matmul of an MLP: six tensors of the model's width and two of the MLP's; TP shards the
    latter, SP both.

    A seventh is the chunk as it was embedded, which the caller of the blocks holds until they return.
    """
    tokens = batch * stream.frames_per_chunk * tokens_per_frame(dit, stream) // sp
    levels = batch * stream.frames_per_chunk * 8 * dit.width
    embedded = tokens * dit.width * value_bytes
    mlp = tokens * (6 * dit.width + 2 * dit.ffn // tp) * value_bytes
    return max(mlp, _rotary_peak(dit, tokens, value_bytes, tp)) + embedded + levels * value_bytes


def _rotary_peak(dit: DiTConfig, tokens: int, value_bytes: int, tp: int) -> int:
    """Turning the keys: the residual and its norm in full; q, k, v and three float32 tensors of this rank's
    heads."""
    return tokens * dit.width * (2 * value_bytes + (3 * value_bytes + 3 * _FLOAT) // tp)


@cache
def decode_peak(
    vae: VAEConfig | BrookVAEConfig,
    stream: StreamConfig,
    *,
    frames: int,
    value_bytes: int,
    turned: bool = False,
) -> int:
    """Decoding `frames` latent frames at once, the new tails among it.

    `turned`: as on a GPU, whose library turns a convolution's input and result to channels-last and back.
    """
    convs = decoder_convs(vae, frames, stream.height, stream.width)
    if isinstance(vae, BrookVAEConfig):
        return _brook_decode(vae, convs, value_bytes)
    return _wan_peak(convs, value_bytes, turned)


def tiled_decode_peak(
    vae: VAEConfig | BrookVAEConfig, stream: StreamConfig, *, frames: int, value_bytes: int, tile: int
) -> int:
    """Decoding square tiles of `tile` pixels one after another: the working set of one, beside all
    pictures."""
    unit = size_unit(stream.stride)
    if tile < unit or tile % unit:
        raise ConfigError(f"--tile must be a multiple of {unit} pixels, got {tile}")
    piece = replace(stream, height=min(tile, stream.height), width=min(tile, stream.width))
    pictures = TEMPORAL_STRIDE * frames * 3 * stream.height * stream.width * value_bytes
    return decode_peak(vae, piece, frames=frames, value_bytes=value_bytes) + pictures


@cache
def encode_peak(
    vae: VAEConfig | BrookVAEConfig,
    stream: StreamConfig,
    *,
    frames: int,
    value_bytes: int,
    turned: bool = False,
) -> int:
    """Encoding pictures into `frames` latent frames at once."""
    convs = encoder_convs(vae, frames, stream.height, stream.width)
    if isinstance(vae, BrookVAEConfig):
        stem = convs[0]
        return 3 * stem.outer * _places(stem) * value_bytes
    return _wan_peak(convs, value_bytes, turned)


@cache
def vae_state_bytes(
    vae: VAEConfig | BrookVAEConfig, stream: StreamConfig, *, value_bytes: int, encodes: bool = False
) -> int:
    """The tails one session keeps between chunks: the decoder's, and the encoder's for video to video."""
    convs = decoder_convs(vae, 1, stream.height, stream.width)
    convs += encoder_convs(vae, 1, stream.height, stream.width) if encodes else ()
    return sum(conv.tail_values for conv in convs) * value_bytes


def _wan_peak(convs: Sequence[Conv], value_bytes: int, turned: bool) -> int:
    """In a residual block, beside the tails of those before it: whichever is more of these.

    At its second norm its input, its middle, a float32 copy and its square. At its second convolution three
    such tensors, its own new tail, what it convolves, which is a tail of two frames longer, and the result;
    the last two again where turned. In a level with a shortcut, what came into it as well; and at its end
    that, the level's result, and what is added to it, or the last convolution's two sides again where turned.
    """
    norm = 2 * value_bytes + (_FLOAT if value_bytes < _FLOAT else 0) + _FLOAT
    tails = 0
    peak = 0
    for conv in convs:
        if conv.taps == 27 and conv.inner == conv.outer:
            frame = conv.outer * conv.rows * conv.columns
            moved = conv.frames + 2 + conv.frames
            convolved = (3 * conv.frames + 2 + moved * (2 if turned else 1)) * value_bytes
            held = conv.beside * value_bytes
            peak = max(peak, tails + held + frame * max(norm * conv.frames, convolved))
        elif conv.taps == 27 and conv.inner > conv.outer and conv.tail and tails:
            peak = max(peak, tails + _narrowing(conv, value_bytes, turned))
        elif conv.beside:
            result = conv.outer * _places(conv)
            peak = max(peak, tails + (conv.beside + result * (4 if turned else 3)) * value_bytes)
        tails += conv.tail_values * value_bytes
    return peak


def _narrowing(conv: Conv, value_bytes: int, turned: bool) -> int:
    """In the first convolution of a block that has fewer channels than came in: at its norm or as it
    convolves."""
    frame = conv.inner * conv.rows * conv.columns
    norm = value_bytes + (_FLOAT if value_bytes < _FLOAT else 0) + _FLOAT
    moved = frame * (conv.frames + 2) + conv.outer * _places(conv)
    convolved = frame * (2 * conv.frames + 2) + moved * (2 if turned else 1)
    return max(frame * conv.frames * norm, convolved * value_bytes)


def _brook_decode(vae: BrookVAEConfig, convs: Sequence[Conv], value_bytes: int) -> int:
    """In the last residual block: its input, two of its steps, and what it was made from at half the size."""
    last = convs[-1]
    _, middle, thin = vae.widths
    tails = sum(conv.tail_values for conv in convs)
    return (3 * thin * _places(last) + middle * _places(last) // 4 + tails) * value_bytes


def _places(conv: Conv) -> int:
    return conv.frames * conv.rows * conv.columns
