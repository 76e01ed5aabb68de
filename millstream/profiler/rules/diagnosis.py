"""Bottleneck of a run, with evidence, confidence, and the most that removing it could gain.

Every cause is a share of the wall that would be gone if the cause were; the verdict is the one that could
gain most. Only where nothing but work is left does the work itself get the name: near the peak, near the
memory's bandwidth, or neither. A trace that cannot be trusted gets that name, and no advice but to record
another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from millstream.profiler.rules.facts import RunFacts
from millstream.profiler.rules.findings import UNEXPLAINED, UNTRUSTED, Finding
from millstream.profiler.rules.overheads import overheads
from millstream.profiler.rules.trust import doubts, reasons_for_distrust
from millstream.profiler.rules.work_bound import work_finding

CLEAR = 0.25
MUCH = 0.15
WORTH = 0.10
"""Gains from which on a cause is the bound whatever else there is (CLEAR); is the bound beside work of which
little is known (MUCH); and can be the bound (WORTH)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    verdict: Finding
    others: tuple[Finding, ...]
    doubts: tuple[str, ...]


def diagnose(run: RunFacts, *, bubble: float | None = None) -> Diagnosis:
    """Diagnose a run. `bubble` is the share that the schedule predicts, if one is known."""
    distrust = [f"rank {rank.rank}: {reason}" for rank in run.ranks for reason in reasons_for_distrust(rank)]
    if distrust:
        return Diagnosis(
            verdict=Finding(name=UNTRUSTED, gain=0.0, evidence=tuple(distrust), confidence="high"),
            others=(),
            doubts=(),
        )
    found = overheads(run, bubble=bubble)
    work = work_finding(run)
    less_sure = tuple(doubts(run))
    verdict = found[0] if found and _outweighs(found[0], work) else work
    others = tuple(finding for finding in (*found, work) if finding is not verdict and finding.gain >= 0.01)
    sure = _confidence(verdict, found) if verdict is not work else _work_confidence(work, found)
    nobody_in_particular = verdict.name == "straggler" and run.straggler is None
    if (less_sure or nobody_in_particular) and sure == "high":
        sure = "medium"
    return Diagnosis(verdict=replace(verdict, confidence=sure), others=others, doubts=less_sure)


def _outweighs(overhead: Finding, work: Finding) -> bool:
    enough = MUCH if work.name == UNEXPLAINED else max(WORTH, work.gain)
    return overhead.gain >= min(CLEAR, enough)


def _work_confidence(work: Finding, found: Sequence[Finding]) -> str:
    """Return the confidence in the work; it falls with the overhead beside it."""
    beside = max((overhead.gain for overhead in found), default=0.0)
    if beside >= WORTH and work.confidence == "high":
        return "medium"
    return "low" if beside >= 2 * WORTH else work.confidence


def _confidence(verdict: Finding, found: Sequence[Finding]) -> str:
    if verdict.name == UNEXPLAINED:
        return "low"
    runner_up = max((other.gain for other in found if other is not verdict), default=0.0)
    if verdict.gain >= 0.3 and verdict.gain >= 1.5 * runner_up:
        return "high"
    return "medium" if verdict.gain >= MUCH and verdict.gain >= 1.2 * runner_up else "low"
