"""A reading as plain data, for programs: what `profile read --json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from millstream.profiler.against_plan import ComparedLine
from millstream.profiler.difference import TraceChange
from millstream.profiler.memory import MemoryUse
from millstream.profiler.reach.phase_reach import PhaseReach
from millstream.profiler.reach.roofline import FamilyTime
from millstream.profiler.reading import Reading
from millstream.profiler.rules.findings import Finding

FORMAT = "millstream-reading"
VERSION = 1


def reading_record(reading: Reading, lines: Sequence[ComparedLine] = ()) -> dict[str, Any]:
    diagnosis = reading.diagnosis
    skew = reading.group.skew
    return {
        "format": FORMAT,
        "version": VERSION,
        "verdict": finding_record(diagnosis.verdict),
        "others": [finding_record(finding) for finding in diagnosis.others],
        "doubts": list(diagnosis.doubts),
        "wall_ms": reading.wall_ms,
        "device": reading.device.name if reading.device else None,
        "ranks": [
            {
                "rank": rank.rank,
                "wall_ms": rank.wall / 1e3,
                "shares": rank.shares,
                "waited_ms": skew.waited_ms.get(rank.rank),
            }
            for rank in reading.group.ranks
        ],
        "straggler": skew.straggler,
        "phases_ms": {name: median(times) for name, times in reading.phases.by_name.items()},
        "period_ms": median(reading.phases.period_ms) if reading.phases.period_ms else None,
        "roofline": [family_record(family) for roof in reading.roofs for family in roof.families],
        "kernels": [asdict(kernel) for roof in reading.roofs for kernel in roof.top],
        "host_gaps": [[asdict(gap) for gap in gaps] for gaps in reading.host_gaps],
        "counted_phases": [phase_record(phase) for roof in reading.roofs for phase in roof.phases],
        "memory": [None if use is None else memory_record(use) for use in reading.memory],
        "compilation": [None if found is None else asdict(found) for found in reading.compilation],
        "plan": [{**asdict(line), "miss": line.miss} for line in lines],
    }


def family_record(family: FamilyTime) -> dict[str, Any]:
    return {**asdict(family), "tflops": family.tflops, "gb_s": family.gb_s}


def phase_record(phase: PhaseReach) -> dict[str, Any]:
    return {**asdict(phase), "tflops": phase.tflops, "gb_s": phase.gb_s, "reached": phase.reached}


def memory_record(use: MemoryUse) -> dict[str, Any]:
    return {"peak_mib": use.peak_mib, "reserved_mib": use.peak_reserved_mib, "filled_by": dict(use.filled_by)}


def finding_record(finding: Finding) -> dict[str, Any]:
    fields = asdict(finding)
    del fields["remedy"]  # the advice has it
    return {**fields, "advice": finding.advice, "speedup_at_most": finding.speedup}


def difference_record(changes: Sequence[TraceChange], gate: float) -> dict[str, Any]:
    return {
        "format": "millstream-difference",
        "version": VERSION,
        "gate": gate,
        "regressed": any(change.is_regression(gate) for change in changes),
        "changes": [{**asdict(change), "share": change.share} for change in changes],
    }
