"""Two runs side by side: what got slower, by how much, and whether that is more than they vary by
themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from millstream.core.errors import TraceError
from millstream.profiler.reading import Reading


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceChange:
    what: str
    before: float
    after: float
    noise: float
    """Share by which single chunks stray from their median, in the less steady of the two runs; 0 where there
    is only one."""
    gated: bool

    @property
    def share(self) -> float:
        return self.after / self.before - 1 if self.before else 0.0

    def is_regression(self, gate: float) -> bool:
        return self.gated and self.share > gate


def compare(before: Reading, after: Reading) -> tuple[TraceChange, ...]:
    """Compare phases and periods of a chunk where both runs have them, else the wall; then the device's time
    by kernel family, and memory."""
    found = [*_phases(before, after)]
    if not found:
        found.append(_change("wall, ms", [before.wall_ms], [after.wall_ms], gated=True))
    found += _families(before, after)
    peaks = [
        max((use.peak_mib for use in run.memory if use is not None), default=0.0) for run in (before, after)
    ]
    if all(peaks):
        found.append(_change("peak memory, MiB", peaks[:1], peaks[1:], gated=True))
    return tuple(found)


def _phases(before: Reading, after: Reading) -> list[TraceChange]:
    old = before.phases
    new = after.phases
    if bool(old.period_ms) != bool(new.period_ms):
        raise TraceError(
            "one of the two has chunks and the other has none; compare traces that were taken alike"
        )
    if not old.period_ms:
        return []
    period = _change("a chunk, ms", old.period_ms, new.period_ms, gated=True)
    both = [name for name in old.by_name if name in new.by_name]
    return [
        period,
        *(_change(f"{name}, ms", old.by_name[name], new.by_name[name], gated=False) for name in both),
    ]


def _families(before: Reading, after: Reading) -> list[TraceChange]:
    """Compare the device's time by kernel family, per chunk where chunks are known."""
    old, new = (
        {f.family: f.ms / max(1, run.phases.chunks) for f in run.roofs[0].families} for run in (before, after)
    )
    return [
        _change(f"{name} on the device, ms", [old[name]], [new[name]], gated=False)
        for name in old
        if name in new
    ]


def _change(what: str, before: Sequence[float], after: Sequence[float], *, gated: bool) -> TraceChange:
    return TraceChange(
        what=what,
        before=median(before),
        after=median(after),
        noise=max(_spread(before), _spread(after)),
        gated=gated,
    )


def _spread(values: Sequence[float]) -> float:
    middle = median(values)
    return median(abs(value - middle) for value in values) / middle if middle else 0.0
