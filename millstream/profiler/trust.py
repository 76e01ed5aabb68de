"""Whether a trace can be believed at all. Of one that lies nothing is said but how to record another."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from millstream.profiler.anatomy import Anatomy
from millstream.profiler.kinds import DEVICE_KINDS, Kind
from millstream.profiler.ranks import TracedGroup

FEW_KERNELS = 2.0
"""Under one launch of a graph: a graph holds more, or it would not be one."""
LOST = 0.3
BROKEN = 0.01
OVERLAP = 0.02
EARLY = 0.05
OWN_TIME = 0.3
"""Shares from which on the rest of a trace means nothing."""
DOUBTFUL = 0.02
CAPTURING = re.compile(r"^(cuda|hip)(StreamBeginCapture|StreamEndCapture|GraphInstantiate)")


def reasons_for_distrust(rank: Anatomy) -> Iterator[str]:
    """Each enough to say nothing more."""
    events, trace = rank.trace.events, rank.trace
    graphs = events.of(Kind.GRAPH)
    if len(graphs):
        under = float(np.isin(events.link[events.of(*DEVICE_KINDS)], events.link[graphs]).sum()) / len(graphs)
        if under < FEW_KERNELS:
            yield f"{len(graphs)} graph launches with {under:.1f} kernels under each: the device's work is not in the trace"
    calls = events.of(Kind.LAUNCH)
    calls = calls[events.link[calls] >= 0]
    if len(calls) >= 20:
        lost = 1 - float(np.isin(events.link[calls], events.link[events.of(*DEVICE_KINDS)]).mean())
        if lost > LOST:
            why = "graphs were being captured" if _captures(rank) else "events were lost"
            yield f"{100 * lost:.0f}% of {len(calls)} launches have nothing on the device: {why}"
    if trace.broken > BROKEN * (len(events) + trace.broken):
        yield f"{trace.broken} of {len(events) + trace.broken} events have no time or a negative length"
    doubled = _overlap_on_streams(rank)
    if doubled > OVERLAP:
        yield f"kernels of one stream overlap for {100 * doubled:.0f}% of their time: its clock is wrong"
    early = _before_their_launch(rank)
    if early > EARLY:
        yield f"{100 * early:.0f}% of kernels start before they are launched: the clocks of host and device differ"
    if rank.shares["lost"] > LOST:
        yield f"{_waits_for_nothing(rank)}: the trace is cropped, or events were lost"
    own = rank.host(Kind.OVERHEAD).total / rank.wall
    if own > OWN_TIME:
        yield f"the profiler itself took {100 * own:.0f}% of the time; capture less"


def doubts(group: TracedGroup) -> Iterator[str]:
    """Reasons to believe a little less."""
    for rank in group.ranks:
        trace = rank.trace
        if trace.left_out:
            yield f"rank {rank.rank}: {trace.left_out} events past the first {len(trace.events)} were not read"
        if trace.unclosed:
            yield f"rank {rank.rank}: its list of events ends without a bracket; what followed is not known"
        yield from (f"rank {rank.rank}: {doubt}" for doubt in _unusual(rank))
        if rank.shares["lost"] > DOUBTFUL:
            yield f"rank {rank.rank}: {_waits_for_nothing(rank)}: the trace may be cropped"
        slower = trace.ours.get("slower_than_unprofiled")
        if isinstance(slower, int | float) and slower > 1.25:
            yield f"rank {rank.rank}: chunks took {slower:.2f} times as long under the profiler as without"
    if not group.same_clock:
        yield "the ranks' clocks do not agree: moments of different ranks are not compared"
    if group.skew.unmatched:
        yield f"{group.skew.unmatched} collectives were seen by some ranks and not by others"


def _unusual(rank: Anatomy) -> Iterator[str]:
    """What makes a stretch of time speak for nothing but itself."""
    events, trace = rank.trace.events, rank.trace
    if trace.foreign:
        yield f"events of {', '.join(trace.foreign)} are not known by name: what is work and what is waiting may be mistaken"
    if not rank.has_device and (trace.device_name or len(events.of(Kind.LAUNCH, Kind.GRAPH, Kind.SYNC))):
        yield "a device is called, and nothing of it is in the trace: operators of the host stand for its work"
    if rank.shares["warm-up"] > DOUBTFUL:
        yield f"{100 * rank.shares['warm-up']:.0f}% of the wall is first launches, which load their kernels: capture later"
    if _captures(rank):
        yield "graphs are captured in the trace, which is not what a run does later: capture after that"


def _captures(rank: Anatomy) -> bool:
    return any(CAPTURING.search(name) for name in rank.trace.names)


def _waits_for_nothing(rank: Anatomy) -> str:
    return f"{100 * rank.shares['lost']:.0f}% of the wall the device idles and is waited for"


def _overlap_on_streams(rank: Anatomy) -> float:
    events = rank.trace.events
    kernels = events.of(Kind.KERNEL)
    if not len(kernels):
        return 0.0
    kernels = kernels[np.lexsort((events.begin[kernels], events.track[kernels]))]
    same = events.track[kernels][1:] == events.track[kernels][:-1]
    over = np.clip(events.end[kernels][:-1] - events.begin[kernels][1:], 0.0, None)
    return float(over[same].sum()) / max(1e-9, float(events.length[kernels].sum()))


def _before_their_launch(rank: Anatomy) -> float:
    events = rank.trace.events
    kernels, calls = events.of(*DEVICE_KINDS), events.of(Kind.LAUNCH, Kind.GRAPH)
    calls = calls[np.argsort(events.link[calls], kind="stable")]
    if not len(calls) or not len(kernels):
        return 0.0
    at = np.minimum(np.searchsorted(events.link[calls], events.link[kernels]), len(calls) - 1)
    tied = (events.link[calls][at] == events.link[kernels]) & (events.link[kernels] >= 0)
    early = events.begin[kernels] < events.begin[calls][at] - 2.0
    return float((early & tied).sum()) / max(1, int(tied.sum()))
