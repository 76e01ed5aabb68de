"""A fleet on paper: against queueing theory, against itself by way of a trace, and from the command line."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millstream.commands.main import app
from millstream.core.errors import TraceError
from millstream.fleet.day import Day, PoolKind, _arrivals, simulate
from millstream.fleet.policy.types import Pool
from millstream.fleet.replayed import compared, simulate_trace
from millstream.fleet.simulator import FleetOutcome
from millstream.fleet.trace import Drained, FleetSeen, FleetTrace, ReplicaLife, Times, read_trace, write_trace
from millstream.serving.admission_types import AdmissionConfig
from tests.unit.fleet.small_fleets import SMALL, a_request

RECORDED = Path(__file__).parents[2] / "fixtures" / "fleet_trace.json"
SLOTS = 5
CALM = dict(hours_between_deaths=None, hours_between_slow=None)
TIMES = Times(start_s=60, move_s=2, restore_s=8, scale_every_s=10)


def a_kind(**changes: Any) -> PoolKind:
    """Five sessions on a replica."""
    pool = Pool(**(dict(name="brook", model="brook", minimum=1, maximum=20, dollars_per_hour=2.0) | changes))
    return PoolKind(
        pool=pool, room=AdmissionConfig(memory_bytes=SLOTS), request=a_request("").request, chunk_s=0.02
    )


def erlang_c(servers: int, load: float) -> float:
    """The share that waits when `load` servers' worth of work comes to so many."""
    first = load**servers / math.factorial(servers) * servers / (servers - load)
    return first / (first + sum(load**n / math.factorial(n) for n in range(servers)))


def test_with_a_fixed_number_of_replicas_waits_are_those_of_queueing_theory() -> None:
    """M/M/c: ten places, nine of them wanted on average."""
    kind = a_kind(minimum=2, maximum=2)
    day = Day(sessions=9, night=1.0, stay_s=100, patience_s=1e6, seconds=150_000, **CALM)  # type: ignore[arg-type]
    outcome = simulate([kind], day, times=Times(scale_every_s=600), max_waiting=10_000)
    waits = outcome.waits_s
    assert abs(sum(wait > 0 for wait in waits) / len(waits) / erlang_c(10, 9) - 1) < 0.15
    assert abs(sum(waits) / len(waits) / (erlang_c(10, 9) * 100 / (10 - 9)) - 1) < 0.3
    assert (outcome.misses, outcome.metrics.moves, outcome.metrics.refused) == (0, 0, 0)
    assert outcome.dollars == pytest.approx(2 * 2.0 * 150_000 / 3600)
    assert outcome.most_replicas == 2, "those that were there from the start"


def a_day(**changes: Any) -> FleetOutcome:
    day = Day(**(dict(sessions=60, stay_s=600.0, seconds=43_200.0, hours_between_deaths=20.0) | changes))
    return simulate([a_kind(warm=1, idle_s=120)], day, times=TIMES)


def test_a_day_with_deaths_loses_nobody_and_comes_out_the_same_again() -> None:
    outcome = a_day()
    metrics = outcome.metrics
    assert metrics.deaths > 0
    assert metrics.restored > 0
    assert metrics.moves > 0
    pool = metrics.pools["brook"]
    assert outcome.arrived == metrics.placed + metrics.refused + outcome.gave_up + pool.waiting
    assert outcome.misses > 0
    assert outcome.continuity > 0.999
    assert outcome == a_day()
    assert outcome.waits_s != a_day(seed=1).waits_s


def test_more_warm_replicas_cost_more_and_fewer_wait() -> None:
    day = Day(sessions=60, night=0.0, stay_s=300, seconds=43_200, **CALM)  # type: ignore[arg-type]
    cold, warm = (simulate([a_kind(warm=count, idle_s=60)], day, times=TIMES) for count in (0, 3))
    assert warm.dollars_per_stream_hour > cold.dollars_per_stream_hour
    assert sum(warm.waits_s) < 0.2 * sum(cold.waits_s)


