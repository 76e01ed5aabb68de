"""Report of what a process was doing: the last collectives it called and where its threads stand. Written
before a mesh is killed.

Where ranks have parted ways is read off the collectives of all of them, as their own records have them and,
where it is on, as torch's flight recorder has them, which knows those of compiled blocks too.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch._C import _distributed_c10d

from millstream.mesh.flight_recorder import read_flights
from millstream.mesh.rendezvous import Rendezvous
from millstream.parallel.collective_calls import CollectiveRecord

CALLS = "calls"
FLIGHT = "flight"
"""Keys on the board of each rank's last calls: by its own record, and by torch's."""
SHOWN_COLLECTIVES = 5
KEPT_REPORTS = 20


def describe_rank(rank: int, record: CollectiveRecord | None, doing: str) -> str:
    """Describe a rank as it is now: what it works on, what it called last, every thread's stack."""
    called = [] if record is None else [str(each) for each in list(record.last)[-SHOWN_COLLECTIVES:]]
    lines = [
        f"rank {rank}: {doing or 'nothing under way'}",
        *(f"  {each}" for each in called or ["no collective yet"]),
    ]
    return "\n".join([*lines, *_stacks()])


def post_calls(rendezvous: Rendezvous, rank: int, record: CollectiveRecord) -> None:
    """Post this rank's last calls, to be compared with the other ranks'."""
    for name, flight in ((CALLS, record.flight()), (FLIGHT, recorded_by_torch())):
        rendezvous.post(f"{name}/{rank}", flight)


def recorded_by_torch() -> dict[str, Any]:
    """Return what the flight recorder holds: NCCL's, or else gloo's. It has no entries where there is
    none."""
    for dump in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        if hasattr(_distributed_c10d, dump):
            flight: dict[str, Any] = json.loads(getattr(_distributed_c10d, dump)())
            if flight.get("entries"):
                return flight
    return {"entries": []}


def parted(rendezvous: Rendezvous, ranks: Iterable[int]) -> list[str]:
    """Return where these ranks wait for each other or have called different things, as far as they have
    posted it; our own findings come first."""
    found = []
    for name, source in ((CALLS, ""), (FLIGHT, "flight recorder: ")):
        flights = {
            rank: flight for rank in ranks if (flight := rendezvous.read(f"{name}/{rank}")) is not None
        }
        found += [source + line for line in read_flights(flights).findings]
    return found


def write_report(folder: Path, reason: str, ranks: Mapping[int, str]) -> Path:
    """One file for all ranks; the newest `KEPT_REPORTS` are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    now = time.time_ns()  # once: names must sort as they were written
    path = (
        folder / f"hang-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now // 10**9))}-{now % 10**9:09d}.txt"
    )
    parts = [reason, *(text for _, text in sorted(ranks.items()))]
    path.write_text("\n\n".join(parts) + "\n")
    for old in sorted(folder.glob("hang-*.txt"))[:-KEPT_REPORTS]:
        old.unlink(missing_ok=True)
    return path


def _stacks() -> list[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = []
    for ident, frame in sys._current_frames().items():
        found.append(f"  thread {names.get(ident, ident)}")
        found += ["    " + line.rstrip().replace("\n", "\n    ") for line in traceback.format_stack(frame)]
    return found
