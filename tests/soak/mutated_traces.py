"""Traces that were mended by nobody: cut off, reordered, with times that are negative, huge or no times at
all.

    python -m tests.soak.mutated_traces --count 10000

Each must be read and judged, or refused in one line. Anything else is a fault of ours, and its seed is said.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from millstream.core.errors import MillstreamError
from millstream.planner.hardware import DEVICES
from millstream.profiler.reading import read
from millstream.profiler.reading_page import html_report
from millstream.profiler.record import reading_record
from millstream.profiler.simulated_rank import SimulatedRank
from millstream.profiler.simulated_workloads import block
from tests.soak.report import write_report

SLOW_S = 20.0
"""Longer than that for a trace of a few dozen events is a hang, however busy the machine."""
STRANGE: tuple[Any, ...] = (
    -1, 0, -1e12, 1e300, 2**70, -(2**63), float("nan"), float("inf"), None, "", "12", [], {}, True, [[]], {"a": [1]}, "\x00",
    "é" * 50,
)  # fmt: skip
FIELDS = ("ts", "dur", "pid", "tid", "name", "cat", "ph", "args")
ARGUMENTS = (
    "correlation",
    "External id",
    "external id",
    "Input Dims",
    "Input type",
    "Concrete Inputs",
    "bytes",
    "In msg nelems",
)
CATEGORIES = (
    "kernel",
    "gpu_memcpy",
    "python_function",
    "mtia_ccp_events",
    "cuda_runtime",
    "user_annotation",
    "overhead",
    "",
    "x",
)
NAMES = (
    "cudaMemcpy", "cudaStreamSynchronize", "cudaGraphLaunch", "ncclDevKernel_SendRecv", "nccl:all_to_all", "ProfilerStep#1",
    "aten::_flash_attention_forward", "aten::cudnn_convolution",
    "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "cudaStreamBeginCapture", "[memory]",
    "millstream.step session=a chunk=1 call=0",
)  # fmt: skip


def original(rng: random.Random) -> dict[str, Any]:
    rank = SimulatedRank(0, DEVICES["h200"], rng)
    for _ in range(rng.randint(1, 4)):
        block(rank, rng.choice((10, 1000)), 256)
        rank.item(dispatch=10.0)
    return {"deviceProperties": [{"name": "NVIDIA H200"}], "traceEvents": rank.events}


def mutated(seed: int) -> str:
    rng = random.Random(seed)
    record = original(rng)
    events = record["traceEvents"]
    for _ in range(rng.randint(1, 12)):
        event = rng.choice(events)
        match rng.randrange(9):
            case 0:
                event[rng.choice(FIELDS)] = rng.choice(STRANGE)
            case 1:
                args = event.setdefault("args", {})
                if isinstance(args, dict):
                    args[rng.choice(ARGUMENTS)] = rng.choice(STRANGE)
            case 2:
                event.pop(rng.choice(FIELDS), None)
            case 3:
                rng.shuffle(events)
            case 4:
                event["cat"], event["name"] = rng.choice(CATEGORIES), rng.choice(NAMES)
            case 5:
                del events[rng.randrange(len(events)) :]
                events.append(event)
            case 6:
                events.append(rng.choice(STRANGE))
                events[:] = [each for each in events if isinstance(each, dict)] or [event]
            case 7:
                record[rng.choice(("deviceProperties", "distributedInfo", "millstream", "traceEvents2"))] = (
                    rng.choice(STRANGE)
                )
            case _:
                for each in events:
                    if isinstance(each.get("ts"), float):
                        each["ts"] *= rng.choice((-1.0, 0.0, 1e9))
    text = json.dumps(record)
    return text[: rng.randrange(len(text))] if rng.random() < 0.2 else text


def outcome(path: Path, seed: int) -> str:
    path.write_text(mutated(seed))
    began = time.perf_counter()
    try:
        found = read([path])
        json.dumps(reading_record(found))
        html_report(found)
        said = "judged"
    except MillstreamError as error:
        said = "refused" if "\n" not in str(error) else "refused in more than one line"
    except Exception as error:  # the boundary: whatever it is, it is counted and named
        said = f"{type(error).__name__}: {error}"[:80]
    return "too slow" if time.perf_counter() - began > SLOW_S else said


def campaign(count: int, first: int = 0) -> tuple[Counter[str], dict[str, int]]:
    """How often each outcome was, and a seed for each that is a fault."""
    outcomes: Counter[str] = Counter()
    faults: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            said = outcome(Path(folder) / "trace.json", seed)
            outcomes[said] += 1
            if said not in ("judged", "refused"):
                faults.setdefault(said, seed)
    return outcomes, faults


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000)
    count = parser.parse_args().count
    outcomes, faults = campaign(count)
    print(dict(outcomes), faults)
    write_report(
        "mutated_traces",
        {"count": count, "goal": "no traceback, no hang"},
        {"outcomes": dict(outcomes), "faults": faults},
    )


if __name__ == "__main__":
    main()
