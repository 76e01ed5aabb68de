"""`millstream plan fleet`: a day of a fleet on paper, by the policy that runs real ones. Loads no torch, no
Ray.

Chunk times are the planner's, of the topology and card that each pool has; people, deaths and slow machines
are drawn. Or a recorded trace is run again, beside what was recorded.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from millstream.commands.plan.options import PlannedOptions
from millstream.core.errors import ConfigError
from millstream.core.files import write_whole
from millstream.core.topology import Topology
from millstream.fleet.config import FleetConfig, read_fleet
from millstream.fleet.day import Day, PoolKind, simulate
from millstream.fleet.replayed import compared, simulate_trace
from millstream.fleet.simulator import FleetOutcome
from millstream.fleet.trace import Times, read_trace
from millstream.planner.judge import MEMORY_SHARE, Plan, judge
from millstream.planner.simulate import quantile
from millstream.report.page import page
from millstream.report.svg import curves
from millstream.serving.admission_types import AdmissionConfig, Request
from millstream.serving.chunk_times import Geometry
from millstream.session.pacing import Pace

RATES = (8.0, 12.0, 16.0, 20.0, 24.0)
"""Frames a second that cost is shown for."""
WARM = (0, 1, 2, 4, 8)


def run_plan_fleet(
    path: Path, day: Day, *, gpus: str, times: Times, html: Path | None, as_json: bool
) -> None:
    if path.suffix == ".json":
        if html is not None:
            raise ConfigError("--html draws a fleet.toml; leave it out for a trace")
        return _run_trace(path, as_json=as_json)
    config = read_fleet(path, secrets=False)
    outcome = run_day(config, day, gpus=gpus, times=times)
    if html is not None:
        write_whole(html, _page(config, day, outcome, gpus, times))
    if as_json:
        print(json.dumps(record(outcome), indent=2))
        return None
    console = Console()
    console.print(
        f"{path}: {day.sessions:,} sessions at the peak, {day.seconds / 3600:g} hours, chunk times as "
        f"planned for {gpus}; "
        "simulated, not measured",
        highlight=False,
    )
    return _show({name: [value] for name, value in record(outcome).items()}, ["", "simulated"], console)


def run_day(
    config: FleetConfig,
    day: Day,
    *,
    gpus: str,
    times: Times,
    fps: float | None = None,
    warm: int | None = None,
) -> FleetOutcome:
    """Perhaps at another promise than its own: frames a second, or warm replicas of every pool."""
    kinds = [kind_of_pool(config, pool.name, gpus, share=1 / len(config.pools)) for pool in config.pools]
    if fps is not None:
        kinds = [
            replace(kind, request=replace(kind.request, pace=kind.request.pace.at(fps))) for kind in kinds
        ]
    if warm is not None:
        kinds = [replace(kind, pool=replace(kind.pool, warm=warm)) for kind in kinds]
    return simulate(
        kinds, day, times=times, placement=config.table.placement, max_waiting=config.table.max_waiting
    )


def kind_of_pool(config: FleetConfig, name: str, gpus: str, *, share: float) -> PoolKind:
    """Plan the replicas of a pool: the chunk's time on the busiest device, and the memory of the fullest."""
    table = config.replicas[name]
    pool = next(pool for pool in config.pools if pool.name == name)
    layout = Topology.parse(table.topology)
    size = table.serve.get("size")
    window = table.serve.get("window")
    asked = PlannedOptions(
        model=table.model,
        gpus=f"{layout.num_devices}x{gpus}",
        fps=table.fps,
        size=None if size is None else str(size),
        window=window,
    )
    ask = asked.ask()
    plan = judge(ask, layout)
    room, request = admission_of(plan)
    if room is None:
        raise ConfigError(
            f"{config.path} replicas.{name}: {table.model} does not fit on {layout} of "
            f"{ask.fleet.device.name}"
        )
    price = pool.dollars_per_hour or layout.num_devices * ask.fleet.device.dollars_per_hour
    return PoolKind(
        pool=replace(pool, dollars_per_hour=price),
        room=room,
        request=request,
        chunk_s=plan.time.busy_ms / 1e3,
        share=share,
    )


