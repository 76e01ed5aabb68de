"""One stream, one speed-up after the other, in one process: where a chunk's time goes at each step, and the
floor.

    python -m benchmarks.ladder                                                     # 1.3B, 480x832, window 9
    python -m benchmarks.ladder --model wan2.1-t2v-14b --size 320x576 --window 6 --only plain,on,fp8

Each rung is a `bench stream` and is written as one: `results/stream-MODEL-SIZE-wWINDOW-RUNG.json`;
`ladder_plot.py` draws them.
"""

from __future__ import annotations

import argparse
import gc
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import RESULTS
from millstream.commands.bench.stream import StreamRequest, measure
from millstream.commands.report import describe, spelled, write_result
from millstream.core.config import parse_size
from millstream.core.engine_config import EngineConfig
from millstream.core.presets import find_model
from millstream.core.speed import parse_speed
from millstream.engine.engine import stream_config

RUNGS = {
    "plain": ("off", "bf16"),
    "blocks": ("blocks", "bf16"),
    "round-keys": ("blocks,round_keys", "bf16"),
    "graphs": ("blocks,round_keys,graphs", "bf16"),
    "decoder": ("on,-own_convolution,-even_waves", "bf16"),
    "own-convolution": ("on,-even_waves", "bf16"),
    "on": ("on", "bf16"),
    "paired-commits": ("on,paired_commits", "bf16"),
    "fp8": ("on", "fp8"),
    "low-attention": ("on,low_attention", "bf16"),
    "fp8-low-attention": ("on,low_attention", "fp8"),
}
"""`--fast` and `--precision` of each: first what adds up, then what is tried on top."""
FLOORED = ("on", "fp8")
"""Rungs beside which the floor of their precision is measured."""


def result_path(model: str, size: str, window: int, rung: str) -> Path:
    return RESULTS / f"stream-{model.rpartition('-')[2]}-{size}-w{window}-{rung}.json"


def climb(options: argparse.Namespace) -> None:
    height, width = parse_size(options.size)
    changes = dict(height=height, width=width, window=options.window)
    for rung in options.only.split(",") if options.only else RUNGS:
        fast, precision = RUNGS[rung]
        request = StreamRequest(
            engine=EngineConfig(
                model=options.model,
                weights=("random",),
                speed=parse_speed(fast, precision),
                device=options.device,
            ),
            changes=changes,
            chunks=options.chunks,
            floor=rung in FLOORED,
        )
        config = stream_config(find_model(options.model).stream, None, **changes)
        measured = measure(request, config)
        path = result_path(options.model, options.size, options.window, rung)
        write_result(path, describe("stream", spelled(request) | {"stream": asdict(config)}, measured))
        print(line_of(rung, measured), flush=True)
        tidy()


def tidy() -> None:
    """So that a rung's memory is its own."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def line_of(rung: str, measured: dict[str, Any]) -> str:
    phases = "  ".join(
        f"{name} {phase['ms']:.1f}" + (f" ({phase['of_floor']:.2f})" if "of_floor" in phase else "")
        for name, phase in measured["phases"].items()
    )
    chunk = measured["chunk_ms"]["p50"]
    first = measured["first_frame_s"]["warm"]
    peak = measured["memory_mib"]["peak"]
    return (
        f"{rung:15s} {measured['fps']:6.2f} FPS  chunk {chunk:.1f}  {phases}  first {first:.2f} s  peak "
        f"{peak:.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="wan2.1-t2v-1.3b")
    parser.add_argument("--size", default="480x832")
    parser.add_argument("--window", type=int, default=9)
    parser.add_argument("--chunks", type=int, default=20)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", default="", help=f"some of {', '.join(RUNGS)}, with commas between them")
    climb(parser.parse_args())


if __name__ == "__main__":
    main()
