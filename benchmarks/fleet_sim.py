"""A day of a large fleet on paper, by the policy that runs real ones: cost, waits, misses, and what promises
cost.

    python -m benchmarks.fleet_sim                    # 10,000 sessions over 500 replicas: results/fleet_sim.json
    python -m benchmarks.fleet_sim --docs             # and into docs/fleet.md, with docs/pictures/fleet-cost.png
    python -m benchmarks.fleet_sim --trace FILE       # a recorded small fleet against itself on paper: results/fleet_trace.json

Simulated, not measured: chunk times are the planner's. What is measured is how long the simulation takes.
Loads no torch.
"""

from __future__ import annotations

import argparse
import itertools
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.pages import Tables, report_of, write_tables
from benchmarks.pages import row as table_row
from benchmarks.report import write_report
from millstream.commands.plan.fleet import kind_of_pool, record, run_day
from millstream.fleet.config import FleetConfig, read_fleet
from millstream.fleet.day import Day
from millstream.fleet.replayed import compared, simulate_trace
from millstream.fleet.trace import FleetTrace, Times, read_trace

PAGE = Path(__file__).parents[1] / "docs" / "fleet.md"
PICTURE = PAGE.parent / "pictures" / "fleet-cost.png"
GPUS = "B200"
FLEET = """
placement = "pack"
max-waiting = 500
[replicas.wan]
model = "wan2.1-t2v-1.3b"
gpus = 1
minimum = 4
maximum = 600
warm = 2
[replicas.wan.serve]
size = "272x464"
window = 9
"""
TIMES = Times(start_s=120.0, move_s=1.0, restore_s=5.0, scale_every_s=10.0)
LARGE = Day(sessions=10_000)
SMALL = Day(sessions=500)
RATES = (8.0, 12.0, 16.0, 20.0, 24.0)
WARM = (0, 1, 2, 3, 4, 6, 8)
LIMIT_S = 60.0
"""The large day takes less."""
NEAR = 0.15
"""How far waits, moves and misses of a trace may be off."""


def the_fleet(placement: str = "pack") -> FleetConfig:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.toml"
        path.write_text(FLEET.replace("pack", placement))
        return read_fleet(path)


def simulated() -> dict[str, Any]:
    config = the_fleet()
    began = time.perf_counter()
    worked = time.process_time()
    large = run_day(config, LARGE, gpus=GPUS, times=TIMES)
    took = {
        "wall_s": time.perf_counter() - began,
        "processor_s": time.process_time() - worked,
        "limit_s": LIMIT_S,
    }
    return {
        "the_large_day": record(large),
        "it_took": took,
        "hours": [
            [at / 3600, placed, waiting, replicas] for at, placed, waiting, replicas in large.timeline[::6]
        ],
        "regions": regions(),
        "by_rate": {fps: record(run_day(config, SMALL, gpus=GPUS, times=TIMES, fps=fps)) for fps in RATES},
        "by_warm": {warm: record(run_day(config, SMALL, gpus=GPUS, times=TIMES, warm=warm)) for warm in WARM},
        "by_placement": {
            name: record(run_day(the_fleet(name), SMALL, gpus=GPUS, times=TIMES))
            for name in ("pack", "spread")
        },
    }


REGIONS = {"Virginia": (38.9, -77.4), "Frankfurt": (50.1, 8.7), "Singapore": (1.35, 103.8)}
"""Where people and machines are: latitude and longitude."""
FIBRE_KM_S = 200_000.0
DETOUR = 1.5
EARTH_KM = 6371.0
"""Light in fibre, and how much longer its way is than the great circle."""
BETWEEN_GBIT_S = 10.0
WITHIN_GBIT_S = 100.0
"""Bandwidth between two regions, and of a machine's own link."""