def admission_of(plan: Plan) -> tuple[AdmissionConfig | None, Request]:
    """Return what a replica's server would admit sessions by: the memory it has for them, None for none, and
    what each of them asks for."""
    ask = plan.ask
    room = int(MEMORY_SHARE * ask.fleet.device.memory_bytes)
    need = min(plan.needs, key=lambda need: need.sessions_in(room))
    memory = room - sum(need.fixed.values())
    request = Request(
        session_id="",
        geometry=Geometry.of(ask.work.spec, ask.work.stream),
        first_geometry=Geometry.of_first(ask.work.spec, ask.work.stream),
        pace=Pace(fps=ask.work.stream.fps, chunk_frames=ask.work.chunk_frames),
        memory_bytes=sum(need.per_session.values()),
    )
    return AdmissionConfig(memory_bytes=memory) if memory > 0 else None, request


def record(outcome: FleetOutcome) -> dict[str, float]:
    """Numbers of a run, by what they are called."""
    metrics = outcome.metrics
    waits = outcome.waits_s
    return {
        "people who came": outcome.arrived,
        "placed": metrics.placed,
        "refused": metrics.refused,
        "gave up waiting": outcome.gave_up,
        "waited, share of those placed": sum(wait > 0 for wait in waits) / len(waits) if waits else 0.0,
        "wait, median s": quantile(waits, 0.5),
        "wait, 99% s": quantile(waits, 0.99),
        "longest wait, s": max(waits, default=0.0),
        "most sessions at a time": outcome.most_sessions,
        "most replicas at a time": outcome.most_replicas,
        "replicas that died": metrics.deaths,
        "sessions restored": metrics.restored,
        "restored where there was no room for their rate": metrics.yielded,
        "moves": metrics.moves,
        "chunks late": outcome.misses,
        "chunks late, of a million": 1e6 * (1 - outcome.continuity),
        "stood still, s": outcome.stalled_s,
        "stream-hours": outcome.stream_hours,
        "replica-hours": sum(pool.replica_hours for pool in metrics.pools.values()),
        "dollars": outcome.dollars,
        "dollars per stream-hour": outcome.dollars_per_stream_hour,
    }


def _run_trace(path: Path, *, as_json: bool) -> None:
    trace = read_trace(path)
    rows = compared(trace, simulate_trace(trace))
    if as_json:
        print(json.dumps({row.what: [row.simulated, row.recorded, row.off] for row in rows}, indent=2))
        return
    console = Console()
    console.print(
        f"{path}: {len(trace.arrivals)} people in {trace.seconds:g} s, through the same policy",
        highlight=False,
    )
    cells = {row.what: [row.simulated, row.recorded, 100 * row.off] for row in rows}
    _show(cells, ["", "simulated", "recorded", "off by, %"], console)


def _show(rows: dict[str, list[float]], heads: Sequence[str], console: Console) -> None:
    table = Table(*heads, box=None)
    for name, values in rows.items():
        table.add_row(name, *(f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" for value in values))
    console.print(table)


def _page(config: FleetConfig, day: Day, outcome: FleetOutcome, gpus: str, times: Times) -> str:
    """The day, and what the promise costs."""
    hours = [(at / 3600, placed, replicas) for at, placed, _, replicas in outcome.timeline]
    rates = {fps: run_day(config, day, gpus=gpus, times=times, fps=fps) for fps in RATES}
    warm = {count: run_day(config, day, gpus=gpus, times=times, warm=count) for count in WARM}
    by_rate = [(fps, each.dollars_per_stream_hour) for fps, each in rates.items()]
    by_wait = [(each.dollars_per_stream_hour, quantile(each.waits_s, 0.99)) for each in warm.values()]
    parts = [
        f"<h1>{config.path.name}</h1><p class=note>Simulated, not measured: {day.sessions:,} sessions at the "
        "peak.</p>",
        "<h2>The day</h2>",
        curves(
            {"sessions": [(hour, placed) for hour, placed, _ in hours]}, x_label="hour", y_label="sessions"
        ),
        curves(
            {"replicas": [(hour, replicas) for hour, _, replicas in hours]},
            x_label="hour",
            y_label="replicas",
        ),
        "<h2>What a promise costs</h2>",
        curves(
            {"dollars per stream-hour": by_rate},
            x_label="frames a second promised",
            y_label="dollars per stream-hour",
        ),
        curves({"99% wait": sorted(by_wait)}, x_label="dollars per stream-hour", y_label="99% wait, s"),
    ]
    return page(f"{config.path.name}: a day on paper", parts)
