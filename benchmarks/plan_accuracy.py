"""Is a chunk as long as planned? This processor, calibrated, then streams that the calibration has not seen.

    python -m benchmarks.plan_accuracy

The goal: chunk time within 10%. Everything runs in one process on one thread, and times are its CPU seconds,
best of several chunks: on a machine that others use, the wall says more about them. Even so the same chunk's
time drifts by a tenth and more within minutes, so each stream takes turns with the one that was fitted, and
its miss is corrected by how far that one has drifted meanwhile; `miss_uncorrected` is without. The same with
a small model that has Wan's VAE, of which only decoding, at one size, was fitted.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import write_report
from millstream import Engine
from millstream.commands.plan.calibrate import calibrate
from millstream.commands.plan.fit import DEEP_MODEL, MODEL, SHORTER, Seen, stream_side_by_side
from millstream.core.topology import LOCAL
from millstream.planner.hardware import Device, Fleet
from millstream.planner.time import ChunkTime, chunk_time
from millstream.planner.workload import Workload

CHUNKS = 6
STREAMS: tuple[dict[str, Any], ...] = (
    {"window": 3},
    {"window": 15},
    {"height": 192, "width": 192},
    {"height": 192, "width": 320},
    {"height": 320, "width": 320},
    {"steps": (1000, 750, 500, 250)},
    {"steps": (1000,), "window": 6},
)
DEEP_STREAMS: tuple[dict[str, Any], ...] = ({}, {"height": 192, "width": 320}, {"height": 128, "width": 128})


@dataclass(frozen=True, kw_only=True)
class Row:
    what: str
    planned: ChunkTime
    calls: int
    measured: Seen
    drift: float
    """Time of the fitted stream in turns with this one, relative to its time when fitted."""

    @property
    def measured_ms(self) -> float:
        return self.measured.chunk_ms(self.calls)

    @property
    def miss(self) -> float:
        return self.planned.period_ms * self.drift / self.measured_ms - 1

    def record(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "planned_ms": round(self.planned.period_ms, 1),
            "measured_ms": round(self.measured_ms, 1),
            "drift": round(self.drift, 3),
            "miss": round(self.miss, 3),
            "miss_uncorrected": round(self.planned.period_ms / self.measured_ms - 1, 3),
            "planned_call_and_front_ms": [round(self.planned.call.total, 1), round(self.planned.front_ms, 1)],
            "measured_call_and_front_ms": [round(self.measured.call, 1), round(self.measured.front, 1)],
        }


def plan(engine: Engine, device: Device, changes: Mapping[str, Any]) -> ChunkTime:
    assert device.fitted is not None, "calibrated on a processor"
    work = Workload(spec=engine.spec, stream=engine.stream_config(**changes), software=device.fitted)
    return chunk_time(work, Fleet(device=device, count=1), LOCAL)


def measure(engine: Engine, device: Device, changes: Mapping[str, Any], fitted: Mapping[str, Any]) -> Row:
    """A stream, beside the one of the same engine that was fitted."""
    row, beside = stream_side_by_side(CHUNKS, (engine, changes), (engine, fitted))
    return Row(
        what=" ".join((engine.spec.name, *(f"{name}={value}" for name, value in changes.items()))),
        planned=plan(engine, device, changes),
        calls=len(engine.stream_config(**changes).steps),
        measured=row,
        drift=beside.chunk_ms(len(engine.stream_config(**fitted).steps))
        / plan(engine, device, fitted).period_ms,
    )


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        device = calibrate(device_name="cpu", out=Path(folder) / "profile.json", clock=time.process_time)
    engine, deep = (Engine(name, weights="random", device="cpu") for name in (MODEL, DEEP_MODEL))
    engine.generator.stopwatch.clock = deep.generator.stopwatch.clock = time.process_time
    rows = [measure(engine, device, changes, {}) for changes in STREAMS]
    rows += [measure(deep, device, changes, SHORTER) for changes in DEEP_STREAMS]
    write_report(
        "plan_accuracy",
        {
            "models": [MODEL, DEEP_MODEL],
            "threads": 1,
            "chunks": CHUNKS,
            "dtype": str(engine.dtype),
            "goal_within": 0.1,
        },
        {
            "within_a_tenth": sum(abs(row.miss) <= 0.1 for row in rows),
            "of": len(rows),
            "fitted_to": device.fitted and device.fitted.source,
            "rows": [row.record() for row in rows],
        },
    )


if __name__ == "__main__":
    main()
