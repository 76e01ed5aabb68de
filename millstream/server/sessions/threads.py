"""A pool whose threads are all there from the start: nobody waits for a thread, and a count of threads says
something."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

FEWEST = 2
MOST = 16


def num_encoders() -> int:
    """Threads that encode pictures: half of the cores that this process may use, as the engine and the
    sending need some."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or FEWEST
    return min(max(FEWEST, cores // 2), MOST)


def start_threads(pool: ThreadPoolExecutor, count: int) -> None:
    """Have a new pool of `count` threads make them: each waits until all have come."""
    meeting = threading.Barrier(count + 1)
    for _ in range(count):
        pool.submit(meeting.wait)
    meeting.wait()
