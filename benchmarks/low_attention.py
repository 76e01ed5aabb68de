"""Attention in 8 bits at a stream's shapes: ways to do it, what each takes and costs, beside cuDNN's in bf16.

    python -m benchmarks.low_attention        # results/low_attention.json

The engine's kernels, with means taken away as it has chosen, and without. Errors are relative to float32, of
some queries: once on normal numbers, the hardest case since what is averaged is noise; once where keys and
values have something in common beside it, which the errors are without. `gain` is how much of the answer is
left: sums of e4m3 products have few places.
Shapes: L queries, S keys, N heads, H head width.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.report import write_report
from millstream.commands.bench.floor import repeated, timed_ms
from millstream.ops.attention import attend, attend_in_shares
from millstream.ops.low_attention import attend_packed
from millstream.ops.quantise_kv import pack_runs
from millstream.ops.quantised_kv import PackedQueries, QuantisedKV
from millstream.ops.rows import finish_attention

HEAD_WIDTH = 128
ROUND = 128
GPU = torch.device("cuda")
BF16 = torch.bfloat16
COMMON = 4.0
"""Size of the part that all keys and values share, relative to the part they do not."""
WAYS = {"8 bits": True, "8 bits, no means": False}
"""Ways to compute attention in 8 bits, with whether means are subtracted."""


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


@dataclass(frozen=True, slots=True)
class Numbers:
    q_1LNH: Tensor
    k_1SNH: Tensor
    v_1SNH: Tensor
    middle_1NH: Tensor
    """Part that all values share."""

    @staticmethod
    def random(shape: Shape, common: float) -> Numbers:
        torch.manual_seed(0)
        q, k, v = (
            torch.randn(1, n, shape.heads, HEAD_WIDTH, device=GPU)
            for n in (shape.queries, shape.keys, shape.keys)
        )
        of_k, of_v = (common * torch.randn(1, shape.heads, HEAD_WIDTH, device=GPU) for _ in range(2))
        return Numbers(q.to(BF16), (k + of_k).to(BF16), (v + of_v).to(BF16), of_v)

    def exact(self, some: slice) -> Tensor:
        q, k, v = (x.float().transpose(1, 2) for x in (self.q_1LNH[:, some], self.k_1SNH, self.v_1SNH))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2) - self.middle_1NH


def timed(work: Callable[[], object], times: int = 20) -> float:
    """Mean milliseconds, one after the other."""
    for _ in range(5):
        work()
    return timed_ms(repeated(work, times), GPU) / times


def packed_of(numbers: Numbers, means: bool) -> QuantisedKV:
    k = numbers.k_1SNH
    v = numbers.v_1SNH
    packed = QuantisedKV.room(1, *k.shape[1:], device=GPU)
    if means:
        packed.k_mean_RNH.copy_(k.mean(1, dtype=torch.float32))
        packed.v_mean_RNH.copy_(v.mean(1, dtype=torch.float32))
    pack_runs(packed, k, v, torch.zeros(1, dtype=torch.int64, device=GPU), k.shape[1])
    return packed


def costs(shape: Shape, common: float, means: bool) -> dict[str, float]:
    numbers = Numbers.random(shape, common)
    some = slice(0, 256)
    asked = PackedQueries.of(numbers.q_1LNH[:, some].contiguous())
    packed = packed_of(numbers, means)
    found = attend_packed(asked, packed, shape.keys, dtype=torch.float32) - numbers.middle_1NH
    wanted = numbers.exact(some)
    error = float((found - wanted).norm() / wanted.norm())
    return {"error": round(error, 5), "gain": round(float((found * wanted).sum() / wanted.square().sum()), 5)}


def cudnn(numbers: Numbers, shape: Shape) -> dict[str, float]:
    """As they are, and over a round number of them."""
    q = numbers.q_1LNH
    k = numbers.k_1SNH
    v = numbers.v_1SNH
    zeros = -shape.keys % ROUND
    round_k, round_v = (F.pad(x, (0, 0, 0, 0, 0, zeros)) for x in (k, v))

    def rounded() -> object:
        return finish_attention(attend_in_shares(q, round_k, round_v, None), zeros, fp8=False)

    return {"cuDNN, keys as they are": timed(lambda: attend(q, k, v)), "cuDNN, round keys": timed(rounded)}


@torch.inference_mode()
def measure(shape: Shape) -> dict[str, dict[str, float]]:
    numbers = Numbers.random(shape, 0.0)
    times = cudnn(numbers, shape)
    found: dict[str, dict[str, float]] = {}
    for name, means in WAYS.items():
        asked = PackedQueries.of(numbers.q_1LNH)
        packed = packed_of(numbers, means)
        times[name] = timed(partial(attend_packed, asked, packed, shape.keys, dtype=BF16))
        found[name] = costs(shape, 0.0, means)
        found[name] |= {f"{what} in common": cost for what, cost in costs(shape, COMMON, means).items()}
    for name, ms in times.items():
        found[name] = {"ms": round(ms, 4), "tflop_s": round(1e3 * shape.tflop / ms, 1), **found.get(name, {})}
        print(f"{shape.queries}x{shape.keys}x{shape.heads} {name}: {found[name]}", flush=True)
    return found


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("error: attention in 8 bits is timed on a CUDA GPU; none is here")
    configuration = {"shapes": {name: asdict(shape) for name, shape in SHAPES.items()}, "common": COMMON}
    write_report("low_attention", configuration, {name: measure(shape) for name, shape in SHAPES.items()})


if __name__ == "__main__":
    main()
