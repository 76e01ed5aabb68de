"""Measure the cost of always-on spans: the share of a chunk's time that goes into measuring it.

    python -m benchmarks.spans                  # results/spans.json, this processor
    python -m benchmarks.spans --device cuda    # results/spans-cuda.json, device events

Brook, whose chunks are short. The goal is below 1%. One span's cost to the host is timed in a loop of many,
in the same run as the chunks, and multiplied by how many a chunk has.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter

from benchmarks.report import write_report
from millstream import Engine
from millstream.generation.stopwatch import Stopwatch

WARM_UP = 3
CHUNKS = 12
SPANS = 20_000
RUNS = 5


def microseconds_per_span(watch: Stopwatch) -> float:
    """Best of several runs: what else runs here only ever adds time."""
    best = float("inf")
    for _ in range(RUNS):
        begun = time.perf_counter()
        for _ in range(SPANS):
            with watch.span("step"):
                pass
        best = min(best, 1e6 * (time.perf_counter() - begun) / SPANS)
        watch.lap()
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    device = parser.parse_args().device
    engine = Engine("brook", weights="bundled", device=device)
    with engine.session("a white boat on the sea at dawn", seed=1) as session:
        timings = [chunk.timing for chunk in session.stream(WARM_UP + CHUNKS)][WARM_UP:]
    per_chunk = Counter(span.work.chunk for span in engine.generator.stopwatch.spans)
    spans = max(per_chunk.values())
    each_us = microseconds_per_span(Stopwatch(engine.device))
    chunk_ms = statistics.median(timing.total_ms for timing in timings)
    config = engine.stream_config()
    write_report(
        "spans" if device == "cpu" else f"spans-{device}",
        {
            "model": "brook",
            "size": f"{config.height}x{config.width}",
            "steps": config.steps,
            "dtype": str(engine.dtype),
        },
        {
            "span_us": round(each_us, 2),
            "spans_per_chunk": spans,
            "chunk_ms": round(chunk_ms, 1),
            "share_of_a_chunk": round(spans * each_us / 1e3 / chunk_ms, 6),
            "goal_below": 0.01,
        },
    )


if __name__ == "__main__":
    main()
