"""Every hand-written kernel against its plain twin at the sizes of Wan's models: error, milliseconds, bytes a
second.

    python -m benchmarks.kernels                    # results/kernels.json
    python -m benchmarks.kernels --out kernels.json

Needs a CUDA GPU. The twin computes in float32 on the same device. A kernel that fails is written down with
its error, and the others go on. Errors are relative, of the whole tensor; e4m3 rounds alike on both sides, so
there they are of the numbers that were meant.
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.report import write_report
from millstream.commands.bench.floor import repeated, timed_ms
from millstream.commands.report import describe, write_result
from millstream.ops.attention import AttentionShare, attend, attend_in_shares
from millstream.ops.backend import only_twins
from millstream.ops.conv3 import PAST, TAPS, find_convolution
from millstream.ops.fp8 import Rows8, quantise
from millstream.ops.linear import linear_gelu, linear_rows
from millstream.ops.low_attention import attend_packed
from millstream.ops.noise import gaussian
from millstream.ops.pictures import copy_frames, merge_onto, split_frames, sum_taps, to_pictures
from millstream.ops.quantise_kv import pack_runs
from millstream.ops.quantised_kv import PackedQueries, QuantisedKV
from millstream.ops.ring_write import write_ring
from millstream.ops.rope import frame_phases
from millstream.ops.rows import add_norm, finish_attention, gelu_rows, norm_query
from millstream.ops.waves import Waves, waves_of

REPEATS = 20
GPU = torch.device("cuda")
BF16 = torch.bfloat16


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """A chunk of one model."""

    name: str
    width: int
    heads: int
    ffn: int
    grid: tuple[int, int]
    window: int

    @property
    def tokens(self) -> int:
        return 3 * self.grid[0] * self.grid[1]

    @property
    def keys(self) -> int:
        return self.window * self.grid[0] * self.grid[1]


SIZES = (
    Size(name="1.3B 480x832 window 9", width=1536, heads=12, ffn=8960, grid=(30, 52), window=9),
    Size(name="14B 320x576 window 6", width=5120, heads=40, ffn=13824, grid=(20, 36), window=6),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    name: str
    ours: Callable[[], Any]
    twin: Callable[[], Any]
    moved: int
    """Bytes that must be read and written at least."""
    flops: int = 0


def random(*shape: int, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(shape, device=GPU)).to(BF16)


def row_cases(size: Size) -> Iterator[Case]:
    tokens = size.tokens
    width = size.width
    ffn = size.ffn
    x = random(tokens, width)
    y = random(tokens, width)
    levels = random(3, 6, width)
    weight = random(width)
    bias = random(width)
    hidden = random(tokens, ffn)
    lse = torch.rand(size.heads, tokens, device=GPU) + 9
    row = tokens * width * 2

    def in_precision(fp8: bool) -> Iterator[Case]:
        said = " to e4m3" if fp8 else ""
        yield Case(
            name=f"norm and modulate{said}",
            ours=lambda: add_norm(x.clone(), None, None, levels[:, 1], levels[:, 0], eps=1e-6, fp8=fp8),
            twin=lambda: add_norm(x.clone(), None, None, levels[:, 1], levels[:, 0], eps=1e-6, fp8=fp8),
            moved=2 * row,
        )
        yield Case(
            name=f"gate, add, norm{said}",
            ours=lambda: add_norm(x.clone(), y, levels[:, 2], weight, bias, eps=1e-6, fp8=fp8),
            twin=lambda: add_norm(x.clone(), y, levels[:, 2], weight, bias, eps=1e-6, fp8=fp8),
            moved=4 * row,
        )
        yield Case(
            name=f"correct attention{said}",
            ours=lambda: finish_attention([AttentionShare(x[None, None], lse[None, None])], 40, fp8=fp8),
            twin=lambda: finish_attention([AttentionShare(x[None, None], lse[None, None])], 40, fp8=fp8),
            moved=2 * row,
        )

    for fp8 in (False, True):
        yield from in_precision(fp8)
    yield Case(
        name="norm of queries",
        ours=lambda: norm_query(x, weight, eps=1e-6),
        twin=lambda: norm_query(x, weight, eps=1e-6),
        moved=2 * row,
    )
    yield Case(
        name="gelu to e4m3",
        ours=lambda: gelu_rows(hidden),
        twin=lambda: gelu_rows(hidden),
        moved=3 * tokens * ffn,
    )


def ring_case(size: Size) -> Iterator[Case]:
    head = size.width // size.heads
    qkv = random(1, size.tokens, 3 * size.width)
    weight_q = random(size.width)
    weight_k = random(size.width)
    phases = frame_phases(torch.tensor([100, 101, 102], device=GPU), size.grid, head)
    index = torch.arange(size.tokens, device=GPU) + size.keys - size.tokens
    rings = [
        [torch.zeros(1, size.keys, size.heads, head, device=GPU, dtype=BF16) for _ in range(2)]
        for _ in range(2)
    ]

    def write(ring: list[Tensor]) -> Tensor:
        q = write_ring(qkv, weight_q, weight_k, phases, index, *ring, eps=1e-6)
        assert isinstance(q, Tensor), "queries in their own dtype"
        return torch.stack([q, ring[0][:, index], ring[1][:, index]])

    yield Case(
        name="norm, rotate, write ring",
        ours=lambda: write(rings[0]),
        twin=lambda: write(rings[1]),
        moved=6 * size.tokens * size.width * 2,
    )


def product_cases(size: Size) -> Iterator[Case]:
    tokens = size.tokens
    width = size.width
    ffn = size.ffn

    def of_layer(name: str, inner: int, outer: int) -> Iterator[Case]:
        x = random(tokens, inner)
        weight = random(outer, inner, scale=inner**-0.5)
        bias = random(outer)
        x8 = quantise(x)
        weight8 = quantise(weight)
        flops = 2 * tokens * inner * outer
        yield Case(
            name=f"e4m3 product, {name}",
            ours=lambda: linear_rows(x8, weight8, bias),
            twin=lambda: F.linear(x8.restored(), weight8.restored(), bias.float()),
            moved=tokens * inner + inner * outer + 2 * tokens * outer,
            flops=flops,
        )
        yield Case(
            name=f"bf16 product, {name}",
            ours=lambda: F.linear(x, weight, bias),
            twin=lambda: F.linear(x.float(), weight.float(), bias.float()),
            moved=2 * (tokens * inner + inner * outer + tokens * outer),
            flops=flops,
        )

    for name, inner, outer in (
        ("qkv", width, 3 * width),
        ("out", width, width),
        ("up", width, ffn),
        ("down", ffn, width),
    ):
        yield from of_layer(name, inner, outer)
    x = random(tokens, width)
    weight = random(ffn, width, scale=width**-0.5)
    bias = random(ffn)
    yield Case(
        name="product with gelu",
        ours=lambda: linear_gelu(x, weight, bias),
        twin=lambda: F.gelu(F.linear(x.float(), weight.float(), bias.float()), approximate="tanh"),
        moved=2 * (tokens * width + width * ffn + tokens * ffn),
        flops=2 * tokens * width * ffn,
    )


def attention_cases(size: Size) -> Iterator[Case]:
    head = size.width // size.heads
    rounded = -(-size.keys // 128) * 128
    q, k, v = (random(1, count, size.heads, head) for count in (size.tokens, rounded, rounded))
    k[:, size.keys :] = 0
    v[:, size.keys :] = 0
    some = slice(0, 256)

    def exact() -> Tensor:
        """Return exact attention of some queries only: the scores of all would not fit in memory."""
        a, b, c = (x.float().transpose(1, 2) for x in (q[:, some], k[:, : size.keys], v[:, : size.keys]))
        return F.scaled_dot_product_attention(a, b, c).transpose(1, 2)[0].flatten(1)

    def finished(waves: Waves | None) -> Tensor:
        answer = finish_attention(attend_in_shares(q, k, v, waves), rounded - size.keys, fp8=False)
        assert isinstance(answer, Tensor)
        return answer

    common = dict(
        moved=4 * (size.tokens + size.keys) * size.width, flops=4 * size.tokens * size.keys * size.width
    )
    yield Case(
        name="attention, keys as they are",
        ours=lambda: attend(q, k[:, : size.keys], v[:, : size.keys])[0].flatten(1),
        twin=exact,
        **common,
    )
    yield Case(name="attention, round keys", ours=lambda: finished(None), twin=exact, **common)
    if waves := waves_of(q, k):
        yield Case(name="attention, even waves", ours=lambda: finished(waves), twin=exact, **common)


def low_attention_cases(size: Size) -> Iterator[Case]:
    head = size.width // size.heads
    per_frame = size.tokens // 3
    k, v = (random(1, size.keys, size.heads, head) for _ in range(2))
    rooms = [QuantisedKV.room(1, size.keys, size.heads, head, device=GPU) for _ in range(2)]
    starts = size.keys - size.tokens + per_frame * torch.arange(3, device=GPU)

    def pack(room: QuantisedKV, starts_F: Tensor, length: int) -> Tensor:
        pack_runs(room, k, v, starts_F, length)
        return room.k_RWNH

    for name, where, length in (("a window", starts[:1] * 0, size.keys), ("a chunk", starts, per_frame)):
        yield Case(
            name=f"pack {name} in 8 bits",
            ours=partial(pack, rooms[0], where, length),
            twin=partial(pack, rooms[1], where, length),
            moved=6 * len(where) * length * size.width,
        )
    q = PackedQueries.of(random(1, size.tokens, size.heads, head))
    yield Case(
        name="attention in 8 bits",
        ours=lambda: attend_packed(q, rooms[0], size.keys, dtype=BF16),
        twin=lambda: attend_packed(q, rooms[0], size.keys, dtype=torch.float32),
        moved=(3 * size.tokens + 2 * size.keys) * size.width,
        flops=4 * size.tokens * size.keys * size.width,
    )


def picture_cases() -> Iterator[Case]:
    for channels, rows, columns, frames in ((96, 480, 832, 12), (192, 240, 416, 12), (384, 120, 208, 6)):
        size = (frames, rows, columns, channels)
        y = random(*size)
        residual = random(*size)
        bias = random(channels)
        weight = random(channels)
        canvas = torch.zeros(frames + PAST, rows + 2, columns + 2, channels, device=GPU, dtype=BF16)

        def painted(
            y: Tensor = y, b: Tensor = bias, r: Tensor = residual, w: Tensor = weight, c: Tensor = canvas
        ) -> Tensor:
            kept = merge_onto(y, b, r, w, c, pad=1, keep=True)
            assert kept is not None
            return c

        yield Case(
            name=f"merge, norm, SiLU, {channels} channels",
            ours=painted,
            twin=painted,
            moved=4 * y.numel() * 2,
        )
        if channels in (96, 192):
            yield convolution_case(channels, rows, columns, 4)
    pictures = random(3, 60, 104, 768)
    of_split = random(768)
    yield Case(
        name="split frames",
        ours=lambda: split_frames(pictures, of_split),
        twin=lambda: split_frames(pictures, of_split),
        moved=4 * pictures.numel(),
    )
    planes = random(TAPS * 3 + 7, 14, 482, 834, scale=0.1)
    of_three = random(3, scale=0.1)
    yield Case(
        name="sum of taps",
        ours=lambda: sum_taps(planes, of_three, 12),
        twin=lambda: sum_taps(planes, of_three, 12),
        moved=2 * TAPS * 3 * 14 * 482 * 834,
    )


def byte_cases() -> Iterator[Case]:
    """Yield cases that move bytes and compute next to nothing."""
    pixels = random(3, 12, 480, 832, scale=0.5).transpose(0, 1)
    yield Case(
        name="pictures to bytes",
        ours=lambda: to_pictures(pixels),
        twin=lambda: to_pictures(pixels),
        moved=3 * pixels.numel(),
    )
    canvas = torch.zeros(12 + PAST, 482, 834, 96, device=GPU, dtype=BF16)
    inside = canvas[:PAST, 1:-1, 1:-1]
    tail = random(PAST, 480, 832, 96)

    def entered() -> Tensor:
        copy_frames(inside, tail)
        return inside

    yield Case(
        name="the past into a rim", ours=entered, twin=lambda: inside.copy_(tail), moved=4 * tail.numel()
    )


def convolution_case(channels: int, rows: int, columns: int, frames: int) -> Case:
    """Ours against the library's, which is timed as the twin."""
    own = find_convolution()
    weight = random(channels, channels, 3, 3, 3, scale=(27 * channels) ** -0.5)
    canvas = torch.zeros(frames + PAST, rows + 2, columns + 2, channels, device=GPU, dtype=BF16)
    canvas[:, 1:-1, 1:-1] = random(frames + PAST, rows, columns, channels)
    packed = None if own is None else own.pack(weight)
    x = canvas[:, 1:-1, 1:-1].contiguous()[None].permute(0, 4, 1, 2, 3)
    lasting = weight.contiguous(memory_format=torch.channels_last_3d)

    def ours() -> Tensor:
        assert own is not None, "our convolution could not be built here"
        assert packed is not None
        return own(canvas, packed)

    return Case(
        name=f"3x3x3 convolution, {channels} channels",
        ours=ours,
        twin=lambda: F.conv3d(x, lasting, padding=(0, 1, 1))[0].permute(1, 2, 3, 0),
        moved=2 * channels * rows * columns * (2 * frames + PAST),
        flops=2 * 27 * channels**2 * frames * rows * columns,
    )


