"""Attention below bf16 at a stream's shapes: what three ways of it take and cost, beside cuDNN's in bf16.

    python -m benchmarks.low_attention        # results/low_attention.json

An experiment, not a part of the engine. Queries and keys are bf16, e4m3, or int8 with a scale for each query and each tile of
keys; probabilities and values are e4m3 throughout, which wants values transposed. Errors are relative to float32 on normal
numbers, the hardest case: nothing stands out, so what is averaged is noise.
Shapes: L queries, S keys, N heads, H head width.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.report import write_report

HEAD_WIDTH = 128
TILE = 128
"""Keys that share a scale, and that a step takes."""
LIFT = 8
"""Probabilities reach 2**LIFT before they are rounded to e4m3, so that small ones are not lost."""
QUERIES, WARPS, STAGES = 64, 4, 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    queries: int
    keys: int
    heads: int

    @property
    def tflop(self) -> float:
        return 4e-12 * self.queries * self.keys * self.heads * HEAD_WIDTH


SHAPES = {
    "1.3B 480x832 window 9": Shape(queries=4680, keys=14040, heads=12),
    "14B 320x576 window 6": Shape(queries=2160, keys=4320, heads=40),
}


@triton.jit
def _attend(
    q_LNH, k_SNH, vt_NHS, out_LNH, q_scales_LN, k_scales_NT, queries, keys, room, base, N: tl.constexpr, H: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr, LIFT: tl.constexpr,
):  # fmt: skip
    head, rows, columns = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, H)
    inside = rows[:, None] < queries
    q = tl.load(q_LNH + rows[:, None] * (N * H) + head * H + columns[None, :], mask=inside, other=0.0)
    row_scale = tl.load(q_scales_LN + rows * N + head, mask=rows < queries, other=0.0) * base
    sums, top, total = tl.zeros([BLOCK, H], tl.float32), tl.full([BLOCK], -1e30, tl.float32), tl.zeros([BLOCK], tl.float32)
    all_k = tl.make_tensor_descriptor(k_SNH + head * H, shape=[keys, H], strides=[N * H, 1], block_shape=[TILE, H])
    all_v = tl.make_tensor_descriptor(vt_NHS + head * H * room, shape=[H, keys], strides=[room, 1], block_shape=[H, TILE])
    tiles = tl.cdiv(keys, TILE)
    for tile in tl.range(0, tiles):
        scale = row_scale * tl.load(k_scales_NT + head * tiles + tile)
        scores = tl.dot(q, all_k.load([tile * TILE, 0]).T).to(tl.float32) * scale[:, None]
        if tile == tiles - 1:
            scores = tl.where(tile * TILE + tl.arange(0, TILE)[None, :] < keys, scores, -1e30)
        new = tl.maximum(top, tl.max(scores, 1) - LIFT)
        chances, fade = tl.exp2(scores - new[:, None]), tl.exp2(top - new)
        total, top = total * fade + tl.sum(chances, 1), new
        sums = tl.dot(chances.to(tl.float8e4nv), all_v.load([0, tile * TILE]).T, sums * fade[:, None])
    tl.store(
        out_LNH + rows[:, None] * (N * H) + head * H + columns[None, :], (sums / total[:, None]).to(tl.bfloat16), mask=inside
    )


def attend(q: Tensor, k: Tensor, vt: Tensor, q_scales: Tensor, k_scales: Tensor, out: Tensor) -> None:
    (queries, heads, width), keys = q.shape, len(k)
    _attend[(triton.cdiv(queries, QUERIES), heads)](
        q, k, vt, out, q_scales, k_scales, queries, keys, vt.shape[-1], math.log2(math.e) * width**-0.5,
        N=heads, H=width, BLOCK=QUERIES, TILE=TILE, LIFT=LIFT, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip


def as_int8(x_LNH: Tensor, tile: int) -> tuple[Tensor, Tensor]:
    """Numbers and, for each head and each `tile` of them in a row, a scale."""
    length = len(x_LNH)
    padded = F.pad(x_LNH.float(), (0, 0, 0, 0, 0, -length % tile)).unflatten(0, (-1, tile))
    scales = padded.abs().amax((1, 3), keepdim=True) / 127
    numbers = (padded / scales.clamp_min(1e-12)).round().to(torch.int8).flatten(0, 1)[:length]
    return numbers, scales[:, 0, :, 0]


def ways(q: Tensor, k: Tensor) -> dict[str, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Queries, keys and their scales."""
    heads, tiles = q.shape[1], triton.cdiv(len(k), TILE)
    rows, columns = torch.ones(len(q), heads, device=q.device), torch.ones(heads, tiles, device=q.device)
    (q8, q_scales), (k8, k_scales) = as_int8(q, 1), as_int8(k, TILE)
    e4m3 = torch.float8_e4m3fn
    return {
        "bf16": (q, k, rows, columns),
        "e4m3": (q.to(e4m3), k.to(e4m3), rows, columns),
        "int8": (q8, k8, q_scales.contiguous(), k_scales.t().contiguous()),
    }


def timed(work: Callable[[], object], times: int = 20) -> float:
    """Mean milliseconds, one after the other."""
    for _ in range(5):
        work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / times


@torch.inference_mode()
def measure(shape: Shape) -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    lengths = (shape.queries, shape.keys, shape.keys)
    q, k, v = (torch.randn(n, shape.heads, HEAD_WIDTH, device="cuda", dtype=torch.bfloat16) for n in lengths)
    batched = [x.transpose(0, 1)[None] for x in (q, k, v)]
    exact = F.scaled_dot_product_attention(*(x.float() for x in batched))[0].transpose(0, 1)
    found: dict[str, dict[str, float]] = {}

    def put(name: str, work: Callable[[], Tensor]) -> None:
        error = float((work().float() - exact).norm() / exact.norm())
        ms = timed(work)
        found[name] = {"ms": round(ms, 4), "tflop_s": round(1e3 * shape.tflop / ms, 1), "error": round(error, 5)}

    def cudnn() -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(*batched)[0].transpose(0, 1)

    put("cuDNN, bf16", cudnn)
    vt = F.pad(v.permute(1, 2, 0), (0, -shape.keys % TILE)).to(torch.float8_e4m3fn).contiguous()
    out = torch.empty_like(q)
    for name, (q_, k_, q_scales, k_scales) in ways(q, k).items():

        def ours(q_: Tensor = q_, k_: Tensor = k_, rows: Tensor = q_scales, columns: Tensor = k_scales) -> Tensor:
            attend(q_, k_, vt, rows, columns, out)
            return out

        put(f"queries and keys in {name}", ours)
    return found


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, device="cuda", dtype=torch.int8))
    configuration = {"shapes": {name: asdict(shape) for name, shape in SHAPES.items()}, "tile": TILE, "queries": QUERIES}
    write_report("low_attention", configuration, {name: measure(shape) for name, shape in SHAPES.items()})


if __name__ == "__main__":
    main()
