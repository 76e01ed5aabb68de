"""Comparison of a plan with a trace: each figure that both hold, and the error of the plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from millstream.core.errors import TraceError
from millstream.profiler.reading import Reading

MESH_PHASES = ("prompt", "recompute", "step", "commit")
STREAM = ("model", "size", "window", "topology")
"""Fields that must be equal in a trace and its plan."""
MAX_PLAN_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedLine:
    what: str
    unit: str
    planned: float
    measured: float

    @property
    def miss(self) -> float:
        """Error of the plan as a share of the measured value; above 0 the plan was too slow, or too large."""
        return self.planned / self.measured - 1


def read_plan(path: Path) -> Mapping[str, Any]:
    """Return the best plan of `plan --json` together with the request."""
    try:
        if path.stat().st_size > MAX_PLAN_BYTES:
            raise ValueError("too large")
        record = json.loads(path.read_text())
        if record.get("format") != "millstream-plan":
            raise ValueError("another format")
        asked = record.get("ask", {})
        plan = record["plans"][0]
        return {str(key): value for key, value in {**asked, **plan}.items()}
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        said = str(error) or type(error).__name__
        raise TraceError(f"{path} is not a plan ({said}); write one with millstream plan --json") from None


def against_plan(reading: Reading, plan: Mapping[str, Any]) -> tuple[ComparedLine, ...]:
    _refuse_another_stream(reading, plan)
    phases = reading.phases
    times = plan.get("time_ms", {})
    found = []
    mesh = [median(phases.by_name[name]) for name in MESH_PHASES if name in phases.by_name]
    for what, measured in (
        ("mesh", sum(mesh)),
        ("decode", phases.median_ms("decode") if "decode" in phases.by_name else 0.0),
        ("encode", phases.median_ms("encode") if "encode" in phases.by_name else 0.0),
        ("period", median(phases.period_ms) if phases.period_ms else 0.0),
    ):
        planned = times.get(what)
        if isinstance(planned, int | float) and planned > 0 and measured > 0:
            found.append(ComparedLine(what=what, unit="ms", planned=float(planned), measured=measured))
    found += _memory(reading, plan.get("memory_gib", {}))
    if not found:
        raise TraceError(
            "the trace and the plan have no figure in common; take the trace with millstream profile run"
        )
    return tuple(found)


def _refuse_another_stream(reading: Reading, plan: Mapping[str, Any]) -> None:
    """Raise `TraceError` if the trace names another stream than the plan; traces of `profile run` name
    theirs."""
    for traced in (rank.trace.ours for rank in reading.group.ranks):
        for name in STREAM:
            if name in traced and name in plan and traced[name] != plan[name]:
                raise TraceError(
                    f"the trace is of {name} {traced[name]} and the plan of {plan[name]}; plan what was "
                    "traced"
                )


def _memory(reading: Reading, roles: Mapping[str, Mapping[str, float]]) -> list[ComparedLine]:
    """Compare memory: all of a device's, but for a processor only what models work with, because its traces
    do not show what was allocated before."""
    uses = [use for use in reading.memory if use is not None]
    if not uses or not roles:
        return []
    fullest = max(uses, key=lambda use: use.peak_mib)
    if any(rank.has_device for rank in reading.group.ranks):
        planned = max(sum(parts.values()) for parts in roles.values())
        return [
            ComparedLine(
                what="memory of the fullest device",
                unit="MiB",
                planned=1024 * planned,
                measured=fullest.peak_mib,
            )
        ]
    planned = max(
        size for parts in roles.values() for name, size in parts.items() if name.endswith("working set")
    )
    worked = sum(size for name, size in fullest.filled_by if name in (*MESH_PHASES, "decode", "encode"))
    return (
        [ComparedLine(what="working set", unit="MiB", planned=1024 * planned, measured=worked)]
        if worked
        else []
    )
