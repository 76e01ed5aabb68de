"""Memory over a trace: how much was allocated when, and what filled it at the fullest moment.

What was there before the trace began has no name. Live blocks are called by the note or, without one, the
operator that was under way when they were allocated.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from millstream.core.trace import parse_label
from millstream.profiler.intervals import Floats
from millstream.profiler.kinds import Kind
from millstream.profiler.trace import Trace

DRAWN = 400
BEFORE = "before the trace"
_NOTES = (Kind.NOTE, Kind.DECODE, Kind.ENCODE, Kind.DATA)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryUse:
    at_ms: tuple[float, ...]
    """Moments since the trace began, at most `DRAWN`; each stands for the fullest of its stretch."""
    allocated_mib: tuple[float, ...]
    reserved_mib: tuple[float, ...]
    peak_mib: float
    peak_reserved_mib: float
    filled_by: tuple[tuple[str, float], ...]
    """MiB by name at the peak, largest first."""


def memory_use(trace: Trace, begin: float) -> MemoryUse | None:
    """Summarise memory over a trace; None where it was taken without memory."""
    memory = trace.memory
    if not len(memory.at) or memory.allocated.max() <= 0:
        return None
    peak = int(memory.allocated.argmax())
    kept = _fullest(memory.allocated, DRAWN)
    return MemoryUse(
        at_ms=tuple(((memory.at[kept] - begin) / 1e3).tolist()),
        allocated_mib=tuple((memory.allocated[kept] / 2**20).tolist()),
        reserved_mib=tuple((memory.reserved[kept] / 2**20).tolist()),
        peak_mib=float(memory.allocated[peak]) / 2**20,
        peak_reserved_mib=float(memory.reserved.max()) / 2**20,
        filled_by=_filled_by(trace, peak),
    )


def _fullest(allocated: NDArray[np.int64], count: int) -> NDArray[np.intp]:
    """Return the fullest moment of each of `count` stretches."""
    assert len(allocated), "nothing was allocated, nothing is full"
    edges = np.unique(np.linspace(0, len(allocated), count + 1).astype(int))
    return np.array([low + int(allocated[low:high].argmax()) for low, high in pairwise(edges)])


def _filled_by(trace: Trace, peak: int) -> tuple[tuple[str, float], ...]:
    memory = trace.memory
    _, back = np.unique(memory.address[peak::-1], return_index=True)
    last = np.sort(peak - back)  # of each address up to the peak
    blocks = last[memory.change[last] > 0]
    names = _under_way(trace, memory.at[blocks], memory.track[blocks])
    by_name: Counter[str] = Counter()
    for name, size in zip(names, memory.change[blocks], strict=True):
        by_name[name] += int(size)
    rest = int(memory.allocated[peak]) - sum(by_name.values())
    if rest > 0:
        by_name[BEFORE] = rest
    return tuple((name, size / 2**20) for name, size in by_name.most_common(12))


def _under_way(trace: Trace, moments: Floats, tracks: NDArray[np.int32]) -> list[str]:
    """Return the name of each allocation: our phase around it, else another note, else the operator."""
    notes = _covering(trace, moments, tracks, *_NOTES)
    ops = _covering(trace, moments, tracks, Kind.OP)
    return [note or op or "(nothing named)" for note, op in zip(notes, ops, strict=True)]


def _covering(trace: Trace, moments: Floats, tracks: NDArray[np.int32], *kinds: Kind) -> list[str]:
    """Return for each moment the latest event on the same thread that had begun and not ended; empty if there
    is none."""
    events = trace.events
    chosen = events.of(*kinds)
    found = [""] * len(moments)
    for track in np.unique(tracks):
        own = chosen[events.track[chosen] == track]
        own = own[np.argsort(events.begin[own], kind="stable")]
        begin = events.begin[own]
        end = events.ends(own)
        reach = np.maximum.accumulate(end)
        for place in np.flatnonzero(tracks == track):
            at = int(np.searchsorted(begin, moments[place], side="right")) - 1
            while at >= 0 and end[at] < moments[place] <= reach[at]:
                at -= 1
            if at >= 0 and end[at] >= moments[place]:
                found[place] = _short(trace.names[events.name[own[at]]])
    return found


def _short(name: str) -> str:
    ours = parse_label(name)
    return ours[0] if ours else name
