"""Everything that can be read from the traces of one run, in one place: for the terminal, for a file, for a
report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millstream.core.errors import TraceError
from millstream.planner.bubbles import bubble
from millstream.planner.hardware import Device, named_by_driver
from millstream.profiler.compilation import Compilation, SourcePlace, read_compilation
from millstream.profiler.host_gaps import HostGap, host_gaps
from millstream.profiler.measure import measure
from millstream.profiler.memory import MemoryUse, memory_use
from millstream.profiler.phases import PhaseTimes, merge_phases, read_phases
from millstream.profiler.ranks import TracedGroup, gather
from millstream.profiler.reach.roofline import Roofline, roofline
from millstream.profiler.rules.diagnosis import Diagnosis, diagnose
from millstream.profiler.rules.facts import RunFacts
from millstream.profiler.trace import read_trace

MAX_RANKS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    group: TracedGroup
    roofs: tuple[Roofline, ...]
    """Rooflines of the mesh's ranks, in order."""
    facts: RunFacts
    """Facts that the diagnosis follows from."""
    diagnosis: Diagnosis
    phases: PhaseTimes
    """Periods of the rank that has most of them; each phase of the first rank that has it."""
    memory: tuple[MemoryUse | None, ...]
    """Memory by rank, in order."""
    compilation: tuple[Compilation | None, ...]
    host_gaps: tuple[tuple[HostGap, ...], ...]
    """Activity of the host while the device was idle; by rank, in order."""

    @property
    def device(self) -> Device | None:
        return self.roofs[0].device

    @property
    def wall_ms(self) -> float:
        return max(rank.wall for rank in self.group.ranks) / 1e3


def read(
    paths: Sequence[Path],
    *,
    device: Device | None = None,
    here: Device | None = None,
    log: tuple[SourcePlace, ...] = (),
    stages: int | None = None,
    micro_batches: int | None = None,
) -> Reading:
    """Read the traces of one run. `device` overrides the trace's own; `here` is this machine, for traces of a
    processor."""
    if not paths:
        raise TraceError("no trace was given; take one with millstream profile run")
    if len(paths) > MAX_RANKS:
        raise TraceError(f"at most {MAX_RANKS} ranks are read together, got {len(paths)}")
    traces = [read_trace(path, rank=rank) for rank, path in enumerate(paths)]
    twice = {trace.rank for trace in traces if sum(other.rank == trace.rank for other in traces) > 1}
    if twice:
        raise TraceError(f"rank {min(twice)} was given more than once; give one trace a rank")
    group = gather(traces)
    roofs = tuple(
        roofline(rank, device or _device_of(rank.trace.device_name, rank.has_device, here))
        for rank in group.mesh
    )
    predicted = (
        bubble("1f1b", stages, micro_batches) if stages is not None and micro_batches is not None else None
    )
    facts = measure(group, roofs)
    phases = [read_phases(rank.trace) for rank in group.ranks]
    return Reading(
        group=group,
        roofs=roofs,
        facts=facts,
        diagnosis=diagnose(facts, bubble=predicted),
        phases=merge_phases(phases),
        memory=tuple(memory_use(rank.trace, rank.begin) for rank in group.ranks),
        compilation=tuple(read_compilation(rank.trace, log) for rank in group.ranks),
        host_gaps=tuple(host_gaps(rank) for rank in group.ranks),
    )


def _device_of(name: str, has_device: bool, here: Device | None) -> Device | None:
    """Return the device by the name in the trace; a processor is the one that was measured here, if it
    was."""
    if not has_device:
        return here if here is not None and here.processor else None
    if here is not None and here.name.upper() in name.upper().replace(" ", ""):
        return here
    return named_by_driver(name)