def a_trace() -> FleetTrace:
    """Trace of a fleet that was simulated, as if it had been recorded: three replicas, one of them killed,
    one drained."""
    day = Day(sessions=14, night=1.0, stay_s=200, patience_s=300, seconds=3600, **CALM)  # type: ignore[arg-type]
    kind = a_kind(minimum=3, maximum=3)
    lives = [
        ReplicaLife(
            replica_id=f"r{n}",
            pool="brook",
            node="a",
            room=kind.room,
            ready_at=at,
            killed_at=killed,
            chunk_s=[(SMALL, 0.02)],
        )
        for n, (at, killed) in enumerate(
            [(0.0, None), (0.0, 1000.0), (0.0, None), (1060.0, None), (2070.0, None)]
        )
    ]
    return FleetTrace(
        seconds=3600.0,
        pools=[kind.pool],
        arrivals=list(_arrivals([kind], day)),
        replicas=lives,
        drains=[Drained(at=2000.0, replica_id="r2")],
        times=TIMES,
        seen=FleetSeen(),
    )


def test_a_recorded_fleet_is_run_again_to_what_was_recorded(tmp_path: Path) -> None:
    trace = a_trace()
    outcome = simulate_trace(trace)
    metrics = outcome.metrics
    assert metrics.deaths == 1
    assert 1 <= metrics.restored <= SLOTS
    assert metrics.moves >= 1
    seen = FleetSeen(
        placed=metrics.placed,
        refused=metrics.refused,
        waits_s=outcome.waits_s,
        moves=metrics.moves,
        restored=metrics.restored,
        misses=outcome.misses,
    )
    path = tmp_path / "trace.json"
    write_trace(
        FleetTrace(**{name: getattr(trace, name) for name in trace.__struct_fields__} | {"seen": seen}), path
    )
    again = read_trace(path)
    assert [row.off for row in compared(again, simulate_trace(again))] == [0.0] * 6
    done = CliRunner().invoke(app, ["plan", "fleet", str(path), "--json"])
    assert {row[2] for row in json.loads(done.output).values()} == {0.0}


def test_a_real_fleet_of_three_replicas_comes_out_on_paper_as_it_was_recorded() -> None:
    """`python -m benchmarks.fleet --trace`: 30 people in two minutes on a busy machine, a replica killed and
    one drained."""
    trace = read_trace(RECORDED)
    assert len(trace.seen.waits_s) == 30
    assert min(sum(trace.seen.waits_s), trace.seen.moves, trace.seen.restored, trace.seen.misses) > 0
    off = {row.what: row.off for row in compared(trace, simulate_trace(trace))}
    assert max(off.values()) <= 0.15, off


@pytest.mark.parametrize(
    ("text", "said"), [("{}", "is not a fleet's trace: Object missing"), ("", "is not a fleet's trace")]
)
def test_what_is_not_a_trace_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(TraceError, match=said):
        read_trace(tmp_path / "trace.json")


def test_a_fleet_is_planned_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(
        "[replicas.brook]\nmodel = 'brook'\ngpus = 1\nmaximum = 9\nserve = { size = '128x128' }"
    )
    call = [
        "plan",
        "fleet",
        str(tmp_path / "fleet.toml"),
        "--gpus",
        "L4",
        "--sessions",
        "100",
        "--hours",
        "1",
    ]
    done = CliRunner().invoke(app, [*call, "--json"])
    numbers = json.loads(done.output)
    assert numbers["placed"] == numbers["people who came"] > 30
    assert 0 < numbers["dollars per stream-hour"] < 0.1
    assert "dollars per stream-hour" in CliRunner().invoke(app, call).output


def test_a_session_that_fits_on_no_replica_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text("[replicas.big]\nmodel = 'wan2.1-t2v-14b'\ngpus = 1\nmaximum = 9")
    done = CliRunner().invoke(app, ["plan", "fleet", str(tmp_path / "fleet.toml"), "--gpus", "RTX4090"])
    assert done.exit_code == 2
    assert "does not fit on local of RTX4090" in done.output.replace("\n", " ")


def test_the_slots_of_a_replica_are_those_its_admission_gives() -> None:
    assert a_kind().slots == SLOTS
    roomy = replace(a_kind(), room=AdmissionConfig(memory_bytes=100, share=0.9), chunk_s=0.3)
    assert roomy.slots == 2
