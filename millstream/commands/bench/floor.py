"""The hot floor: a chunk's matmuls, attention calls and convolutions back to back and nothing else, in this
process.

What a model's times are held against. Kernels timed one by one flatter the floor, because a card that is kept
busy is held to its power limit; so they run in a CUDA graph, chunk after chunk. On a processor they simply
run. Convolutions are our own where the stream has them: a floor that a stream can beat is none. Attention is
one call to the library and the graph is as torch records it; `even` has both as the fast path does, a lower
floor. Weights are random and two sets take turns: what a cache could keep of one is gone when it comes again.
Shapes: L chunk tokens, W keys, N heads, H head width.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.core.chunk_work import block_products, tokens_per_frame
from millstream.core.config import DiTConfig, ModelSpec, StreamConfig
from millstream.core.vae_layers import Conv, decoder_convs
from millstream.models.fast.recorded import GraphRecorder
from millstream.models.wan.channels_last import Convolution
from millstream.ops.attention import KEY_MULTIPLE, attend, attend_in_shares
from millstream.ops.fp8 import quantise
from millstream.ops.int8 import Int8Linear, Range, to_bytes
from millstream.ops.linear import linear_rows
from millstream.ops.waves import waves_of

Work = Callable[[], object]
WITHIN = Range(-4.0, 4.0)
"""Range of random numbers that are rounded to bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Where and in what the floor is measured."""

    device: torch.device
    dtype: torch.dtype
    fp8: bool
    int8: bool = False
    """On a processor."""
    own: Convolution | None = None
    """Ours, for the shapes it can."""
    even: bool = False
    """Attention in even waves, and words zeroed by kernels."""


@torch.inference_mode()
def measure_floor(
    spec: ModelSpec, stream: StreamConfig, setting: Setting, *, chunks: int
) -> dict[str, float]:
    """Milliseconds of a chunk's phases, medians over `chunks`: `step` for all steps, `commit`, `decode`."""
    assert chunks >= 1, f"medians over {chunks} chunks"
    layers = [_layer(spec.dit, stream, setting) for _ in range(2)]
    body = [piece for number in range(spec.dit.layers) for piece in layers[number % 2]]
    without_last = body[: -len(layers[0])]
    convs = decoder_convs(spec.vae, stream.frames_per_chunk, stream.height, stream.width)
    phases = {
        "step": repeated(_recorded(body, setting), len(stream.steps)),
        "commit": _recorded(without_last, setting),
        "decode": _recorded([_convolution(conv, setting) for conv in convs], setting),
    }
    timed = [
        {name: timed_ms(work, setting.device) for name, work in phases.items()} for _ in range(chunks + 1)
    ][1:]
    return {name: statistics.median(sample[name] for sample in timed) for name in phases}


def _layer(dit: DiTConfig, stream: StreamConfig, setting: Setting) -> list[Work]:
    tokens = stream.frames_per_chunk * tokens_per_frame(dit, stream)
    keys = stream.window * tokens_per_frame(dit, stream)
    if setting.device.type == "cuda":
        keys = -(-keys // KEY_MULTIPLE) * KEY_MULTIPLE
    wide = dit.width
    ffn = dit.ffn
    products = [(3 * wide, wide), (wide, wide), (wide, wide), (wide, wide), (ffn, wide), (wide, ffn)]
    assert sum(2 * tokens * o * i for o, i in products) == sum(p.flops for p in block_products(dit, tokens))
    qkv, out, ask, tell, up, down = (_product(tokens, inner, outer, setting) for outer, inner in products)
    window = _attention(dit, tokens, keys, setting)
    prompt = _attention(dit, tokens, dit.text_tokens, setting)
    return [qkv, window, out, ask, prompt, tell, up, down]


def _product(rows: int, inner: int, outer: int, setting: Setting) -> Work:
    x = _random(setting, rows, inner)
    if setting.int8:
        layer = Int8Linear(nn.Linear(inner, outer), WITHIN)
        x_u8 = to_bytes(x, WITHIN)
        return lambda: layer.of_bytes(x_u8)
    weight = _random(setting, outer, inner)
    bias = _random(setting, outer)
    if not setting.fp8:
        return lambda: F.linear(x, weight, bias)
    x8 = quantise(x)
    weight8 = quantise(weight)
    return lambda: linear_rows(x8, weight8, bias)


def _attention(dit: DiTConfig, tokens: int, keys: int, setting: Setting) -> Work:
    q, k, v = (_random(setting, 1, count, dit.heads, dit.head_width) for count in (tokens, keys, keys))
    if setting.even and (waves := waves_of(q, k)):
        return lambda: attend_in_shares(q, k, v, waves)
    return lambda: attend(q, k, v)


def _convolution(conv: Conv, setting: Setting) -> Work:
    """Ours, or as the library does it fastest: channels last."""
    sides = {27: (3, 3, 3), 9: (1, 3, 3), 3: (3, 1, 1), 1: (1, 1, 1)}[conv.taps]
    weight = _random(setting, conv.outer, conv.inner, *sides)
    own = setting.own
    if own is not None and (packed := own.pack(weight)) is not None:
        canvas = _random(setting, conv.frames + 2, conv.rows + 2, conv.columns + 2, conv.inner)
        return partial(own, canvas, packed)
    if sides[0] == 1 and setting.device.type == "cpu":
        frames = _random(setting, conv.frames, conv.inner, conv.rows, conv.columns)
        frames, flat = (
            tensor.contiguous(memory_format=torch.channels_last) for tensor in (frames, weight.squeeze(2))
        )
        return lambda: F.conv2d(frames, flat, padding=sides[1] // 2)
    x = _random(setting, 1, conv.inner, conv.frames + sides[0] - 1, conv.rows, conv.columns)
    x, weight = (tensor.contiguous(memory_format=torch.channels_last_3d) for tensor in (x, weight))
    return lambda: F.conv3d(x, weight, padding=(0, sides[1] // 2, sides[2] // 2))


def _random(setting: Setting, *shape: int) -> Tensor:
    return torch.randn(shape, device=setting.device, dtype=setting.dtype)


def _recorded(pieces: list[Work], setting: Setting) -> Work:
    def run() -> None:
        for piece in pieces:
            piece()

    if setting.device.type != "cuda":
        return run
    run()
    torch.cuda.synchronize(setting.device)
    return GraphRecorder(setting.device, zero_words=setting.even)(run)


def repeated(work: Work, times: int) -> Work:
    def run() -> None:
        for _ in range(times):
            work()

    return run


def timed_ms(work: Work, device: torch.device) -> float:
    """By the device's own clock, if it has one."""
    if device.type != "cuda":
        begun = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - begun)
    begin = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))
