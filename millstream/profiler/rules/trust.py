"""Trust in a trace: one that cannot be believed gets no judgement, only advice to record another."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.profiler.rules.facts import RankFacts, RunFacts

FEW_KERNELS = 2.0
"""Kernels under one launch of a graph; a graph holds more, or it would not be one."""
FEW_LAUNCHES = 20
"""Number of launches; from fewer nothing follows, where the device is in the trace."""
LOST = 0.3
BROKEN = 0.01
OVERLAP = 0.02
EARLY = 0.05
OWN_TIME = 0.3
"""Shares from which on the rest of a trace means nothing."""
DOUBTFUL = 0.02
SLOWER = 1.25


def reasons_for_distrust(rank: RankFacts) -> Iterator[str]:
    """Yield reasons not to trust the trace; each alone is enough to judge nothing more."""
    record = rank.record
    if record.graphs and record.kernels_per_graph < FEW_KERNELS:
        under = f"{record.graphs} graph launches with {record.kernels_per_graph:.1f} kernels under each"
        yield f"{under}: the device's work is not in the trace"
    if record.launches >= (FEW_LAUNCHES if rank.has_device else 1) and record.launches_lost > LOST:
        why = "graphs were being captured" if record.captures else "events were lost"
        yield (
            f"{100 * record.launches_lost:.0f}% of {record.launches} launches "
            f"have nothing on the device: {why}"
        )
    if record.calls_device and not rank.has_device and not rank.kernels and not rank.talk.total:
        yield "a device is called, and neither its work nor any operator is in the trace"
    if record.broken > BROKEN * (record.events + record.broken):
        yield f"{record.broken} of {record.events + record.broken} events have no time or a negative length"
    if record.doubled > OVERLAP:
        yield (
            f"kernels of one stream overlap for {100 * record.doubled:.0f}% of their time: its clock is wrong"
        )
    if record.early > EARLY:
        yield (
            f"{100 * record.early:.0f}% of kernels start before they are launched: the clocks of host and "
            "device differ"
        )
    if rank.shares["lost"] > LOST:
        yield f"{_waits_for_nothing(rank)}: the trace is cropped, or events were lost"
    if record.profiler > OWN_TIME:
        yield f"the profiler itself took {100 * record.profiler:.0f}% of the time; capture less"


def doubts(run: RunFacts) -> Iterator[str]:
    """Yield reasons for lower confidence."""
    for rank in run.ranks:
        yield from (f"rank {rank.rank}: {doubt}" for doubt in _doubts_of(rank))
    if not run.same_clock:
        yield "the ranks' clocks do not agree: moments of different ranks are not compared"
    if run.unmatched:
        yield f"{run.unmatched} collectives were seen by some ranks and not by others"


def _doubts_of(rank: RankFacts) -> Iterator[str]:
    record = rank.record
    if record.left_out:
        yield f"{record.left_out} events past the first {record.events} were not read"
    if record.unclosed:
        yield "its list of events ends without a bracket; what followed is not known"
    yield from _unusual(rank)
    if rank.shares["lost"] > DOUBTFUL:
        yield f"{_waits_for_nothing(rank)}: the trace may be cropped"
    if record.slower > SLOWER:
        yield f"chunks took {record.slower:.2f} times as long under the profiler as without"


def _unusual(rank: RankFacts) -> Iterator[str]:
    """Yield reasons why the traced stretch may not represent the run."""
    record = rank.record
    if record.foreign:
        yield (
            f"events of {', '.join(record.foreign)} are not known by name: what is work and what is "
            "waiting may be mistaken"
        )
    if not rank.has_device and record.calls_device:
        yield (
            "a device is called, and nothing of it is in the trace: operators of the host stand for its work"
        )
    if rank.shares["warm-up"] > DOUBTFUL:
        first = f"{100 * rank.shares['warm-up']:.0f}% of the wall is first calls"
        yield f"{first}, which make the context or load kernels: capture later"
    if record.captures:
        yield "graphs are captured in the trace, which is not what a run does later: capture after that"


def _waits_for_nothing(rank: RankFacts) -> str:
    return f"{100 * rank.shares['lost']:.0f}% of the wall the device idles and is waited for"
