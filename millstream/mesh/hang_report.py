"""What a process was doing: the last collectives it called and where its threads stand. Written before a mesh is killed."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

from millstream.parallel.collectives import CollectiveRecord

SHOWN_COLLECTIVES = 5
KEPT_REPORTS = 20


def describe_rank(rank: int, record: CollectiveRecord | None, doing: str) -> str:
    """One rank, as it is now: what it works on, what it called last, every thread's stack."""
    called = [] if record is None else [str(each) for each in list(record.last)[-SHOWN_COLLECTIVES:]]
    lines = [f"rank {rank}: {doing or 'nothing under way'}", *(f"  {each}" for each in called or ["no collective yet"])]
    return "\n".join([*lines, *_stacks()])


def write_report(folder: Path, reason: str, ranks: Mapping[int, str]) -> Path:
    """One file for all ranks; the newest `KEPT_REPORTS` are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    now = time.time_ns()  # once: names must sort as they were written
    path = folder / f"hang-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now // 10**9))}-{now % 10**9:09d}.txt"
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
