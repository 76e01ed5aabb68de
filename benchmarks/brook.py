"""Brook on this machine's CPU, each run a fresh process: load, first frame, frames a second, peak memory.

    python -m benchmarks.brook

A frame counts when it is bytes: model, decoder and conversion are included, warm-up is not. Memory is the process's peak,
the interpreter and torch among it. float32 runs beside bfloat16, which the goals are for, to show what it brings.
Nothing else should run meanwhile: two threads that share a core wait for each other.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

RUNS, WARM_UP, CHUNKS = 3, 6, 40
AT_MOST = {"load_seconds": 3.0, "first_frame_seconds": 1.5, "peak_gib": 1.5}
AT_LEAST = {"frames_per_second": 24.0}


def measure(weights: str, dtype: str, chunks: int, warm_up: int) -> dict[str, float]:
    """One life of a process, from the import to a steady stream."""
    begun = time.perf_counter()
    from millstream import Engine
    from millstream.core.examples import DEFAULT_PROMPT

    imported = time.perf_counter()
    engine = Engine("brook", weights=weights, device="cpu", dtype=dtype)
    loaded = time.perf_counter()
    stream = engine.session(DEFAULT_PROMPT).stream()
    next(stream)
    first = time.perf_counter()
    for _ in range(warm_up - 1):
        next(stream)
    steady = time.perf_counter()
    timings = []
    frames = 0
    for _ in range(chunks):
        chunk = next(stream)
        frames += len(chunk.frames)
        timings.append(chunk.timing)
    ended = time.perf_counter()
    phases = {f"{name}_ms": statistics.median(t.phases_ms.get(name, 0.0) for t in timings) for name in timings[-1].phases_ms}
    return {
        "import_seconds": imported - begun,
        "load_seconds": loaded - imported,
        "first_frame_seconds": first - loaded,
        "frames_per_second": frames / (ended - steady),
        "peak_gib": peak_bytes() / 2**30,
        **phases,
    }


def peak_bytes() -> int:
    """The most this process ever had in memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def in_fresh_process(weights: str, dtype: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.brook", "--weights", weights, "--measure", dtype]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(run[name] for run in runs), 3) for name in runs[0]}


def missed(measured: dict[str, float]) -> list[str]:
    """Goals that were not reached."""
    over = [f"{name} {measured[name]:g}, at most {limit:g}" for name, limit in AT_MOST.items() if measured[name] > limit]
    under = [f"{name} {measured[name]:g}, at least {limit:g}" for name, limit in AT_LEAST.items() if measured[name] < limit]
    return over + under


def main() -> None:
    parser = argparse.ArgumentParser(description="Brook's speed and memory on this machine's CPU.")
    parser.add_argument("--weights", default="bundled", help="bundled, a Brook file, or random: all are as fast")
    parser.add_argument("--measure", metavar="DTYPE", help="be one of the processes that are measured")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.weights, options.measure, CHUNKS, WARM_UP)))
        return
    from benchmarks.report import write_report  # imports torch, which the measured process is to time

    found = {dtype: [in_fresh_process(options.weights, dtype) for _ in range(RUNS)] for dtype in ("bfloat16", "float32")}
    measured = {dtype: medians(runs) for dtype, runs in found.items()}
    write_report(
        "brook",
        {"model": "brook", "weights": options.weights, "size": "256x256", "runs": RUNS, "warm_up": WARM_UP, "chunks": CHUNKS},
        {**measured, "goals": {"at_most": AT_MOST, "at_least": AT_LEAST}, "missed": missed(measured["bfloat16"])},
    )


if __name__ == "__main__":
    main()