def noise_case() -> Iterator[Case]:
    name = dict(seed=2**40 + 7, epoch=1, chunk=99, step=2)
    shape = (1, 3, 16, 60, 104)
    yield Case(
        name="noise",
        ours=lambda: gaussian(shape, **name, device=GPU),
        twin=lambda: gaussian(shape, **name, device="cpu").to(GPU),
        moved=4 * 3 * 16 * 60 * 104,
    )


def plain(value: Tensor | Rows8) -> Tensor:
    return value.restored() if isinstance(value, Rows8) else value.float()


def milliseconds(work: Callable[[], Any]) -> float:
    for _ in range(3):
        work()
    return timed_ms(repeated(work, REPEATS), GPU) / REPEATS


@torch.inference_mode()
def judge(case: Case) -> dict[str, Any]:
    try:
        found = plain(case.ours())
        with only_twins():
            expected = plain(case.twin())
            twin_ms = milliseconds(case.twin)
        found = found[: len(expected)]
        error = float((found - expected).norm() / expected.norm())
        ms = milliseconds(case.ours)
    except Exception:  # one kernel that fails must not hide the others
        return {"failed": traceback.format_exc()[-1500:]}
    rates = {"gb_s": case.moved / ms / 1e6} | ({"tflop_s": case.flops / ms / 1e9} if case.flops else {})
    return {
        "error": error,
        "largest": float((found - expected).abs().max()),
        "ms": ms,
        "twin_ms": twin_ms,
        **rates,
    }


def cases() -> Iterator[tuple[str, Callable[[], Iterator[Case]]]]:
    for size in SIZES:
        for of_size in (row_cases, ring_case, product_cases, attention_cases, low_attention_cases):
            yield size.name, partial(of_size, size)
    yield "480x832", picture_cases
    yield "480x832", byte_cases
    yield "480x832", noise_case


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="instead of results/kernels.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("error: kernels are compared on a CUDA GPU; none is here")
    measured: dict[str, dict[str, Any]] = {}
    for place, group in cases():
        for case in group():
            measured.setdefault(place, {})[case.name] = found = judge(case)
            said = found.get("failed") or {name: float(f"{value:.4g}") for name, value in found.items()}
            print(f"{place}: {case.name}: {said}", flush=True)
        torch.cuda.empty_cache()
    configuration = {"sizes": [size.name for size in SIZES], "repeats": REPEATS}
    if options.out is None:
        write_report("kernels", configuration, measured)
    else:
        write_result(options.out, describe("kernels", configuration, measured))


if __name__ == "__main__":
    main()
