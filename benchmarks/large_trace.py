"""How long a large trace takes to read, and how much memory: `profile read` in a process of its own.

    python -m benchmarks.large_trace                    # 500 MB; some minutes, most of them to write it
    python -m benchmarks.large_trace --megabytes 20     # a look; writes no result

A simulated GPU runs blocks of a transformer, and its host now and then waits: kernels, launches and operators with shapes, as
Kineto writes them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import write_report
from benchmarks.simulated_traces import SimulatedRank
from benchmarks.workloads import block
from millstream.planner.hardware import DEVICES

MEGABYTE = 10**6
SIZE = 500
BLOCKS_A_PIECE = 500
GOALS = {"seconds": 30.0, "megabytes": 300.0}


def write_trace(path: Path, num_bytes: int) -> int:
    """So many bytes or a little more; how many events."""
    rank, count = SimulatedRank(0, DEVICES["h200"], random.Random(7)), 0
    with path.open("w") as out:
        out.write('{"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "traceEvents": [')
        while out.tell() < num_bytes:
            for _ in range(BLOCKS_A_PIECE):
                block(rank, 4096, 1536)
            rank.item(dispatch=10.0)
            out.write(("," if count else "") + ",".join(map(json.dumps, rank.events)))
            count += len(rank.events)
            rank.events.clear()
        out.write("]}")
    return count


def read_apart(path: Path) -> dict[str, Any]:
    begun = time.monotonic()
    command = [sys.executable, "-m", "millstream", "profile", "read", str(path), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.read())
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"profile read ended with {process.returncode}"
    return {
        "seconds": round(time.monotonic() - begun, 2),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 2),
        "megabytes": round(used.ru_maxrss * 1024 / MEGABYTE, 1),
        "verdict": said["verdict"]["name"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=SIZE)
    size = parser.parse_args().megabytes
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.json"
        events = write_trace(path, size * MEGABYTE)
        found = {"events": events, **read_apart(path), "goals": GOALS}
    if size == SIZE:
        write_report("large_trace", {"megabytes": size}, found)
    else:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
