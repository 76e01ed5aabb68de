"""Bound of the device's work, where nothing but work is left: decoding, the peak, the memory's bandwidth, or
unknown.

Shares are of all ranks' work. Work that is not known is not judged; the finding says what is needed to know
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millstream.profiler.rules.facts import RunFacts, WorkFacts, mean
from millstream.profiler.rules.findings import UNEXPLAINED, Finding


def work_finding(run: RunFacts) -> Finding:
    """Return the finding on what bounds the device's work."""
    work = mean(run.mesh, lambda rank: rank.shares["work"])
    decode = mean(run.mesh, lambda rank: rank.talk.working)
    if decode >= 0.5:
        others = (
            f"{100 * decode:.0f}% of the wall is decoding, {100 * max(0.0, work - decode):.0f}% other work"
        )
        confidence = "high" if decode >= 0.6 else "medium"
        return Finding(name="decode-bound", gain=decode, evidence=(others,), confidence=confidence)
    works = [rank.work for rank in run.mesh if rank.work is not None]
    found = _Known.of(works)
    evidence = (_known_line(work, found), *_near_lines(found, works))
    if max(found.compute, found.memory) < 0.3 or found.graphed >= 0.5:
        missing = _missing(found, works)
        gain = 0.0 if missing else work * (1 - found.reached)
        return Finding(name=UNEXPLAINED, gain=gain, evidence=evidence, remedy=missing)
    larger = max(found.compute, found.memory)
    smaller = min(found.compute, found.memory)
    sure = work >= 0.6 and larger >= 0.5 and larger >= 1.5 * smaller and not found.counted
    is_memory = found.memory > found.compute
    name, gain = (
        ("memory-bound", work * found.memory) if is_memory else ("compute-bound", work * (1 - found.reached))
    )
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
    """Share of the ceilings reached by the known work."""

    @classmethod
    def of(cls, works: Sequence[WorkFacts]) -> _Known:
        total = sum(each.work_ms for each in works) or 1.0
        known = sum(each.shaped_ms + each.counted_ms for each in works) or 1.0
        return cls(
            shaped=sum(each.shaped_ms for each in works) / total,
            counted=sum(each.counted_ms for each in works) / total,
            graphed=sum(each.graphed_ms for each in works) / total,
            compute=sum(each.compute_ms for each in works) / total,
            memory=sum(each.memory_ms for each in works) / total,
            reached=sum(each.floor_ms for each in works) / known,
        )

    @property
    def unknown(self) -> float:
        return 1 - self.shaped - self.counted


def _known_line(work: float, found: _Known) -> str:
    busy = f"the device works {100 * work:.0f}% of the wall"
    shaped = f"{100 * found.shaped:.0f}%"
    if not found.counted:
        return f"{busy}; shapes are known of {shaped} of that"
    return f"{busy}; {shaped} of that is known by shapes, {100 * found.counted:.0f}% by phase"


def _near_lines(found: _Known, works: Sequence[WorkFacts]) -> Iterator[str]:
    near = f"{100 * found.compute:.0f}% of the work is near the measured peak"
    yield f"{near}, {100 * found.memory:.0f}% near the memory's bandwidth"
    for ceiling, by_phase in (
        ("measured peak", [each.near_peak for each in works]),
        ("memory's bandwidth", [each.near_memory for each in works]),
    ):
        reached = [f"{name} {100 * share:.0f}%" for phases in by_phase for name, share in phases.items()]
        if reached:
            yield f"of the {ceiling}: {', '.join(reached)}"


def _missing(found: _Known, works: Sequence[WorkFacts]) -> str:
    """Return what has to be recorded before the work can be named; empty where the trace has all."""
    asked = []
    if found.unknown >= 0.5:
        graphs = found.graphed >= 0.5 * found.unknown
        asked.append("CUDA graphs carry no shapes: record once without graphs" if graphs else "record shapes")
    if not all(each.knows_device for each in works):
        asked.append("name the device with --gpu, or measure this one with millstream plan calibrate")
    return "; ".join(asked)
