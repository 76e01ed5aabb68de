"""One rank's time taken apart, so that the parts add up to the wall: work, talk that work does not cover,
copies, and every idle gap of the device with what the host was doing meanwhile.

By interval arithmetic, never by sums. Where there is no accelerator, operators that work stand for kernels
and the processor for the device. Knows one rank; `ranks.py` sets several side by side. Times are
microseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from millstream.core.errors import TraceError
from millstream.profiler.intervals import BLOCK, EMPTY, Floats, Intervals, union
from millstream.profiler.kinds import DEVICE_KINDS, VIEWS, WORKING, Kind, is_decode
from millstream.profiler.trace import Ids, Trace

PROMPT_US = 50.0
"""A host that does nothing but launch comes back for the next launch within this."""
STARTED_US = 20.0
"""A kernel that starts this soon after its launch found the queue empty."""
LATE_US = 100.0
"""A host that waits this long for an idle device waits for something that the trace does not show."""
RUNS_AHEAD = 0.75
"""A host that works for less of the time than this could run ahead of the device."""
ELSEWHERE_US = 1000.0
"""A host that launches nothing for this long after a wait does other work, and is not held up by the wait."""
SLOW_LAUNCH_US = 1000.0
"""A launch that takes this long loads its kernel first."""
SLOW_START_US = 10_000.0
"""A call for memory that takes this long before the device has done anything creates its context first."""
Index = NDArray[np.intp]

# What the host does in a gap, by the first of these that it is in; what is left is its own.
HOST_CAUSES = {
    "allocator": Kind.ALLOCATION,
    "data": Kind.DATA,
    "encode": Kind.ENCODE,
    "compile": Kind.COMPILE,
    "profiler": Kind.OVERHEAD,
    "sync": Kind.SYNC,
}


@dataclass(frozen=True, eq=False)
class Anatomy:
    trace: Trace
    begin: float
    end: float

    @property
    def wall(self) -> float:
        return self.end - self.begin

    @property
    def rank(self) -> int:
        return self.trace.rank

    @cached_property
    def has_device(self) -> bool:
        return bool(len(self.trace.events.of(Kind.KERNEL, Kind.COPY)))

    @cached_property
    def workers(self) -> Index:
        """Kernels, or what stands for them."""
        events = self.trace.events
        chosen = events.of(Kind.KERNEL) if self.has_device else _working_ops(self.trace)
        if not len(chosen) and not self.has_device:
            chosen = events.of(Kind.NOTE, Kind.DECODE)  # spans alone: what has a name is work
        inside: Index = chosen[(events.ends(chosen) > self.begin) & (events.begin[chosen] < self.end)]
        return inside

    @cached_property
    def work(self) -> Intervals:
        return self._union(self.workers)

    @cached_property
    def collectives(self) -> Intervals:
        return self._union(self.trace.events.of(Kind.COLLECTIVE))

    @cached_property
    def exchanges(self) -> Intervals:
        return self._union(self.trace.events.of(Kind.EXCHANGE))

    @cached_property
    def copies(self) -> Intervals:
        return self._union(self.trace.events.of(Kind.COPY))

    @cached_property
    def busy(self) -> Intervals:
        return self.work | self.collectives | self.exchanges | self.copies

    @cached_property
    def idle(self) -> Intervals:
        return self.busy.gaps(self.begin, self.end)

    @cached_property
    def decoding(self) -> Intervals:
        """Time in which latents are decoded to frames: the device's notes if there are any, else the
        host's."""
        events = self.trace.events
        names = self.trace.names
        seen = events.of(Kind.DEVICE_NOTE)
        seen = seen[np.fromiter((is_decode(names[i]) for i in events.name[seen]), bool, len(seen))]
        return self._union(seen if len(seen) else events.of(Kind.DECODE))

    @cached_property
    def main_track(self) -> int:
        """The thread that feeds the device."""
        events = self.trace.events
        feeding = events.of(Kind.LAUNCH, Kind.GRAPH)
        chosen = feeding if len(feeding) else events.of(Kind.OP, Kind.NOTE, Kind.DECODE)
        if not len(chosen):
            return -1
        weight = None if len(feeding) else events.length[chosen]
        return int(np.bincount(events.track[chosen], weights=weight).argmax())

    @cached_property
    def waiting(self) -> Intervals:
        """Intervals in which the host stands still until the device has caught up."""
        return self.host(Kind.SYNC)

    @cached_property
    def blocked(self) -> Intervals:
        """Waiting time, with the operators that do little else: without its wait, all of an `.item()` would
        be gone."""
        events = self.trace.events
        ops = events.of(Kind.OP)
        if not len(ops) or not len(self.waiting):
            return self.waiting
        ops = ops[events.track[ops] == self.main_track]
        found = [self._waiting_ops(ops[at : at + BLOCK]) for at in range(0, max(1, len(ops)), BLOCK)]
        return self.waiting | self._union(np.concatenate(found))

    def _waiting_ops(self, ops: Index) -> Index:
        events = self.trace.events
        waited = self.waiting.within(events.begin[ops], events.ends(ops))
        waiting: Index = ops[(waited > 0) & (events.length[ops] - waited <= PROMPT_US)]
        return waiting

    @property
    def could_run_ahead(self) -> bool:
        """True if the host would have time to run ahead of the device if nothing made it wait."""
        return 1 - self.blocked.total / self.wall < RUNS_AHEAD

    @cached_property
    def shares(self) -> dict[str, float]:
        """Shares of the wall, by cause; they add up to 1."""
        talk = self.collectives | self.exchanges
        exposed = talk - self.work
        collective = self.collectives - self.work
        spent = {
            "work": self.work.total,
            "collective": collective.total,
            "exchange": (exposed - collective).total,
            "copy": (self.copies - (self.work | talk)).total,
            **self._gap_causes(),
        }
        return {cause: time / self.wall for cause, time in spent.items()}

    def _gap_causes(self) -> dict[str, float]:
        calls = self._calls()
        host = {cause: self.host(kind) for cause, kind in HOST_CAUSES.items()}
        spent: dict[str, float] = defaultdict(float)
        for gaps in self.idle.blocks():
            for cause, time in self._causes(gaps, self._ending_calls(gaps, calls), host).items():
                spent[cause] += time
        return spent

    def _causes(self, gaps: Intervals, call: _EndingCalls, host: Mapping[str, Intervals]) -> dict[str, float]:
        """Each gap is the host's until the call that ends it has been made; after that, the device's or its
        queue's."""
        begin = gaps.begin
        end = gaps.end
        handed = call.handed_over(begin, end)
        queued = end - handed
        ready = np.clip(self._ready, begin, handed)
        starting = ready - begin
        begin = ready
        lost = self._unseen(handed, end)
        unknown = np.where(call.missing, end - begin, 0.0)
        left = np.where(call.missing, 0.0, handed - begin)
        spent = {"queue": float((queued - lost).sum()), "unknown": float(unknown.sum())}
        stuck = np.minimum(_beyond(self._synchronising.within(begin, handed), LATE_US), left)
        left = left - stuck
        spent["lost"] = float((lost + stuck).sum())
        for cause, doing in host.items():
            inside = np.minimum(doing.within(begin, handed), left)
            spent[cause] = float(inside.sum())
            left = left - inside
        calling = np.nan_to_num(
            np.minimum(_beyond(handed - np.clip(call.begin, begin, handed), PROMPT_US), left)
        )
        left = left - calling
        loading = _beyond(calling, SLOW_LAUNCH_US)
        spent["warm-up"] = float((starting + loading).sum())
        prompt = call.thought <= PROMPT_US
        after_wait = self.waiting.within(begin - STARTED_US, handed) > 0
        refills = prompt | (self.could_run_ahead & (call.thought <= ELSEWHERE_US))
        drained = after_wait & refills  # a host that goes on at once finds the queue empty because it waited
        spent["sync"] += float(left[drained].sum())
        spent["launch"] = float(left[~drained & prompt].sum() + (calling - loading).sum())
        spent["host"] = float(left[~drained & ~prompt].sum())
        return spent

    def _unseen(self, handed: Floats, end: Floats) -> Floats:
        """Return the queued time of each gap that the trace does not explain: work is queued and not begun
        while the host waits for it, or before the device appears in the trace."""
        if not self.has_device:
            return np.zeros(len(end))
        lost = _beyond(self.waiting.within(handed, end), LATE_US)
        before_all = end <= self.busy.begin[0]
        unseen: Floats = np.where(before_all, _beyond(end - handed, LATE_US), lost)
        return unseen

    @cached_property
    def _ready(self) -> float:
        """Time from which on the device can be used: the first call for memory of a process creates its
        context, and takes long."""
        events = self.trace.events
        calls = events.of(Kind.ALLOCATION)
        first = self.busy.begin[0] if len(self.busy) else self.begin
        slow = calls[(events.length[calls] > SLOW_START_US) & (events.ends(calls) <= first)]
        return float(events.ends(slow).max(initial=self.begin))

    @cached_property
    def _synchronising(self) -> Intervals:
        """Waits that do nothing else: a copy that blocks prepares memory as well."""
        events = self.trace.events
        waits = events.of(Kind.SYNC)
        waits = waits[events.track[waits] == self.main_track]
        copying = np.isin(events.link[waits], events.link[events.of(Kind.COPY)]) & (events.link[waits] >= 0)
        return self._union(waits[~copying])

    def _calls(self) -> _Calls:
        """Return all calls that can end a gap."""
        events = self.trace.events
        on_device = events.of(*DEVICE_KINDS)
        on_device = on_device[np.argsort(events.begin[on_device], kind="stable")]
        calls = events.of(Kind.LAUNCH, Kind.GRAPH, Kind.SYNC)  # copies that block are launches too
        calls = calls[np.argsort(events.begin[calls], kind="stable")]
        by_link = np.argsort(events.link[calls], kind="stable")
        return _Calls(
            begin=events.begin[calls],
            end=events.ends(calls),
            links=events.link[calls[by_link]],
            by_link=by_link,
            followed_at=events.begin[on_device],
            followed_by=events.link[on_device],
        )

    def _ending_calls(self, gaps: Intervals, calls: _Calls) -> _EndingCalls:
        """Return the call that ends each gap."""
        if not self.has_device:
            never = np.full(len(gaps), np.inf)  # nothing is launched: what is between operators is the host's
            return _EndingCalls(gaps.end.copy(), gaps.end.copy(), never, np.zeros(len(gaps), bool))
        last = gaps.end >= self.end  # nothing follows: the host just launches nothing
        if not len(calls.begin):
            nothing = np.full(len(gaps), np.nan)
            return _EndingCalls(nothing, nothing, np.full(len(gaps), np.inf), ~last)
        made = calls.launching(gaps.end)
        found = (made >= 0) & ~last
        begin = np.where(found, calls.begin[made], np.nan)
        before = np.searchsorted(calls.begin, begin) - 1
        previous_end = np.where(before >= 0, calls.end[np.maximum(before, 0)], self.begin)
        previous_end = np.maximum(previous_end, _last_before(self.waiting.end, begin, self.begin))
        thought = np.where(found, begin - previous_end, np.inf)
        return _EndingCalls(begin, np.where(found, calls.end[made], np.nan), thought, ~found & ~last)

    def host(self, kind: Kind) -> Intervals:
        """Return when the feeding thread is in events of one kind (for the profiler's overhead: any
        thread)."""
        events = self.trace.events
        chosen = events.of(kind)
        if kind is not Kind.OVERHEAD:
            chosen = chosen[events.track[chosen] == self.main_track]
        return self._union(chosen)

    def _union(self, chosen: Index) -> Intervals:
        if not len(chosen):
            return EMPTY
        events = self.trace.events
        return union(events.begin[chosen], events.ends(chosen)).clipped(self.begin, self.end)


