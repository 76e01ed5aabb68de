"""`millstream plan simulate`: a plan with people on it, beside what the closed formulas say. Loads no
torch."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from millstream.commands.plan.fleet import admission_of
from millstream.commands.plan.options import PlannedOptions
from millstream.core.errors import ConfigError
from millstream.fleet.day import slots_of
from millstream.planner.judge import Plan
from millstream.planner.search import largest, search
from millstream.planner.simulate import Outcome, Scenario, Simulation, quantile


def run_plan_simulate(options: PlannedOptions, scenario: Scenario, *, as_json: bool) -> None:
    plan = whole_fleet(options)
    if not plan.sessions_per_replica:
        raise ConfigError(f"no stream runs on {plan.layout}: {plan.shortfalls[0].said}")
    outcome = Simulation(plan, scenario, slots=admitted(plan)).run()
    if as_json:
        print(json.dumps(_record(plan, scenario, outcome), indent=2))
    else:
        show(plan, scenario, outcome, Console())


def whole_fleet(options: PlannedOptions) -> Plan:
    """The cheapest way to carry as many as these devices can."""
    ask = options.ask()
    found = largest(ask, "sessions", only=options.only)
    return found[1].best if found else search(ask, only=options.only).best


def admitted(plan: Plan) -> int:
    """Sessions that a replica's own admission lets in: it keeps a little of the device, so one fewer where a
    plan is full."""
    room, request = admission_of(plan)
    assert room is not None, f"{plan.layout} holds a session and has no memory for one"
    return slots_of(room, request, plan.time.busy_ms / 1e3)


def show(plan: Plan, scenario: Scenario, outcome: Outcome, console: Console) -> None:
    console.print(
        f"{plan.ask.work.spec.name} on {plan.replicas} x {plan.layout} of {plan.ask.fleet.name}: "
        f"{scenario.arrivals_per_minute:g} people a minute for {scenario.seconds / 60:g} minutes, each "
        "staying "
        f"{scenario.stay_s:g} s; simulated, not measured",
        highlight=False,
    )
    record = _record(plan, scenario, outcome)
    table = Table("", "simulated", "by formula", box=None)
    for name, (simulated, formula) in record["compared"].items():
        table.add_row(name, _plain(simulated), "" if formula is None else _plain(formula))
    console.print(table)
    if not outcome.complete:
        console.print(
            "ended early: more chunks than a simulation takes; ask for fewer minutes or people",
            highlight=False,
        )


def _plain(number: float) -> str:
    """Four digits, and as many more as a large number has."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def _record(plan: Plan, scenario: Scenario, outcome: Outcome) -> dict[str, Any]:
    """Formulas: Little's law for the people there, a chunk's media time for the interval, chunk times for the
    load."""
    capacity = plan.sessions_per_replica * plan.replicas
    offered = scenario.arrivals_per_minute / 60 * scenario.stay_s
    work = plan.ask.work
    load = min(offered, capacity) * plan.time.busy_ms / work.deadline_ms / plan.replicas
    compared: dict[str, tuple[float, float | None]] = {
        "people who came": (outcome.arrived, scenario.arrivals_per_minute * scenario.seconds / 60),
        "admitted": (outcome.admitted, None),
        "turned away": (outcome.turned_away, None),
        "in line at the end": (outcome.in_line, None),
        "at a time": (outcome.mean_sessions, min(offered, capacity)),
        "most at a time": (outcome.most_sessions, None),
        "chunks": (outcome.chunks, None),
        "in time, %": (100 * outcome.continuity, None),
        "interval, median ms": (quantile(outcome.intervals_ms, 0.5), work.deadline_ms),
        "interval, 99% ms": (quantile(outcome.intervals_ms, 0.99), None),
        "first frame, median ms": (quantile(outcome.first_frame_ms, 0.5), plan.time.first_frame_ms),
        "first frame, 99% ms": (quantile(outcome.first_frame_ms, 0.99), None),
        "busiest stage, %": (100 * outcome.busy_share, 100 * load),
        "failures": (outcome.failures, None),
    }
    return {
        "topology": str(plan.layout),
        "replicas": plan.replicas,
        "complete": outcome.complete,
        "compared": compared,
    }