def regions() -> dict[str, Any]:
    """Three regions whose evenings are eight hours apart, each by itself, against one pool that follows the
    sun."""
    config = the_fleet()
    one = Day(sessions=1000)
    flat = (
        len(REGIONS) * one.sessions * (1 + one.night) / 2
    )  # three evenings eight hours apart add up to a constant
    apart = record(run_day(config, one, gpus=GPUS, times=TIMES))
    together = record(run_day(config, Day(sessions=round(flat), night=1.0), gpus=GPUS, times=TIMES))
    kind = kind_of_pool(config, "wan", GPUS, share=1.0)
    session = kind.request
    replica_gbit = 8e-9 * kind.slots * kind.request.memory_bytes
    state_gbit = 8e-9 * session.memory_bytes
    return {
        "round_trip_ms": {
            f"{a}-{b}": round_trip_ms(REGIONS[a], REGIONS[b]) for a, b in itertools.combinations(REGIONS, 2)
        },
        "lead_s": session.pace.max_ahead_s,
        "replicas_at_most": {
            "each_by_itself": 3 * apart["most replicas at a time"],
            "one": together["most replicas at a time"],
        },
        "replica_hours": {"each_by_itself": 3 * apart["replica-hours"], "one": together["replica-hours"]},
        "dollars_per_stream_hour": {
            name: each["dollars per stream-hour"] for name, each in (("each", apart), ("one", together))
        },
        "state_mb": 1e-6 * session.memory_bytes,
        "state_travels_s": {"within": state_gbit / WITHIN_GBIT_S, "between": state_gbit / BETWEEN_GBIT_S},
        "kept_every_chunks": {
            "within": math.ceil(replica_gbit / (BETWEEN_GBIT_S * session.pace.media_s)),
            "between": math.ceil(one.sessions * state_gbit / (BETWEEN_GBIT_S * session.pace.media_s)),
        },
        "chunk_s": kind.chunk_s,
    }


def round_trip_ms(a: tuple[float, float], b: tuple[float, float]) -> float:
    (lat, lon), (other_lat, other_lon) = (tuple(map(math.radians, place)) for place in (a, b))
    chord = (
        math.sin((other_lat - lat) / 2) ** 2
        + math.cos(lat) * math.cos(other_lat) * math.sin((other_lon - lon) / 2) ** 2
    )
    return 2e3 * DETOUR * 2 * EARTH_KM * math.asin(math.sqrt(chord)) / FIBRE_KM_S


def regions_table(found: dict[str, Any]) -> list[str]:
    each = found["regions"]
    most = each["replicas_at_most"]
    hours = each["replica_hours"]
    cost = each["dollars_per_stream_hour"]
    kept = each["kept_every_chunks"]
    trips = ", ".join(f"{name} {ms:.0f} ms" for name, ms in each["round_trip_ms"].items())
    return [
        "| three regions of 1,000 sessions at their peaks | each by itself | one pool |",
        "|---|---|---|",
        table_row(["replicas at most", f"{most['each_by_itself']:.0f}", f"{most['one']:.0f}"]),
        table_row(["replica-hours a day", f"{hours['each_by_itself']:,.0f}", f"{hours['one']:,.0f}"]),
        table_row(["dollars per stream-hour, paid by the hour", f"{cost['each']:.3f}", f"{cost['one']:.3f}"]),
        table_row(["round trip", "none", trips]),
        table_row(
            [
                f"a session's state, {each['state_mb']:.0f} MB, travels",
                f"{each['state_travels_s']['within']:.2f} s",
                f"{each['state_travels_s']['between']:.2f} s",
            ]
        ),
        table_row(
            [
                "10 Gbit/s suffice to keep all states every",
                f"{kept['within']} chunks, of a replica",
                f"{kept['between']:,} chunks, of a region",
            ]
        ),
    ]


SHOWN = (
    "people who came", "most sessions at a time", "most replicas at a time", "gave up waiting", "wait, 99% s",
    "longest wait, s", "replicas that died", "sessions restored", "moves", "chunks late, of a million", "stream-hours",
    "dollars per stream-hour",
)  # fmt: skip


