"""Facts for the rules to judge by, measured from traces that were taken apart."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from millstream.profiler.anatomy import Anatomy
from millstream.profiler.kinds import DEVICE_KINDS, PREPARES, Kind
from millstream.profiler.ranks import TracedGroup, quickest_exchanges, transfer_share, waits_for_decode
from millstream.profiler.reach.roofline import Roofline
from millstream.profiler.rules.facts import (
    SHORT_US,
    HostFacts,
    KernelClass,
    RankFacts,
    RecordFacts,
    RunFacts,
    TalkFacts,
    WorkFacts,
)

LONG_US = 5000.0
"""Length from which on a gap is too long for any launch to fill."""
_CAPTURING = re.compile(r"^(cuda|hip)(StreamBeginCapture|StreamEndCapture|GraphInstantiate)")


def measure(group: TracedGroup, roofs: Sequence[Roofline]) -> RunFacts:
    """Measure a run. `roofs` are those of the mesh's ranks, in order."""
    skew = group.skew
    front = group.front
    work = {rank.rank: work_facts(roof) for rank, roof in zip(group.mesh, roofs, strict=True)}
    quickest = quickest_exchanges(group.ranks)
    return RunFacts(
        ranks=tuple(
            RankFacts(
                rank=rank.rank,
                wall_ms=rank.wall / 1e3,
                has_device=rank.has_device,
                shares=rank.shares,
                kernels=len(rank.workers),
                short=_short_share(rank),
                record=record_facts(rank),
                host=host_facts(rank),
                talk=_talk_facts(rank, group, quickest),
                work=work.get(rank.rank),
            )
            for rank in group.ranks
        ),
        front=None if front is None else front.rank,
        same_clock=group.same_clock,
        matched=skew.matched,
        unmatched=skew.unmatched,
        straggler=skew.straggler,
        comes_last=0.0 if skew.straggler is None else skew.last[skew.straggler],
    )


def record_facts(rank: Anatomy) -> RecordFacts:
    events = rank.trace.events
    trace = rank.trace
    on_device, graphs, calls = (events.of(*kinds) for kinds in (DEVICE_KINDS, (Kind.GRAPH,), (Kind.LAUNCH,)))
    calls = calls[events.link[calls] >= 0]
    slower = trace.ours.get("slower_than_unprofiled")
    return RecordFacts(
        events=len(events),
        broken=trace.broken,
        left_out=trace.left_out,
        unclosed=trace.unclosed,
        foreign=trace.foreign,
        calls_device=bool(trace.device_name) or bool(len(events.of(Kind.LAUNCH, Kind.GRAPH, Kind.SYNC))),
        launches=len(calls),
        launches_lost=1 - float(np.isin(events.link[calls], events.link[on_device]).mean())
        if len(calls)
        else 0.0,
        graphs=len(graphs),
        kernels_per_graph=float(np.isin(events.link[on_device], events.link[graphs]).sum())
        / max(1, len(graphs)),
        captures=any(_CAPTURING.search(name) for name in trace.names),
        doubled=_overlap_on_streams(rank),
        early=_before_their_launch(rank),
        profiler=rank.host(Kind.OVERHEAD).total / rank.wall,
        slower=float(slower) if isinstance(slower, int | float) else 1.0,
    )


def host_facts(rank: Anatomy) -> HostFacts:
    events = rank.trace.events
    memory = rank.trace.memory
    idle = rank.idle
    allocated, reserved = (int(values.max(initial=0)) for values in (memory.allocated, memory.reserved))
    retries = rank.trace.ours.get("allocation_retries")
    gaps = idle.end - idle.begin
    calls = events.of(Kind.LAUNCH, Kind.GRAPH) if rank.has_device else rank.workers
    loaded_by, prepares = _input(rank)
    return HostFacts(
        waiting=rank.waiting.total / rank.wall,
        blocked=rank.blocked.total / rank.wall,
        waits=len(events.of(Kind.SYNC)),
        allocations=len(events.of(Kind.ALLOCATION)),
        calls_per_ms=1e3 * len(calls) / rank.wall,
        idle=idle.total / rank.wall,
        idle_long=float(gaps[gaps >= LONG_US].sum()) / rank.wall,
        input_from=loaded_by,
        prepares=prepares,
        reserves=reserved / allocated if allocated else 0.0,
        retries=retries if isinstance(retries, int) else 0,
    )


