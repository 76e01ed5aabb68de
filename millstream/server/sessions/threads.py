"""A pool whose threads are all there from the start: nobody waits for a thread, and a count of threads says something."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor


def start_threads(pool: ThreadPoolExecutor, count: int) -> None:
    """Have a new pool of `count` threads make them: each waits until all have come."""
    meeting = threading.Barrier(count + 1)
    for _ in range(count):
        pool.submit(meeting.wait)
    meeting.wait()
