"""Record of the collectives that this rank called: every one is counted, the last ones are kept for the
report that is written when a mesh hangs, and a digest of all of them tells whether ranks have parted ways.

A chunk has some hundreds of collectives, of a few kinds and shapes: each is spelled once.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType
from typing import Any, Literal, Protocol

Kind = Literal["sum", "scatter", "exchange", "collect", "broadcast", "gather", "send", "receive"]
Purpose = Literal["start-up", "mesh", "training"]

POINT_TO_POINT: frozenset[Kind] = frozenset({"send", "receive"})
KEPT = 2048
"""Calls that are remembered: more than a chunk of the largest model makes."""


class GroupUse(Protocol):
    """Interface of a group that collectives are called on."""

    name: str
    purpose: Purpose
    ranks: tuple[int, ...]
    rank: int


@lru_cache(maxsize=KEPT)
def spelled(kind: Kind, what: str, shape: tuple[int, ...], device: str) -> bytes:
    """Spell what must be the same on all ranks of the group."""
    return f"{kind} ({what}) of {list(shape)} on {device}".encode()


@dataclass(slots=True)
class CollectiveCall:
    """One collective of this rank; entered while it runs, unless it is waited for later."""

    number: int
    """Number of the collective in its group. Sends and receives, which only two ranks know of, have the
    number of the last collective before them."""
    kind: Kind
    what: str
    group: str
    ranks: tuple[int, ...]
    shape: tuple[int, ...]
    started_at: float
    """Seconds of `time.monotonic`."""
    device: str = "cpu"
    done: bool = False

    @property
    def call(self) -> str:
        return spelled(self.kind, self.what, self.shape, self.device).decode()

    def entry(self) -> dict[str, Any]:
        """Return the call as torch's flight recorder would write it."""
        return {
            "collective_seq_id": self.number,
            "process_group": [f"{self.group} {self.ranks}", ""],
            "profiling_name": self.call,
            "state": "completed" if self.done else "started",
            "is_p2p": self.kind in POINT_TO_POINT,
        }

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.done = kind is None

    def __str__(self) -> str:
        state = "done" if self.done else f"waiting for {time.monotonic() - self.started_at:.1f} s"
        return (
            f"#{self.number} {self.kind} ({self.what}) on {self.group} {self.ranks}, shape "
            f"{tuple(self.shape)}: {state}"
        )


@dataclass(slots=True)
class CollectiveRecord:
    """Record of this rank's calls: counts of everything, and the last `KEPT` calls; older ones are dropped.

    Compiled regions call without passing here; their collectives are in the graph, the same for every rank
    that compiled it.
    """

    last: deque[CollectiveCall] = field(default_factory=lambda: deque(maxlen=KEPT))
    counts: Counter[tuple[Kind, str]] = field(default_factory=Counter)
    """By kind and by what the caller calls it."""
    numbers: Counter[str] = field(default_factory=Counter)
    """Collectives so far, by group."""
    digests: Counter[str] = field(default_factory=Counter)
    """Digest of every collective so far and their order, by group: the same on all of its ranks unless these
    have parted ways."""

    def begin(
        self, kind: Kind, what: str, group: GroupUse, shape: tuple[int, ...], device: str = "cpu"
    ) -> CollectiveCall:
        name = group.name
        self.counts[kind, what] += 1
        if kind not in POINT_TO_POINT:
            self.numbers[name] += 1
            self.digests[name] = zlib.crc32(spelled(kind, what, shape, device), self.digests[name])
        called = CollectiveCall(
            self.numbers[name], kind, what, name, group.ranks, shape, time.monotonic(), device
        )
        self.last.append(called)
        return called

    def flight(self) -> dict[str, Any]:
        """Return the last calls as a dump of torch's flight recorder has them."""
        return {"entries": [called.entry() for called in list(self.last)]}