def work_facts(roof: Roofline) -> WorkFacts:
    return WorkFacts(
        knows_device=roof.device is not None,
        work_ms=roof.work_ms,
        shaped_ms=roof.shaped_ms,
        counted_ms=roof.counted_ms,
        graphed_ms=roof.graphed_ms,
        compute_ms=roof.compute_ms,
        memory_ms=roof.memory_ms,
        floor_ms=roof.floor_ms,
        near_peak={phase.name: phase.reached for phase in roof.phases if phase.is_compute},
        near_memory={phase.name: phase.reached for phase in roof.phases if not phase.is_compute},
        classes={
            f.family: KernelClass(kernels=f.kernels, ms=f.ms, tflops=f.tflops, gb_s=f.gb_s)
            for f in roof.families
        },
    )


def _talk_facts(rank: Anatomy, group: TracedGroup, quickest: dict[float, float]) -> TalkFacts:
    front = group.front if group.same_clock else None
    return TalkFacts(
        total=(rank.collectives | rank.exchanges).total / rank.wall,
        waited=1e3 * group.skew.waited_ms.get(rank.rank, 0.0) / rank.wall,
        sent=transfer_share(rank, quickest),
        decoding=rank.decoding.total / rank.wall,
        working=(rank.decoding & rank.busy).total / rank.wall,
        stands=(rank.idle.total + (rank.exchanges - rank.work).total) / rank.wall,
        stands_for_front=0.0 if front is None else waits_for_decode(rank, front),
    )


def _input(rank: Anatomy) -> tuple[str, str]:
    """Return where input comes from (`workers`: this process waits for them; `process` or `stacks`: this
    process prepares it; empty if unknown), and the frame that prepares it, if stacks show one."""
    names = {rank.trace.names[index] for index in rank.trace.events.name[rank.trace.events.of(Kind.DATA)]}
    if any("MultiProcessing" in name for name in names):
        return "workers", ""
    if any("SingleProcess" in name for name in names):
        return "process", ""
    prepares = sorted(name for name in names if PREPARES.search(name))
    return ("stacks", prepares[0][:100]) if prepares else ("", "")


def _short_share(rank: Anatomy) -> float:
    lengths = rank.trace.events.length[rank.workers]
    return float((lengths < SHORT_US).mean()) if len(lengths) else 0.0


def _overlap_on_streams(rank: Anatomy) -> float:
    events = rank.trace.events
    kernels = events.of(Kind.KERNEL)
    if not len(kernels):
        return 0.0
    kernels = kernels[np.lexsort((events.begin[kernels], events.track[kernels]))]
    same = events.track[kernels][1:] == events.track[kernels][:-1]
    over = np.clip(events.ends(kernels)[:-1] - events.begin[kernels][1:], 0.0, None)
    return float(over[same].sum()) / max(1e-9, float(events.length[kernels].sum()))


def _before_their_launch(rank: Anatomy) -> float:
    events = rank.trace.events
    kernels = events.of(*DEVICE_KINDS)
    calls = events.of(Kind.LAUNCH, Kind.GRAPH)
    calls = calls[np.argsort(events.link[calls], kind="stable")]
    if not len(calls) or not len(kernels):
        return 0.0
    at = np.minimum(np.searchsorted(events.link[calls], events.link[kernels]), len(calls) - 1)
    tied = (events.link[calls][at] == events.link[kernels]) & (events.link[kernels] >= 0)
    early = events.begin[kernels] < events.begin[calls][at] - 2.0
    return float((early & tied).sum()) / max(1, int(tied.sum()))