def table(found: dict[str, Any]) -> list[str]:
    lines = [f"| {LARGE.sessions:,} sessions at the peak | a day |", "|---|---|"]
    for name in SHOWN:
        value = found["the_large_day"][name]
        lines.append(table_row([name, f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"]))
    return [
        *lines,
        table_row(["simulated in, seconds of one core", f"{found['it_took']['processor_s']:.0f}"]),
    ]


def promise_table(found: dict[str, Any]) -> list[str]:
    lines = [
        f"| {SMALL.sessions} sessions at the peak | dollars per stream-hour | waited | 99% wait, s | gave up |",
        "|---|---|---|---|---|",
    ]
    rows = [(f"{float(fps):g} frames a second", each) for fps, each in found["by_rate"].items()]
    rows += [(f"{warm} warm", each) for warm, each in found["by_warm"].items()]
    rows += list(found["by_placement"].items())
    for name, each in rows:
        waited = f"{100 * each['waited, share of those placed']:.2g}%"
        cells = [
            f"{each['dollars per stream-hour']:.3f}",
            waited,
            f"{each['wait, 99% s']:.3g}",
            f"{each['gave up waiting']:.0f}",
        ]
        lines.append(table_row([name, *cells]))
    return lines


def draw(found: dict[str, Any], path: Path) -> None:
    """Cost against the rate that is promised, and against how many wait."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    rate, wait = figure.subplots(1, 2)
    costs = [each["dollars per stream-hour"] for each in found["by_rate"].values()]
    rate.plot(list(map(float, found["by_rate"])), costs, marker="o")
    rate.set(xlabel="frames a second promised", ylabel="dollars per stream-hour", title="a frame rate")
    rate.set_ylim(bottom=0)
    for warm, each in found["by_warm"].items():
        point = (100 * each["waited, share of those placed"], each["dollars per stream-hour"])
        wait.plot(*point, "o", color="#3b6ea5")
        wait.annotate(f"{warm} warm", point, textcoords="offset points", xytext=(6, 4), fontsize=8)
    wait.set(xlabel="share of people who wait, %", ylabel="dollars per stream-hour", title="no waiting")
    wait.margins(0.12)
    figure.savefig(path, dpi=130)


def measured() -> dict[str, Any]:
    """The result that is there."""
    found: dict[str, Any] = report_of("fleet_sim")["measured"]
    return found


def held_table() -> list[str]:
    report = report_of("fleet_trace")
    configuration = report["configuration"]
    title = f"{configuration['visits']} visits in {configuration['seconds']:.0f} s, three replicas"
    rows = [
        [what, f"{each['recorded']:,.4g}", f"{each['simulated']:,.4g}"]
        for what, each in report["measured"].items()
    ]
    return [f"| {title} | recorded | simulated |", "|---|---|---|", *map(table_row, rows)]


TABLES: Tables = {
    "held": held_table,
    "a day": lambda: table(measured()),
    "promises": lambda: promise_table(measured()),
    "regions": lambda: regions_table(measured()),
}


def held_against(trace: FleetTrace) -> dict[str, Any]:
    rows = compared(trace, simulate_trace(trace))
    return {
        row.what: dict(simulated=row.simulated, recorded=row.recorded, off=row.off, near=row.off <= NEAR)
        for row in rows
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--docs", action="store_true", help="write the page and its picture")
    parser.add_argument("--trace", type=Path, help="a recorded fleet, instead")
    options = parser.parse_args(arguments)
    if options.trace is not None:
        trace = read_trace(options.trace)
        configuration = {"trace": options.trace.name, "seconds": trace.seconds, "visits": len(trace.arrivals)}
        write_report("fleet_trace", configuration | {"may_be_off": NEAR}, held_against(trace))
        if options.docs:
            write_tables(PAGE, {"held": held_table})
        return
    configuration = {"fleet": FLEET, "gpus": GPUS, "large": asdict(LARGE), "small": asdict(SMALL)}
    write_report("fleet_sim", configuration, simulated())
    if options.docs:
        write_tables(PAGE, TABLES)
        draw(measured(), PICTURE)


if __name__ == "__main__":
    main()
