"""Brook on two cores of this machine's CPU, each run a fresh process: load, first frame, frames a second,
peak memory.

    python -m benchmarks.brook
    python -m benchmarks.brook --page          # writes the last result into docs/brook.md

As every kind of CPU that this one can stand for (`MILLSTREAM_CPU`), as `--precision auto` runs it and in
float32. A frame counts when it is bytes: model, decoder and conversion are included, warm-up is not. Memory
is the process's peak, the interpreter and torch among it. Nothing else should run meanwhile: two threads that
share a core wait for each other, which is also why the two cores are two, not the two threads of one.

A machine that is shared with others is slower in some minutes than in others. So each process also times a
product of two matrices before and after the chunks that count, the machine's own pulse (`pulse_gflops`):
frames a second of two runs can be compared where their pulses are alike, and all runs are kept, not their
median alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import row, write_between

WARM_UP = 6
CHUNKS = 20
CORES = 2
RUNS = {"auto": 3, "fp32": 1}
"""By precision. What is promised is measured more than once."""
SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
AT_MOST = {"load_and_first_frame_seconds": 1.0, "peak_gib": 1.5}
FRAMES_PER_SECOND = {"amx": 40.0, "vnni": 24.0, "avx2": 16.0}
"""At least, by kind of CPU."""
PULSE_WIDTH = 1024
PULSE_SECONDS = 0.5
"""Width of the two square matrices, and seconds for which their matmul is repeated."""
PULSE_HEAD = "its pulse, GFLOP/s"
NAMES = {"amx": "AMX: bfloat16", "vnni": "AVX-512 with VNNI: bytes", "avx2": "AVX2: bytes"}


def measure(weights: str, precision: str, chunks: int, warm_up: int) -> dict[str, float]:
    """One life of a process, from the import to a steady stream."""
    begun = time.perf_counter()
    import torch

    from millstream.commands.engine_from_options import resolve
    from millstream.commands.options import ModelOptions
    from millstream.core.examples import DEFAULT_PROMPT
    from millstream.engine.engine import Engine

    torch.set_num_threads(min(CORES, torch.get_num_threads()))
    imported = time.perf_counter()
    engine = Engine(resolve(ModelOptions(weights=[weights], device="cpu", precision=precision)))
    loaded = time.perf_counter()
    stream = engine.stream(engine.session(DEFAULT_PROMPT)).stream()
    next(stream)
    first = time.perf_counter()
    for _ in range(warm_up - 1):
        next(stream)
    pulse_before = (
        pulse_gflops()
    )  # not sooner: the first product starts threads, which the first frame is to pay for
    steady = time.perf_counter()
    timings = []
    frames = 0
    for _ in range(chunks):
        chunk = next(stream)
        frames += len(chunk.frames)
        timings.append(chunk.timing)
    ended = time.perf_counter()
    pulse_after = pulse_gflops()
    phases = {
        f"{name}_ms": statistics.median(t.phases_ms.get(name, 0.0) for t in timings)
        for name in timings[-1].phases_ms
    }
    return {
        "import_seconds": imported - begun,
        "load_and_first_frame_seconds": first - imported,
        "load_seconds": loaded - imported,
        "frames_per_second": frames / (ended - steady),
        "pulse_gflops": (pulse_before + pulse_after) / 2,
        "peak_gib": peak_bytes() / 2**30,
        "int8": float(engine.speed.int8),
        "thin_decoder": float(engine.speed.thin_decoder),
        "bfloat16": float(engine.dtype == torch.bfloat16),
        **phases,
    }


def pulse_gflops() -> float:
    """Measure the float32 matmul rate of this machine now, in GFLOP/s, with torch's number of threads."""
    import torch

    left = torch.ones(PULSE_WIDTH, PULSE_WIDTH)
    right = torch.ones(PULSE_WIDTH, PULSE_WIDTH)
    product = left @ right  # starts the threads
    begun = time.perf_counter()
    num_products = 0
    while time.perf_counter() - begun < PULSE_SECONDS:
        torch.mm(left, right, out=product)
        num_products += 1
    return 2 * PULSE_WIDTH**3 * num_products / (time.perf_counter() - begun) / 1e9


def peak_bytes() -> int:
    """The most this process ever had in memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def two_cores() -> list[int]:
    """A hardware thread of each. Far apart, because a virtual machine may hide that neighbours are threads of
    one core."""
    firsts: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        path = Path(SIBLINGS.format(cpu))
        firsts.setdefault(path.read_text() if path.exists() else str(cpu), cpu)
    cores = list(firsts.values())
    return cores[:: max(1, len(cores) // CORES)][:CORES]


def kinds_here() -> list[str]:
    """That this CPU is, or can stand for."""
    from millstream.ops.precision import cpu_kind

    kinds = ["amx", "vnni", "avx2"]
    found = cpu_kind()
    return kinds[kinds.index(found) :] if found in kinds else [found]


def in_fresh_process(weights: str, kind: str, precision: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.brook", "--weights", weights, "--measure", precision]
    limit = {} if kind == "other" else {"MILLSTREAM_CPU": kind}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | limit)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(run[name] for run in runs), 3) for name in runs[0]}


def single_runs(runs: list[dict[str, float]]) -> list[dict[str, float]]:
    """Frames a second of each run beside the machine's pulse in it."""
    return [{name: round(run[name], 3) for name in ("frames_per_second", "pulse_gflops")} for run in runs]