def take_apart(trace: Trace, *, begin: float | None = None, end: float | None = None) -> Anatomy:
    """Take apart the whole trace, or a stretch of it."""
    first, last = extent(trace)
    return Anatomy(trace, first if begin is None else begin, last if end is None else end)


def extent(trace: Trace) -> tuple[float, float]:
    """Return the begin of the first event and the end of the last; the profiler's own events are not
    counted."""
    events = trace.events
    counted = events.are(*(set(Kind) - {Kind.OTHER, Kind.OVERHEAD, Kind.PYTHON}))
    counted = counted if counted.any() else np.ones(len(events), bool)
    first = float(events.begin.min(where=counted, initial=np.inf))
    last = float((events.begin + events.length).max(where=counted, initial=-np.inf))
    if last <= first:
        raise TraceError(f"{trace.path} lasts no time at all; capture at least one chunk")
    return first, last


@dataclass(frozen=True, eq=False, kw_only=True)
class _Calls:
    begin: Floats
    end: Floats
    """Begins and ends of the host's calls, in order of time."""
    links: Ids
    by_link: Index
    """Their links in order, and which call has each."""
    followed_at: Floats
    followed_by: Ids
    """Begins of what runs on the device, in order, and their links."""

    def launching(self, moments: Floats) -> Index:
        """Return the index of the call that launched what follows each moment; -1 if it is not in the
        trace."""
        first = np.minimum(np.searchsorted(self.followed_at, moments), len(self.followed_at) - 1)
        wanted = self.followed_by[first]
        at = np.minimum(np.searchsorted(self.links, wanted), len(self.links) - 1)
        found: Index = np.where((self.links[at] == wanted) & (wanted >= 0), self.by_link[at], -1)
        return found


