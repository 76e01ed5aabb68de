"""Bytes that the fast path holds besides weights and sessions: canvases of its decoder, recordings of its
calls, working sets.

Counted from what `models/fast/` and `models/wan/channels_last.py` keep. A canvas is a convolution's input:
the frames of a pass behind the two of its past, with a rim of one pixel if it is 3x3x3.
"""

from __future__ import annotations

import math

from millstream.core.chunk_work import tokens_per_frame
from millstream.core.config import BrookVAEConfig, DiTConfig, StreamConfig, VAEConfig
from millstream.core.vae_layers import Conv, decoder_convs, encoder_convs

_PAST = 2
_E4M3_WORK = 9
"""Bytes a value while a weight is rounded to e4m3: it and what it is divided by in float32, and the
result."""


def canvas_bytes(
    vae: VAEConfig | BrookVAEConfig, stream: StreamConfig, *, frames: int, value_bytes: int, encodes: bool
) -> int:
    """Count the bytes of the canvases for a pass over `frames` latent frames, one canvas for each size."""
    if isinstance(vae, BrookVAEConfig) or frames == 0:
        return 0
    networks = [decoder_convs(vae, frames, stream.height, stream.width)]
    if encodes:
        networks.append(encoder_convs(vae, frames, stream.height, stream.width))
    sizes = [
        {size for conv in convs if (size := _canvas(conv, encodes=convs is not networks[0]))}
        for convs in networks
    ]
    return sum(math.prod(size) for network in sizes for size in network) * value_bytes


def earlier_canvas_bytes(vae: VAEConfig, stream: StreamConfig, *, value_bytes: int) -> int:
    """Count the bytes that an epoch's second chunk holds at its peak besides its own canvases: those of the
    first chunk, which has one latent frame less. Its own last canvas is not made by then, unless another has
    the same size."""
    *others, last = (
        _canvas(conv, encodes=False)
        for conv in decoder_convs(vae, stream.frames_per_chunk, stream.height, stream.width)
        if conv.tail
    )
    unmade = 0 if last is None or last in others else math.prod(last) * value_bytes
    first = canvas_bytes(
        vae, stream, frames=stream.frames_per_chunk - 1, value_bytes=value_bytes, encodes=False
    )
    return max(0, first - unmade)


def _canvas(conv: Conv, *, encodes: bool) -> tuple[int, int, int, int] | None:
    """A causal convolution's input; an encoder also halves pictures from canvases with an edge of zeros."""
    if encodes and conv.taps == 9:
        return conv.frames, 2 * conv.rows + 1, 2 * conv.columns + 1, conv.inner
    if not conv.tail:
        return None
    rim = 2 if conv.taps == 27 else 0
    return _PAST + conv.frames, conv.rows + rim, conv.columns + rim, conv.inner


def fast_dit_peak(
    dit: DiTConfig, stream: StreamConfig, *, value_bytes: int, batch: int = 1, fp8: bool = False
) -> int:
    """Count the bytes of a block at its peak: nine tensors of the model's width during attention, or five and
    the MLP's hidden values, and under fp8 a copy of those in fp8."""
    tokens = batch * stream.frames_per_chunk * tokens_per_frame(dit, stream)
    hidden = dit.ffn * (value_bytes + (1 if fp8 else 0))
    levels = batch * stream.frames_per_chunk * 6 * dit.width * (dit.layers + 1)
    return (
        tokens * max(9 * dit.width * value_bytes, 5 * dit.width * value_bytes + hidden) + levels * value_bytes
    )


def fast_decode_peak(vae: VAEConfig, stream: StreamConfig, *, frames: int, value_bytes: int) -> int:
    """In a residual block: what came in and its residual, their sum, what its two convolutions give; beside
    the new tails."""
    tails = 0
    peak = 0
    for conv in decoder_convs(vae, frames, stream.height, stream.width):
        tails += conv.tail_values
        if conv.taps == 27 and conv.inner == conv.outer:
            peak = max(peak, tails + 5 * conv.outer * conv.frames * conv.rows * conv.columns)
    return peak * value_bytes


def recording_bytes(dit: DiTConfig, stream: StreamConfig, *, value_bytes: int) -> int:
    """Count the bytes that recorded calls read from a fixed place: the prompt once, the residual of a step
    and that of a commit."""
    prompt = 2 * dit.layers * dit.width * dit.text_tokens
    residual = stream.frames_per_chunk * tokens_per_frame(dit, stream) * dit.width
    return (prompt + 2 * residual) * value_bytes


def rounding_bytes(dit: DiTConfig) -> int:
    """Beside a whole model in its own precision, while its largest weight is rounded to e4m3."""
    return _E4M3_WORK * dit.width * max(dit.ffn, 3 * dit.width)
