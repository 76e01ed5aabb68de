"""The simulation against the closed formulas, and where formulas have nothing to say."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from millstream.commands.main import app
from millstream.commands.plan.options import PlanOptions
from millstream.commands.plan.simulate import admitted
from millstream.core.topology import Topology
from millstream.planner import simulate
from millstream.planner.judge import Plan, judge
from millstream.planner.simulate import Scenario, Simulation, quantile, stage_seconds

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def machine_that_was_never_measured(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLSTREAM_HOME", str(tmp_path_factory.mktemp("home")))
        yield


def plan(gpus: str, topology: str, sessions: int = 1, **changes: object) -> Plan:
    on: dict[str, Any] = dict(model="wan2.1-t2v-1.3b", gpus=gpus, software="compiled", window=9)
    return judge(PlanOptions(sessions=sessions, **on | changes).ask(), Topology.parse(topology))


def crowd(**changes: object) -> Scenario:
    values: dict[str, object] = dict(arrivals_per_minute=600, stay_s=1e5, seconds=300, spread=0.0)
    return Scenario(**values | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("topology", ["local", "front+1", "front+pp2", "front+tp2"])
def test_as_many_sessions_as_the_formula_allows_are_late_once_at_most_while_they_arrive(
    topology: str,
) -> None:
    one = plan("4xH200", topology)
    outcome = Simulation(one, crowd(max_waiting=0)).run()
    assert outcome.most_sessions == one.sessions_per_replica * one.replicas
    assert outcome.late <= outcome.most_sessions
    assert quantile(outcome.intervals_ms, 0.5) == pytest.approx(one.ask.work.deadline_ms, rel=0.01)


@pytest.mark.parametrize("topology", ["local", "front+1"])
def test_the_busiest_stage_is_as_busy_as_the_formula_says(topology: str) -> None:
    one = plan("2xH200", topology)
    outcome = Simulation(one, crowd()).run()
    predicted = one.sessions_per_replica * one.time.busy_ms / one.ask.work.deadline_ms
    assert outcome.busy_share == pytest.approx(predicted, rel=0.05)


def test_more_sessions_than_the_formula_allows_are_late_and_slow_to_its_period() -> None:
    one = plan("1xH200", "local")
    outcome = Simulation(one, crowd(), slots=one.sessions_per_replica + 1).run()
    assert outcome.late > 0.9 * outcome.chunks
    period = (one.sessions_per_replica + 1) * one.time.period_ms
    assert sum(outcome.intervals_ms) / len(outcome.intervals_ms) == pytest.approx(period, rel=0.05)


def test_a_replica_admits_what_its_server_would() -> None:
    """Where chunks would fill more than the share that a server gives away, one session fewer than the
    formula."""
    easy = plan("1xH200", "local")
    assert admitted(easy) == easy.sessions_per_replica == 2
    fps = 1e3 * easy.ask.work.chunk_frames / (2 * easy.time.busy_ms) * 0.99
    full = plan("1xH200", "local", fps=fps)
    assert full.sessions_per_replica == 2
    assert admitted(full) == 1


def test_stages_add_up_to_the_plans_times() -> None:
    apart = plan("5xH200", "front+pp4")
    together = plan("1xH200", "local")
    assert sum(stage_seconds(apart)[:-1]) == pytest.approx(apart.time.mesh_ms / 1e3)
    assert stage_seconds(together) == [pytest.approx(together.time.period_ms / 1e3)]


def test_the_people_there_are_arrivals_times_stay() -> None:
    carrying = plan("200xH200", "local", sessions=10_000)
    scenario = Scenario(arrivals_per_minute=60, stay_s=60, seconds=600)
    outcome = Simulation(carrying, scenario).run()
    chunks = 600 / (carrying.ask.work.deadline_ms / 1e3) * 60
    assert outcome.turned_away == 0
    assert outcome.chunks == pytest.approx(chunks, rel=0.2)
    assert outcome.mean_sessions == pytest.approx(60, rel=0.2)


def test_a_first_picture_that_nothing_waits_for_comes_when_the_formula_says() -> None:
    carrying = plan("200xH200", "local", sessions=10_000)
    outcome = Simulation(carrying, Scenario(arrivals_per_minute=60, stay_s=20, seconds=120)).run()
    assert quantile(outcome.first_frame_ms, 0.5) == pytest.approx(carrying.time.first_frame_ms, rel=0.03)


def test_a_full_line_turns_people_away_and_nobody_is_lost() -> None:
    outcome = Simulation(plan("1xH200", "local"), crowd(stay_s=20, max_waiting=3)).run()
    assert outcome.turned_away > 0
    assert outcome.arrived - outcome.admitted - outcome.turned_away == outcome.in_line <= 3


def test_a_failed_replica_makes_its_viewers_wait_and_then_goes_on() -> None:
    steady = plan("1xH200", "local")
    calm = Simulation(steady, crowd()).run()
    broken = Simulation(steady, crowd(hours_between_failures=0.02, recovery_s=10)).run()
    assert broken.failures > 0
    assert broken.late > calm.late == 0
    assert max(broken.intervals_ms) > 9000
    assert broken.chunks > 0.5 * calm.chunks


def test_jitter_makes_the_slowest_interval_longer_not_the_middle_one() -> None:
    still, shaky = (Simulation(plan("1xH200", "local"), crowd(spread=spread)).run() for spread in (0.0, 0.1))
    assert quantile(shaky.intervals_ms, 0.99) > quantile(still.intervals_ms, 0.99)
    assert quantile(shaky.intervals_ms, 0.5) == pytest.approx(quantile(still.intervals_ms, 0.5), rel=0.05)


@settings(max_examples=10)
@given(seed=st.integers(0, 2**31))
def test_the_same_seed_gives_the_same_run(seed: int) -> None:
    runs = [
        Simulation(plan("2xH200", "local"), Scenario(arrivals_per_minute=6, seconds=60, seed=seed)).run()
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_samples_and_chunks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "MAX_SAMPLES", 10)
    monkeypatch.setattr(simulate, "MAX_CHUNKS", 50)
    outcome = Simulation(plan("1xH200", "local"), crowd()).run()
    assert len(outcome.intervals_ms) == 10
    assert outcome.chunks == 50
    assert not outcome.complete


def test_thousands_of_sessions_on_hundreds_of_replicas_are_simulated_in_seconds() -> None:
    fleet = plan("600xH200", "local", sessions=1200)
    begin = time.process_time()
    outcome = Simulation(
        fleet, Scenario(arrivals_per_minute=60_000, stay_s=600, seconds=60, hours_between_failures=24)
    ).run()
    assert outcome.most_sessions >= 1000
    assert time.process_time() - begin < 20


def test_people_and_programs_see_the_same_run(tmp_path: Path) -> None:
    words = [
        "plan",
        "simulate",
        "--gpus",
        "2xH200",
        "--minutes",
        "1",
        "--software",
        "compiled",
        "--arrivals",
        "20",
    ]
    shown = CliRunner().invoke(app, words)
    record = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert shown.exit_code == 0
    assert str(record["compared"]["chunks"][0]) in shown.stdout


def test_a_long_wait_is_not_written_as_a_power_of_ten() -> None:
    said = (
        CliRunner()
        .invoke(app, ["plan", "simulate", "--gpus", "1xH100", "--minutes", "5", "--arrivals", "30"])
        .stdout
    )
    assert "first frame" in said
    assert "e+0" not in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--arrivals", "0"], "must be above 0"),
        (["--minutes", "nan"], "must be above 0"),
        (["--spread", "2"], "spread of 0 to 1"),
        (["--failures", "0"], "must be above 0"),
        (["--gpus", "RTX4090", "--fps", "60"], "no stream runs on local"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["plan", "simulate", *words])
    assert result.exit_code == 2
    assert said in result.stderr
