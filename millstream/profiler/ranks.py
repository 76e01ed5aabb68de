"""Several ranks side by side: the cost of collectives, the time spent waiting for the last rank to come, and
which rank that is.

A collective ends for all at once, so the shortest of its lengths is the transfer and the rest is waiting; the
rank that waited least came last. Lengths need no common clock. Only where moments of different ranks are
compared (a mesh that waits for the front to decode) must the clocks agree, which they do on one machine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from millstream.profiler.anatomy import Anatomy, extent, take_apart
from millstream.profiler.intervals import EMPTY, Floats
from millstream.profiler.kinds import Kind
from millstream.profiler.trace import Trace

CUT_OFF = 2
"""Number of collectives at the end that one rank's trace may hold and another's not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Skew:
    """Differences in arrival at the collectives that all ranks of a group saw."""

    matched: int
    unmatched: int
    """Seen by some ranks more often than by others."""
    waited_ms: dict[int, float]
    """Time spent waiting for others to come, by rank."""
    last: dict[int, float]
    """Share of collectives to which a rank came last, by rank."""

    @property
    def straggler(self) -> int | None:
        """Rank that comes last most often, if that is no accident: in at least 60% of the collectives, and in
        twice its fair share or 90% of them."""
        if not self.last or len(self.last) < 2 or self.matched < 3:
            return None
        rank = max(self.last, key=lambda rank: self.last[rank])
        fair = 1 / len(self.last)
        return rank if self.last[rank] >= max(0.6, min(2 * fair, 0.9)) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedGroup:
    """All ranks of a run, taken apart over the same stretch of time where their clocks agree."""

    ranks: tuple[Anatomy, ...]
    skew: Skew
    same_clock: bool

    @property
    def front(self) -> Anatomy | None:
        """The rank that decodes and is in no collective, where there are others."""
        if len(self.ranks) < 2:
            return None
        found = [rank for rank in self.ranks if rank.decoding.total and not len(rank.collectives)]
        return max(found, key=lambda rank: rank.decoding.total) if found else None

    @property
    def mesh(self) -> tuple[Anatomy, ...]:
        return tuple(rank for rank in self.ranks if rank is not self.front)


def gather(traces: Sequence[Trace]) -> TracedGroup:
    assert traces, "a group has ranks"
    spans = [extent(trace) for trace in traces]
    begin = max(span[0] for span in spans)
    end = min(span[1] for span in spans)
    shortest = min(last - first for first, last in spans)
    same_clock = len(traces) == 1 or end - begin > 0.5 * shortest
    cut = same_clock and len(traces) > 1
    ranks = tuple(take_apart(trace, begin=begin, end=end) if cut else take_apart(trace) for trace in traces)
    return TracedGroup(
        ranks=tuple(sorted(ranks, key=lambda rank: rank.rank)),
        skew=measure_skew(ranks),
        same_clock=same_clock,
    )


def measure_skew(ranks: Sequence[Anatomy]) -> Skew:
    by_name: dict[str, dict[int, Floats]] = defaultdict(dict)
    for rank in ranks:
        for name, lengths in _collectives(rank).items():
            by_name[name][rank.rank] = lengths
    waited: dict[int, float] = defaultdict(float)
    last: Counter[int] = Counter()
    matched = unmatched = 0
    for seen in by_name.values():
        counts = [len(lengths) for lengths in seen.values()]
        if max(counts) - min(counts) > CUT_OFF:
            unmatched += max(counts) - min(counts)
        elif len(seen) > 1:
            table = np.stack([lengths[: min(counts)] for lengths in seen.values()])
            order = list(seen)
            for number, waits in zip(order, (table - table.min(axis=0)).sum(axis=1), strict=True):
                waited[number] += float(waits)
            last.update(order[index] for index in table.argmin(axis=0))
            matched += table.shape[1]
    numbers = sorted(waited)
    return Skew(
        matched=matched,
        unmatched=unmatched,
        waited_ms={number: waited[number] / 1e3 for number in numbers},
        last={number: last[number] / matched for number in numbers},
    )


def _collectives(rank: Anatomy) -> dict[str, Floats]:
    """Return lengths by name, in order of time. Collectives that ended before the common stretch began are
    left out: on all ranks they are earlier ones."""
    events = rank.trace.events
    chosen = events.of(Kind.COLLECTIVE)
    chosen = chosen[events.ends(chosen) > rank.begin]
    chosen = chosen[np.argsort(events.ends(chosen), kind="stable")]
    names = events.name[chosen]
    return {rank.trace.names[index]: events.length[chosen][names == index] for index in np.unique(names)}


def quickest_exchanges(ranks: Sequence[Anatomy]) -> dict[float, float]:
    """Return the shortest exchange of each message size, over all ranks: its time without waiting.
    Microseconds."""
    quickest: dict[float, float] = {}
    for rank in ranks:
        for size, lengths in _exchanges(rank).items():
            quickest[size] = min(quickest.get(size, np.inf), float(lengths.min()))
    return quickest


def transfer_share(rank: Anatomy, quickest: dict[float, float]) -> float:
    """Return the share of the wall that this rank's exchanges would take without waiting."""
    return sum(len(lengths) * quickest[size] for size, lengths in _exchanges(rank).items()) / rank.wall


def _exchanges(rank: Anatomy) -> dict[float, Floats]:
    """Return lengths by size of message."""
    events = rank.trace.events
    chosen = events.of(Kind.EXCHANGE)
    chosen = chosen[(events.ends(chosen) > rank.begin) & (events.begin[chosen] < rank.end)]
    _, sizes = events.work.at(chosen)
    return {float(size): events.length[chosen][sizes == size] for size in np.unique(sizes)}


def waits_for_decode(rank: Anatomy, front: Anatomy) -> float:
    """Return the share of the wall in which this rank waits, in an exchange or idle, while the front
    decodes."""
    waiting = rank.idle | (rank.exchanges - rank.work if len(rank.exchanges) else EMPTY)
    return (waiting & front.decoding).total / rank.wall
