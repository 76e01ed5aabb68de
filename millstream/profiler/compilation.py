"""Work of the compiler during a trace: its time, its graphs, which were recompiled, and where and why.

A trace itself names regions by frame and attempt; lines of source come from `profile run`, which listens to
the compiler, or from a log that was written with TORCH_LOGS=graph_breaks,recompiles.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.core.errors import TraceError
from millstream.profiler.intervals import union
from millstream.profiler.kinds import Kind
from millstream.profiler.trace import Trace

MAX_LINES = 5_000_000
KEPT_PLACES = 200
"""Different places; further ones are counted as one."""
_REGION = re.compile(r"Torch-Compiled Region: (\d+)/(\d+)")
_BREAK = re.compile(r"Graph break .*?in user code at (\S+:\d+)")
_RECOMPILE = re.compile(r"Recompiling function (\S+) in (\S+:\d+)")
_REASON = re.compile(r"(?:Graph Break Reason: |Explanation: |\] +- \d+/\d+: |^ *- \d+/\d+: )(.*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcePlace:
    kind: str
    """break or recompile."""
    where: str
    """file:line"""
    reason: str
    times: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Compilation:
    ms: float
    graphs: int
    recompiled: int
    places: tuple[SourcePlace, ...]


def read_compilation(trace: Trace, log: Iterable[SourcePlace] = ()) -> Compilation | None:
    """Summarise compilation in a trace; None where nothing was compiled."""
    events = trace.events
    spent = events.of(Kind.COMPILE)
    regions = {match.groups() for name in trace.names if (match := _REGION.search(name))}
    places = (*_told(trace.ours.get("compiler")), *log)
    if not len(spent) and not regions and not places:
        return None
    return Compilation(
        ms=union(events.begin[spent], events.ends(spent)).total / 1e3,
        graphs=len({frame for frame, _ in regions}),
        recompiled=sum(attempt != "0" for _, attempt in regions),
        places=places,
    )


class CompilerLog:
    """Collects graph breaks and recompilations from a compiler's log, line by line."""

    def __init__(self) -> None:
        self._times: Counter[tuple[str, str]] = Counter()
        self._reasons: dict[tuple[str, str], str] = {}
        self._latest: tuple[str, str] | None = None

    def feed(self, line: str) -> None:
        found = _BREAK.search(line)
        if found is not None:
            self._add("break", found.group(1))
        elif (found := _RECOMPILE.search(line)) is not None:
            self._add("recompile", found.group(2))
        elif self._latest is not None and (found := _REASON.search(line)) is not None:
            # the later line explains, the first only says what was being traced
            self._reasons[self._latest] = found.group(1).strip()[:200]

    def places(self) -> tuple[SourcePlace, ...]:
        return tuple(
            SourcePlace(kind=kind, where=where, reason=self._reasons.get((kind, where), ""), times=times)
            for (kind, where), times in self._times.most_common()
        )

    def _add(self, kind: str, where: str) -> None:
        key = (kind, where)
        if key not in self._times and len(self._times) >= KEPT_PLACES:
            key = (kind, "(other places)")
        self._times[key] += 1
        self._latest = key


def read_log(path: Path) -> tuple[SourcePlace, ...]:
    log = CompilerLog()
    try:
        with path.open(errors="replace") as lines:
            for _, line in zip(range(MAX_LINES), lines, strict=False):
                log.feed(line)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None
    return log.places()


def _told(found: Any) -> tuple[SourcePlace, ...]:
    """Read the places that `profile run` recorded; ignore anything else in that field."""
    if not isinstance(found, list):
        return ()
    return tuple(
        SourcePlace(
            kind=str(e.get("kind")),
            where=str(e.get("where")),
            reason=str(e.get("reason", "")),
            times=int(e.get("times", 1)),
        )
        for e in found
        if isinstance(e, dict)
    )
