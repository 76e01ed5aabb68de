"""Time a recorded block, with attention in one call or in even waves, and words zeroed by memsets or by
kernels.

    python -m benchmarks.recorded_blocks                    # 1.3B, 480x832, window 9
    python -m benchmarks.recorded_blocks --model wan2.1-t2v-14b --size 320x576 --window 6

Blocks have random weights, each its own so that no cache keeps them, and a full window. Ways take turns, and
each is compared with the first in the same turn, because a card's clock depends on its earlier load.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import asdict, replace
from functools import partial

import torch

from benchmarks.report import write_report
from millstream.commands.bench.floor import timed_ms
from millstream.core.config import DiTConfig, StreamConfig, parse_size
from millstream.core.presets import find_model
from millstream.core.speed import Speed
from millstream.engine.engine import stream_config
from millstream.models.dit import BlockStack, CausalDiT, CrossKV
from millstream.models.fast.recorded import GraphRecorder
from millstream.models.fast.spread import Run
from millstream.models.fast.stack import FastStack
from millstream.models.kv import KVRing
from millstream.models.ring_shape import RingShape
from millstream.models.weights.fill import fill_random

WAYS = {
    "one call, memsets": (False, False),
    "one call, kernels": (False, True),
    "even waves, memsets": (True, False),
    "even waves, kernels": (True, True),
}
"""Ways to record a block: whether attention is in even waves, and whether words are zeroed by kernels."""
COLD = 10
"""Turns before those that count."""


@torch.inference_mode()
def measure(
    dit: DiTConfig, stream: StreamConfig, device: torch.device, *, turns: int
) -> dict[str, dict[str, float]]:
    """Microseconds of a block, by way: the median, and the median of what it takes less than the first."""
    dtype = torch.bfloat16
    blocks = FastStack(random_blocks(dit, device, dtype), Speed(blocks=True, round_keys=True))
    ring = KVRing(RingShape.of(dit, stream), device=device, dtype=dtype)
    for first in range(0, stream.window, stream.frames_per_chunk):
        ring.place([first + frame for frame in range(stream.frames_per_chunk)])
    ring.k.normal_()
    ring.v.normal_()
    chunk = (1, stream.frames_per_chunk, ring.shape.tokens_per_frame, dit.width)
    x = torch.empty(chunk, device=device, dtype=dtype)
    began = torch.randn(chunk, device=device).to(dtype)
    levels = torch.randn(*chunk[:2], 6, dit.width, device=device).to(dtype)
    said = [
        torch.randn(1, dit.text_tokens, dit.heads, dit.head_width, device=device).to(dtype)
        for _ in range(2 * dit.layers)
    ]
    cross = CrossKV(tuple(said[::2]), tuple(said[1::2]))

    def walk(even: bool) -> None:
        for block in blocks:
            block.self_attn.even_waves = even
        x.copy_(began)
        blocks.walk(x, levels, [ring], cross)

    runs = {
        name: recorded(partial(walk, even), device, kernels=kernels) for name, (even, kernels) in WAYS.items()
    }
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(COLD + turns):
        for name, run in runs.items():
            taken[name].append(1e3 * timed_ms(run, device) / dit.layers)
    kept = {name: times[COLD:] for name, times in taken.items()}
    plain = next(iter(kept.values()))
    return {
        name: {
            "us": statistics.median(times),
            "saved_us": statistics.median(before - now for before, now in zip(plain, times, strict=True)),
        }
        for name, times in kept.items()
    }


def random_blocks(dit: DiTConfig, device: torch.device, dtype: torch.dtype) -> BlockStack:
    with torch.device("meta"):
        model = CausalDiT(dit)
    fill_random(model, seed=0, device=device, dtype=dtype)
    return model.blocks


def recorded(run: Run, device: torch.device, *, kernels: bool) -> Run:
    run()
    return GraphRecorder(device, zero_words=kernels)(run) if device.type == "cuda" else run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="wan2.1-t2v-1.3b")
    parser.add_argument("--size", default="480x832")
    parser.add_argument("--window", type=int, default=9)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--turns", type=int, default=100)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("error: calls are recorded on a CUDA GPU; none is here")
    height, width = parse_size(options.size)
    spec = find_model(options.model)
    stream = stream_config(spec.stream, None, height=height, width=width, window=options.window)
    measured = measure(
        replace(spec.dit, layers=options.blocks), stream, torch.device("cuda"), turns=options.turns
    )
    configuration = {
        "model": options.model,
        "blocks": options.blocks,
        "turns": options.turns,
        "stream": asdict(stream),
    }
    write_report(
        f"recorded-blocks-{options.model.rpartition('-')[2]}-{options.size}", configuration, measured
    )


if __name__ == "__main__":
    main()
