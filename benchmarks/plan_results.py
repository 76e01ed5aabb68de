"""Is a chunk on a GPU as long, and its memory as full, as planned? Every `bench stream` result, against the
plan.

    python -m benchmarks.plan_results                  # results/stream-*.json, as a table
    python -m benchmarks.plan_results --docs           # the same, into docs/planning.md
    python -m benchmarks.plan_results --results OTHER
    python -m benchmarks.plan_results --profile benchmarks/results/profile-h200.json    # by what `plan calibrate` measured

Goals: a chunk within 10%, memory within 5%. A plan knows a model, a stream, a device and which speed-ups are
on; a result is compared if it names a GPU of the catalogue and one session. Random weights have a small text
encoder, which is planned as such. What allocators do not count is left out of the plan: a process's own
memory, and what recorded calls have reserved. Loads no torch.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.pages import row as table_row
from benchmarks.pages import write_between
from millstream.core.config import GIB, ModelSpec, StreamConfig, TextConfig
from millstream.core.presets import find_model
from millstream.core.speed import ALL, FP8_GROUPS, Speed
from millstream.core.topology import LOCAL
from millstream.planner.footprint import DeviceNeed, device_needs
from millstream.planner.hardware import Device, Fleet, named_by_driver
from millstream.planner.profile import read_profile
from millstream.planner.software import software_of
from millstream.planner.time import chunk_time
from millstream.planner.workload import Workload

RESULTS = Path(__file__).parent / "results"
PROFILE = RESULTS / "profile-h200.json"
DOCS = Path(__file__).parents[1] / "docs" / "planning.md"
TIME_GOAL = 0.10
MEMORY_GOAL = 0.05
FITTED = "wan2.1-t2v-1.3b", "480x832", 9
_ONE_CALL = replace(ALL, even_waves=False)
FITTED_PATHS = (Speed(), _ONE_CALL, ALL, replace(_ONE_CALL, low_attention=True, fp8=FP8_GROUPS))
"""The stream that `planner/software.py` was fitted to: plain, fast in bf16 with attention in one call, and
for what even waves and attention in 8 bits gain."""
_UNCOUNTED = ("process", "graph pool")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A number and what was planned."""

    measured: float
    planned: float

    @property
    def miss(self) -> float:
        return self.planned / self.measured - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    what: str
    path: str
    fitted: bool
    chunk_ms: Pair
    steady_gib: Pair | None
    peak_gib: Pair | None
    """None for a result that does not say it."""

    @property
    def parts(self) -> Iterator[tuple[Pair, float]]:
        """Each with its goal."""
        yield self.chunk_ms, TIME_GOAL
        yield from ((pair, MEMORY_GOAL) for pair in (self.steady_gib, self.peak_gib) if pair is not None)


def rows_of(folder: Path, calibrated: Device | None = None) -> list[Row]:
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("stream-*.json"))]
    return [row for record in records if (row := row_of(record, calibrated)) is not None]


def row_of(record: Mapping[str, Any], calibrated: Device | None = None) -> Row | None:
    """None for what cannot be compared: no GPU that is known, or several sessions. One that was calibrated
    goes by that."""
    device = device_of(record["hardware"])
    config = record["configuration"]
    if device is None or config.get("sessions", 1) != 1:
        return None
    if calibrated is not None and calibrated.name == device.name:
        device = calibrated
    stream = StreamConfig(**{**config["stream"], "steps": tuple(config["stream"]["steps"])})
    speed = speed_of(config["speed"])
    work = Workload(
        spec=model_of(config),
        stream=stream,
        precision="fp8" if speed.fp8 else "native",
        software=software_of(speed),
    )
    (need,) = device_needs(work, device, LOCAL)
    steady, peak = allocated_gib(need)
    measured = record["measured"]
    memory = {name: mib / 1024 for name, mib in measured["memory_mib"].items()}
    planned_ms = chunk_time(work, Fleet(device=device, count=1), LOCAL).period_ms
    size = f"{stream.height}x{stream.width}"
    return Row(
        what=f"{config['model'].removeprefix('wan2.1-t2v-')} {size} window {stream.window}, {device.name}",
        path=f"{work.software.name}{', fp8' if speed.fp8 else ''}",
        fitted=(config["model"], size, stream.window) == FITTED and speed in FITTED_PATHS,
        chunk_ms=Pair(measured=measured["chunk_ms"]["p50"], planned=planned_ms),
        steady_gib=Pair(measured=memory["steady"], planned=steady) if "steady" in memory else None,
        peak_gib=Pair(measured=memory["peak"], planned=peak) if "peak" in memory else None,
    )


