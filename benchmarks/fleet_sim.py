"""A day of a large fleet on paper, by the policy that runs real ones: cost, waits, misses, and what promises cost.

    python -m benchmarks.fleet_sim                    # 10,000 sessions over 500 replicas: results/fleet_sim.json
    python -m benchmarks.fleet_sim --docs             # and into docs/fleet.md, with docs/pictures/fleet-cost.png
    python -m benchmarks.fleet_sim --trace FILE       # a recorded small fleet against itself on paper: results/fleet_trace.json

Simulated, not measured: chunk times are the planner's. What is measured is how long the simulation takes. Loads no torch.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.pages import row as table_row
from benchmarks.pages import write_between
from benchmarks.report import write_report
from millstream.commands.plan.fleet import record, run_day
from millstream.fleet.config import FleetConfig, read_fleet
from millstream.fleet.day import Day
from millstream.fleet.replayed import compared, simulate_trace
from millstream.fleet.trace import Times, read_trace

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
size = "240x416"
window = 9
"""
TIMES = Times(start_s=120.0, move_s=1.0, restore_s=5.0, scale_every_s=10.0)
LARGE, SMALL = Day(sessions=10_000), Day(sessions=500)
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
    began, worked = time.perf_counter(), time.process_time()
    large = run_day(config, LARGE, gpus=GPUS, times=TIMES)
    took = {"wall_s": time.perf_counter() - began, "processor_s": time.process_time() - worked, "limit_s": LIMIT_S}
    return {
        "the_large_day": record(large),
        "it_took": took,
        "hours": [[at / 3600, placed, waiting, replicas] for at, placed, waiting, replicas in large.timeline[::6]],
        "by_rate": {fps: record(run_day(config, SMALL, gpus=GPUS, times=TIMES, fps=fps)) for fps in RATES},
        "by_warm": {warm: record(run_day(config, SMALL, gpus=GPUS, times=TIMES, warm=warm)) for warm in WARM},
        "by_placement": {name: record(run_day(the_fleet(name), SMALL, gpus=GPUS, times=TIMES)) for name in ("pack", "spread")},
    }


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
    return lines


def promise_table(found: dict[str, Any]) -> list[str]:
    lines = [
        f"| {SMALL.sessions} sessions at the peak | dollars per stream-hour | waited | 99% wait, s | gave up |",
        "|---|---|---|---|---|",
    ]
    rows = [(f"{fps:g} frames a second", each) for fps, each in found["by_rate"].items()]
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
    figure.savefig(path, dpi=130)


def held_against(path: Path) -> dict[str, Any]:
    trace = read_trace(path)
    rows = compared(trace, simulate_trace(trace))
    return {row.what: dict(simulated=row.simulated, recorded=row.recorded, off=row.off, near=row.off <= NEAR) for row in rows}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true", help="write the page and its picture")
    parser.add_argument("--trace", type=Path, help="a recorded fleet, instead")
    options = parser.parse_args(arguments)
    if options.trace is not None:
        write_report("fleet_trace", {"trace": options.trace.name}, held_against(options.trace))
        return
    found = simulated()
    configuration = {"fleet": FLEET, "gpus": GPUS, "large": asdict(LARGE), "small": asdict(SMALL)}
    write_report("fleet_sim", configuration, found)
    if options.docs:
        write_between(PAGE, "a day", table(found))
        write_between(PAGE, "promises", promise_table(found))
        draw(found, PICTURE)


if __name__ == "__main__":
    main()