def missed(kind: str, measured: dict[str, float]) -> list[str]:
    """Goals that were not reached."""
    over = [
        f"{name} {measured[name]:g}, at most {limit:g}"
        for name, limit in AT_MOST.items()
        if measured[name] > limit
    ]
    least = FRAMES_PER_SECOND.get(kind, 0.0)
    found = measured["frames_per_second"]
    return over + ([f"frames_per_second {found:g}, at least {least:g}"] if found < least else [])


def table(report: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a result's Markdown table. Results without a pulse leave that column empty."""
    measured = report["measured"]
    yield row(
        (
            "CPU",
            "frames a second",
            "goal",
            "load and first frame",
            "memory",
            "whole decoder, float32",
            PULSE_HEAD,
        )
    )
    yield row(["---"] * 7)
    for kind, goal in measured["goals"]["frames_per_second"].items():
        if f"{kind}, auto" in measured:
            auto = measured[f"{kind}, auto"]
            plain = measured[f"{kind}, fp32"]
            yield row(
                (
                    NAMES[kind],
                    frames_text(
                        auto["frames_per_second"], measured.get("single_runs", {}).get(f"{kind}, auto", [])
                    ),
                    f"{goal:g}",
                    f"{auto['load_and_first_frame_seconds']:.2f} s",
                    f"{auto['peak_gib']:.2f} GiB",
                    f"{plain['frames_per_second']:.1f}",
                    f"{auto['pulse_gflops']:.0f}" if "pulse_gflops" in auto else "",
                )
            )
    yield ""
    yield f"{report['hardware']['cpu']}, torch {report['versions']['torch']}, commit `{report['commit']}`."


def frames_text(median: float, runs: Sequence[dict[str, float]]) -> str:
    """The median, and behind it the slowest and the quickest run where each is known."""
    rates = [run["frames_per_second"] for run in runs]
    return f"**{median:.1f}** ({min(rates):.1f} to {max(rates):.1f})" if rates else f"**{median:.1f}**"


def write_page(name: str, table: Callable[[dict[str, Any]], Iterable[str]]) -> None:
    """A benchmark's results into docs/brook.md: of a machine that can stand for all, and of one that is
    slower."""
    from benchmarks.report import RESULTS

    paths = [path for kind in ("", "-without-bf16") if (path := RESULTS / f"{name}{kind}.json").exists()]
    lines = [line for path in paths for line in ("", *table(json.loads(path.read_text())))]
    write_between(RESULTS.parents[1] / "docs" / "brook.md", f"benchmarks.{name}", lines[1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Brook's speed and memory on two cores of this machine's CPU."
    )
    parser.add_argument(
        "--weights", default="bundled", help="bundled, a Brook file, or random: all are as fast in float32"
    )
    parser.add_argument("--measure", metavar="PRECISION", help="be one of the processes that are measured")
    parser.add_argument(
        "--report", default="brook", help="name of the result; brook-without-bf16 of a slower machine"
    )
    parser.add_argument(
        "--page", action="store_true", help="write the last result into docs/brook.md and measure nothing"
    )
    options = parser.parse_args()
    if options.page:
        write_page("brook", table)
        return
    if options.measure:
        os.sched_setaffinity(0, two_cores())
        print(json.dumps(measure(options.weights, options.measure, CHUNKS, WARM_UP)))
        return
    from benchmarks.report import write_report  # imports torch, which the measured process is to time

    found: dict[str, dict[str, float]] = {}
    each: dict[str, list[dict[str, float]]] = {}
    for kind in kinds_here():
        for precision, count in RUNS.items():
            runs = [in_fresh_process(options.weights, kind, precision) for _ in range(count)]
            found[f"{kind}, {precision}"] = medians(runs)
            each[f"{kind}, {precision}"] = single_runs(runs)
    short = {kind: lines for kind in kinds_here() if (lines := missed(kind, found[f"{kind}, auto"]))}
    goals = {"at_most": AT_MOST, "frames_per_second": FRAMES_PER_SECOND}
    write_report(
        options.report,
        {
            "model": "brook",
            "size": "256x256",
            "cores": CORES,
            "runs": RUNS,
            "warm_up": WARM_UP,
            "chunks": CHUNKS,
        },
        {**found, "single_runs": each, "goals": goals, "missed": short},
    )


if __name__ == "__main__":
    main()