def device_of(hardware: Mapping[str, Any]) -> Device | None:
    return named_by_driver(str(hardware.get("gpu", "")))


def speed_of(said: Mapping[str, Any]) -> Speed:
    known = {field.name for field in fields(Speed)}
    switches: dict[str, Any] = {
        name: tuple(on) if isinstance(on, list) else on for name, on in said.items() if name in known
    }
    return Speed(**switches)


def model_of(config: Mapping[str, Any]) -> ModelSpec:
    spec = find_model(config["model"])
    untrained = list(config["weights"])[:1] == ["random"] and isinstance(spec.text, TextConfig)
    return (
        replace(spec, text=spec.text.untrained) if untrained and isinstance(spec.text, TextConfig) else spec
    )


def allocated_gib(need: DeviceNeed) -> tuple[float, float]:
    """Between chunks of one session, and at most, as an allocator counts."""
    held = {**need.fixed, **need.per_session}
    steady = sum(size for name, size in held.items() if name not in (*_UNCOUNTED, "working set"))
    return steady / GIB, max(need.loading - need.fixed["process"], steady + need.fixed["working set"]) / GIB


def table(rows: Iterable[Row]) -> list[str]:
    lines = [
        "| stream | path | chunk ms | planned | | steady GiB | planned | | peak GiB | planned | |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            row.what,
            f"{row.path}{' (fitted)' if row.fitted else ''}",
            *_cells(row.chunk_ms, TIME_GOAL, 0),
        ]
        cells += _cells(row.steady_gib, MEMORY_GOAL, 2)
        cells += _cells(row.peak_gib, MEMORY_GOAL, 2)
        lines.append(table_row(cells))
    return lines


def summary(rows: Iterable[Row]) -> str:
    parts = [part for row in rows for part in row.parts]
    kept = sum(abs(pair.miss) <= goal for pair, goal in parts)
    return f"Within the goals, a chunk 10% and memory 5%: {kept} of {len(parts)} numbers."


def calibrated(rows: Iterable[Row]) -> list[str]:
    """By what was measured of the device alone."""
    rows = list(rows)
    missed = [
        f"{row.what} ({row.path}) by {100 * row.chunk_ms.miss:+.1f}%" for row in rows if not _keeps_time(row)
    ]
    return [summary(rows) + (f" Chunks beyond that: {', '.join(missed)}." if missed else "")]


def _keeps_time(row: Row) -> bool:
    return row.chunk_ms is None or abs(row.chunk_ms.miss) <= TIME_GOAL


def _cells(pair: Pair | None, goal: float, digits: int) -> tuple[str, str, str]:
    """A miss that is too large is set in bold."""
    if pair is None:
        return "", "", ""
    miss = f"{100 * pair.miss:+.1f}%"
    return (
        f"{pair.measured:.{digits}f}",
        f"{pair.planned:.{digits}f}",
        miss if abs(pair.miss) <= goal else f"**{miss}**",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="where stream-*.json lie")
    parser.add_argument("--docs", action="store_true", help=f"write the table into {DOCS.name}")
    parser.add_argument("--profile", type=Path, help="of a device that `millstream plan calibrate` measured")
    asked = parser.parse_args()
    rows = rows_of(asked.results, read_profile(asked.profile) if asked.profile else None)
    lines = [*table(rows), "", summary(rows)]
    print("\n".join(lines))
    if asked.docs:
        write_between(DOCS, "plan_results", lines)
        write_between(DOCS, "plan_results profile", calibrated(rows_of(asked.results, read_profile(PROFILE))))


if __name__ == "__main__":
    main()