@dataclass(frozen=True, eq=False)
class _EndingCalls:
    """The call that ends each gap; NaN where no call is known."""

    begin: Floats
    end: Floats
    thought: Floats
    """Time between the host's previous launch or wait and the call."""
    missing: NDArray[np.bool_]
    """Gaps that are followed by work whose launch is not in the trace."""

    def handed_over(self, begin: Floats, end: Floats) -> Floats:
        """Return the moment in each gap from which on the device has what it needs. A launch takes a moment
        to arrive."""
        done = np.clip(np.where(np.isnan(self.end), end, self.end), begin, end)
        found_empty = end - self.begin < STARTED_US
        arrives = (self.begin >= begin) & (end - done < STARTED_US)
        moment: Floats = np.where(found_empty | arrives, end, done)
        return moment


def _beyond(lengths: Floats, allowed: float) -> Floats:
    """Return the lengths that exceed what is allowed, and 0 for the others."""
    longer: Floats = np.where(lengths > allowed, lengths, 0.0)
    return longer


def _last_before(moments: Floats, limits: Floats, otherwise: float) -> Floats:
    """Return the last of the sorted moments up to each limit."""
    known = np.concatenate([[otherwise], moments])
    found: Floats = known[np.searchsorted(moments, limits, side="right")]
    return found


def _working_ops(trace: Trace) -> Index:
    """Return the outermost operators that move values themselves: what they call is part of their work."""
    events = trace.events
    works = np.fromiter(
        (bool(WORKING.search(name)) and not VIEWS.match(name) for name in trace.names), bool, len(trace.names)
    )
    ops = events.of(Kind.OP)
    ops = ops[works[events.name[ops]]]
    ops = ops[np.lexsort((-events.length[ops], events.begin[ops], events.track[ops]))]
    outermost = np.zeros(len(ops), bool)
    for track in np.unique(events.track[ops]):
        own = np.flatnonzero(events.track[ops] == track)
        reach = np.maximum.accumulate(events.ends(ops[own]))
        outermost[own] = np.concatenate([[True], events.begin[ops[own]][1:] >= reach[:-1] - 1e-3])
    chosen: Index = ops[outermost]
    return chosen
