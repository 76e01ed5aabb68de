"""The server under test as its machine sees it: memory, threads, descriptors and what it wrote to its log.

Everything comes from `/proc`: a server that is in trouble is not asked how it does.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millstream.load.host import Host, metrics

MODEL = (
    "--model",
    "wan-tiny",
    "--weights",
    "random",
    "--device",
    "cpu",
    "--dtype",
    "float32",
    "--threads",
    "1",
)
SHORT = ("--abandon", "5", "--idle", "5")
"""Sessions that nobody watches go soon, so that what stays behind can be told from what is only not gone
yet."""
TRACEBACK = "Traceback (most recent call last)"
SETTLE_S = 90.0
"""For all that has a time limit of its own to run into it."""
MAX_KINDS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    resident_bytes: int
    threads: int
    descriptors: int
    sessions: int
    """With a place or in line."""


def read_load(host: Host) -> Load | None:
    """Now; None when it is gone."""
    reading = host.read()
    if reading is None or host.pid is None:
        return None
    try:
        descriptors = len(os.listdir(f"/proc/{host.pid}/fd"))
    except OSError:
        return None
    told = metrics(host.url)
    return Load(
        resident_bytes=reading.resident_bytes,
        threads=reading.threads or 0,
        descriptors=descriptors,
        sessions=int(told.get("millstream_sessions", 0) + told.get("millstream_sessions_waiting", 0)),
    )


async def settled(host: Host, before: Load | None = None, *, patience_s: float = SETTLE_S) -> Load | None:
    """Its load once it is as it was, or once patience is at an end; without a before, once two readings
    agree."""
    until = time.monotonic() + patience_s
    last = None
    while True:
        load = await asyncio.to_thread(read_load, host)
        if load is None or time.monotonic() > until:
            return load
        if (
            before is None
            and last is not None
            and (load.threads, load.descriptors) == (last.threads, last.descriptors)
        ):
            return load
        if before is not None and load.threads <= before.threads and load.descriptors <= before.descriptors:
            return load
        last = load
        await asyncio.sleep(2.0)


def grown(before: Load, after: Load, allowed: float) -> list[str]:
    """A line for each that did not come back."""
    lines = []
    for name in ("resident_bytes", "threads", "descriptors"):
        begun = getattr(before, name)
        ended = getattr(after, name)
        if ended > begun * (1 + allowed):
            lines.append(f"{name} went from {begun} to {ended}, at most {allowed:.0%} more is allowed")
    return lines


class Log:
    """Lines that the server has logged since this was made."""

    def __init__(self, host: Host) -> None:
        self._path = Path(f"/proc/{host.pid}/fd/2")
        self._begun = self._path.stat().st_size

    def lines(self) -> list[str]:
        with self._path.open(errors="replace") as log:
            log.seek(self._begun)
            return log.read().splitlines()

    def tracebacks(self) -> dict[str, int]:
        """How many of each kind: the error at its end and the place nearest to it."""
        lines = self.lines()
        starts = [number for number, line in enumerate(lines) if TRACEBACK in line]
        return dict(Counter(_reason(lines[start + 1 :]) for start in starts).most_common(MAX_KINDS))


def _reason(lines: Sequence[str]) -> str:
    place = ""
    for line in lines:
        if line.lstrip(" +|").startswith("File "):
            place = line.strip()
        elif line[:1] not in (" ", ""):
            return f"{line.partition(':')[0][:100]} at {place}"
    return "cut off"


def slope_per_hour(times: Sequence[float], values: Sequence[float]) -> float:
    """By least squares; 0 where there is nothing to compare."""
    return 3600 * statistics.linear_regression(times, values).slope if len(set(times)) > 1 else 0.0
