"""What holds the device's work up, where nothing but work is left: decoding, the peak, the memory's bandwidth, or nobody knows.

Shares are of all ranks' work. Of work that is not known nothing is said, but what it takes to know it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from millstream.profiler.findings import UNEXPLAINED, Finding
from millstream.profiler.ranks import TracedGroup
from millstream.profiler.reach.roofline import Roofline


def work_finding(group: TracedGroup, roofs: Sequence[Roofline]) -> Finding:
    """The device works: what holds the work up."""
    mesh = group.mesh
    work = fmean(rank.shares["work"] for rank in mesh)
    decode = fmean((rank.decoding & rank.busy).total / rank.wall for rank in mesh)
    if decode >= 0.5:
        others = f"{100 * decode:.0f}% of the wall is decoding, {100 * max(0.0, work - decode):.0f}% other work"
        confidence = "high" if decode >= 0.6 else "medium"
        return Finding(name="decode-bound", gain=decode, evidence=(others,), confidence=confidence)
    found = _Known.of(roofs)
    evidence = (_known_line(work, found), *_near_lines(found, roofs))
    if max(found.compute, found.memory) < 0.3 or found.graphed >= 0.5:
        missing = _missing(found, roofs)
        gain = 0.0 if missing else work * (1 - found.reached)
        return Finding(name=UNEXPLAINED, gain=gain, evidence=evidence, remedy=missing)
    larger, smaller = max(found.compute, found.memory), min(found.compute, found.memory)
    sure = work >= 0.6 and larger >= 0.5 and larger >= 1.5 * smaller and not found.counted
    is_memory = found.memory > found.compute
    name, gain = ("memory-bound", work * found.memory) if is_memory else ("compute-bound", work * (1 - found.reached))
    return Finding(name=name, gain=gain, evidence=evidence, confidence="high" if sure else "medium")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    """Shares of all ranks' work."""

    shaped: float
    counted: float
    graphed: float
    compute: float
    memory: float
    reached: float
    """Of the ceilings, by what is known."""

    @classmethod
    def of(cls, roofs: Sequence[Roofline]) -> _Known:
        total = sum(roof.work_ms for roof in roofs) or 1.0
        return cls(
            shaped=sum(roof.shaped_ms for roof in roofs) / total,
            counted=sum(roof.counted_ms for roof in roofs) / total,
            graphed=sum(roof.graphed_ms for roof in roofs) / total,
            compute=sum(roof.compute_ms for roof in roofs) / total,
            memory=sum(roof.memory_ms for roof in roofs) / total,
            reached=sum(roof.floor_ms for roof in roofs) / (sum(roof.known_ms for roof in roofs) or 1.0),
        )

    @property
    def unknown(self) -> float:
        return 1 - self.shaped - self.counted


def _known_line(work: float, found: _Known) -> str:
    busy, shaped = f"the device works {100 * work:.0f}% of the wall", f"{100 * found.shaped:.0f}%"
    if not found.counted:
        return f"{busy}; shapes are known of {shaped} of that"
    return f"{busy}; {shaped} of that is known by shapes, {100 * found.counted:.0f}% by phase"


def _near_lines(found: _Known, roofs: Sequence[Roofline]) -> Iterator[str]:
    near = f"{100 * found.compute:.0f}% of the work is near the measured peak"
    yield f"{near}, {100 * found.memory:.0f}% near the memory's bandwidth"
    phases = [phase for roof in roofs for phase in roof.phases]
    for ceiling, is_compute in (("measured peak", True), ("memory's bandwidth", False)):
        reached = [f"{phase.name} {100 * phase.reached:.0f}%" for phase in phases if phase.is_compute is is_compute]
        if reached:
            yield f"of the {ceiling}: {', '.join(reached)}"


def _missing(found: _Known, roofs: Sequence[Roofline]) -> str:
    """What has to be known before the work can be named; nothing where the trace has all."""
    asked = []
    if found.unknown >= 0.5:
        graphs = found.graphed >= 0.5 * found.unknown
        asked.append("CUDA graphs carry no shapes: record once without graphs" if graphs else "record shapes")
    if any(roof.device is None for roof in roofs):
        asked.append("name the device with --gpu, or measure this one with millstream plan calibrate")
    return "; ".join(asked)
