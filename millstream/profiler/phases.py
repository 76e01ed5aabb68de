"""Chunks and their phases, as notes in a trace tell them: ours by name and chunk, or the steps a profiler
marks.

On an accelerator the device's own notes count, because the host's end when the launching does.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from millstream.core.trace import Work, parse_label
from millstream.profiler.kinds import Kind
from millstream.profiler.trace import Trace

_STEP = re.compile(r"ProfilerStep#(\d+)")
_HOST_NOTES = (Kind.NOTE, Kind.DECODE, Kind.ENCODE, Kind.DATA)


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseTimes:
    """Milliseconds. A chunk is a step where there are no chunks of ours."""

    period_ms: tuple[float, ...]
    """From the beginning of one chunk to that of the next, one session after another."""
    by_name: dict[str, tuple[float, ...]]
    """For each phase, its time in each chunk that has it."""

    @property
    def chunks(self) -> int:
        return max([len(self.period_ms), *(len(times) for times in self.by_name.values())], default=0)

    def median_ms(self, name: str) -> float:
        return median(self.by_name[name])


def read_phases(trace: Trace) -> PhaseTimes:
    chunks: dict[Work, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    begins: dict[Work, float] = {}
    for name, work, begin, length in _spans(trace):
        chunks[work][name] += length / 1e3
        begins[work] = min(begin, begins.get(work, begin))
    names = list(dict.fromkeys(name for phases in chunks.values() for name in phases if name != "chunk"))
    return PhaseTimes(
        period_ms=_periods(begins, chunks),
        by_name={name: tuple(phases[name] for phases in chunks.values() if name in phases) for name in names},
    )


def merge_phases(ranks: Sequence[PhaseTimes]) -> PhaseTimes:
    """Ranks of one run go through the same chunks, each through phases of its own."""
    assert ranks, "a run has ranks"
    together: dict[str, tuple[float, ...]] = {}
    for phases in ranks:
        together = {**phases.by_name, **together}
    return PhaseTimes(period_ms=max((phases.period_ms for phases in ranks), key=len), by_name=together)


def _periods(begins: dict[Work, float], chunks: dict[Work, dict[str, float]]) -> tuple[float, ...]:
    by_session: dict[str, list[tuple[float, Work]]] = defaultdict(list)
    for work, begin in begins.items():
        by_session[work.session].append((begin, work))
    found: list[float] = []
    for started in by_session.values():
        started.sort(key=lambda pair: pair[0])
        found += [(later - begin) / 1e3 for (begin, _), (later, _) in pairwise(started)]
        found.append(sum(chunks[started[-1][1]].values()))  # nothing follows the last: its own phases
    return tuple(found)


def _spans(trace: Trace) -> Iterator[tuple[str, Work, float, float]]:
    events = trace.events
    names = trace.names
    ours = {index: label for index, name in enumerate(names) if (label := parse_label(name)) is not None}
    chosen = [i for i in events.of(Kind.DEVICE_NOTE) if int(events.name[i]) in ours]
    chosen = chosen or [i for i in events.of(*_HOST_NOTES) if int(events.name[i]) in ours]
    for index in chosen:
        name, work = ours[int(events.name[index])]
        if work.chunk >= 0:
            yield name, work, float(events.begin[index]), float(events.length[index])
    if chosen:
        return
    for index in events.of(Kind.NOTE):
        step = _STEP.fullmatch(names[events.name[index]])
        if step is not None:
            yield (
                "chunk",
                Work(chunk=int(step.group(1))),
                float(events.begin[index]),
                float(events.length[index]),
            )
