"""Who goes where, who waits and how many replicas there are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from millstream.core.errors import ConfigError
from millstream.core.keys import Key
from millstream.fleet.policy.fleet_policy import FleetPolicy
from millstream.fleet.policy.placement_table import PATIENCE_S, line_place
from millstream.fleet.policy.types import Decision, Move, Place, Pool, StartReplica, StopReplica
from millstream.serving.admission import Admission
from millstream.serving.admission_types import Admitted, Queued, Refused
from tests.unit.fleet.fleet_states import FleetStates
from tests.unit.fleet.small_fleets import (
    LARGE,
    MEMORY,
    OTHER,
    PACES,
    SMALL,
    a_fleet,
    a_replica,
    a_request,
    of_kind,
    places,
)

# --- one question, one answer


def test_packing_fills_a_replica_before_the_next_and_spreading_does_not() -> None:
    assert places(a_fleet(placement="pack"), "a", "b", "c") == ["r1", "r1", "r0"]
    assert places(a_fleet(placement="spread"), "a", "b", "c") == ["r0", "r1", "r0"]


def test_a_replica_that_has_the_graphs_is_preferred_and_so_is_the_version_that_is_deployed() -> None:
    policy = a_fleet(0, pool={"version": "2"})
    policy.replica_ready(a_replica("old", recorded=frozenset({SMALL})), 0.0)
    policy.replica_ready(a_replica("new", version="2"), 0.0)
    policy.replica_ready(a_replica("new-with-graphs", version="2", recorded=frozenset({SMALL})), 0.0)
    assert places(policy, "a", "b", "c", "d", "e") == ["new-with-graphs"] * 2 + ["new"] * 2 + ["old"]


def test_the_line_is_one_for_the_whole_fleet_and_its_positions_go_down() -> None:
    policy = a_fleet()
    places(policy, "a", "b", "c", "d", "e", "f")
    assert [(each.session_id, each.position) for each in policy.waiting(0.0)] == [("e", 1), ("f", 2)]
    assert policy.on_session_left("a", 60.0) == [Place(session_id="e", replica_id="r1")]
    (last,) = policy.waiting(60.0)
    assert (last.session_id, last.position, last.expected_wait_s) == ("f", 1, 15.0)


def test_who_weighs_less_stands_behind_but_not_for_ever() -> None:
    def place(name: str, since: float, weight: float = 1.0) -> object:
        return line_place(name, since=since, weight=weight, lost=False)

    light = place("light", 0.0, 0.5)
    assert place("soon", PATIENCE_S - 1) < light < place("late", PATIENCE_S + 1)  # type: ignore[operator]
    assert line_place("lost", since=1e6, weight=0.01, lost=True) < light  # type: ignore[operator]


def test_one_who_stood_in_the_line_of_a_gateway_that_is_gone_stands_where_it_stood() -> None:
    policy = a_fleet(0)
    policy.ask(a_request("came-now"), 100.0)
    answer = policy.ask(a_request("came-before"), 101.0, since=50.0)
    assert isinstance(answer, Queued)
    assert answer.position == 1


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (a_request("x", OTHER), "no replica of this fleet runs wan; it has brook"),
        (a_request("x", memory_bytes=MEMORY + 1), "no replica is large enough: needs"),
        (
            a_request("x", rate="strict", pace=PACES[0].at(240)),
            "no replica is large enough: needs 6.00 of the device",
        ),
        (a_request("x", may_wait=False), "all replicas are full: try again later"),
        (a_request("x", key="team"), "max-sessions of the key 'team' is 2, and all are open; end one first"),
    ],
)
def test_who_is_refused_is_told_why_in_one_line(asked: Any, reason: str) -> None:
    policy = a_fleet(1, keys={"team": Key(name="team", max_sessions=2)})
    places(policy, "a", "b", key="team")
    answer = policy.ask(asked, 0.0)
    assert isinstance(answer, Refused)
    assert answer.reason.startswith(reason)
    assert "\n" not in answer.reason


def test_a_full_line_refuses() -> None:
    policy = a_fleet(1, max_waiting=1)
    places(policy, "a", "b", "c")
    answer = policy.ask(a_request("d"), 0.0)
    assert isinstance(answer, Refused)
    assert answer.reason == "all replicas are full; all 1 places in line are taken: try again later"


SIZES = st.lists(
    st.tuples(st.sampled_from([SMALL, LARGE]), st.sampled_from(PACES), st.sampled_from([1, 3])),
    min_size=1,
    max_size=9,
)


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, seconds=st.sampled_from([0.05, 0.1, 0.2, 0.3]))
def test_one_replica_takes_whom_its_own_admission_would(sizes: list[Any], seconds: float) -> None:
    replica = a_replica("r0", seconds=seconds)
    policy = FleetPolicy([Pool(name="brook", model="brook")])
    policy.replica_ready(replica, 0.0)
    door = Admission(replica.room)
    for geometry, chunk_s in replica.chunk_s.items():
        door.times.add(geometry, chunk_s)
    for number, (geometry, pace, size) in enumerate(sizes):
        asked = a_request(f"s{number}", geometry, pace=pace, memory_bytes=size, may_wait=False)
        here = policy.ask(asked, 0.0)
        assert isinstance(here, Place) == isinstance(door.ask(asked.request, 0.0), Admitted)


# --- how many there are


def test_replicas_are_started_for_those_who_wait_and_given_back_when_nobody_needs_them() -> None:
    policy = a_fleet(1, pool={"idle_s": 100, "minimum": 1})
    places(policy, "a", "b", "c", "d", "e")
    assert len(of_kind(policy.scale(1.0), StartReplica)) == 2
    assert of_kind(policy.scale(2.0), StartReplica) == [], "they are on their way"
    policy.replica_ready(a_replica("r1"), 60.0)
    policy.replica_ready(a_replica("r2"), 60.0)
    assert policy.waiting(60.0) == ()
    for name in "abc":
        policy.on_session_left(name, 70.0)
    decisions: list[Decision] = []
    for now in range(70, 1500, 10):
        decisions += policy.scale(float(now))
        for stop in of_kind(decisions, StopReplica):
            policy.replica_gone(stop.replica_id, float(now))
        for move in of_kind(decisions, Move):
            decisions += policy.moved(move.session_id, float(now))
    assert policy.metrics(1500.0).pools["brook"].ready == 1
    assert sorted(policy.sessions_on(str(policy.place_of("d")))) == ["d", "e"]
    assert of_kind(decisions, StartReplica) == [], "it does not swing"


def test_warm_replicas_are_there_before_anybody_waits_and_a_line_that_may_be_starts_none() -> None:
    assert len(of_kind(a_fleet(0, pool={"warm": 2}).scale(0.0), StartReplica)) == 2
    patient = a_fleet(1, pool={"line": 2, "minimum": 1})
    places(patient, "a", "b", "c", "d")
    assert of_kind(patient.scale(0.0), StartReplica) == []
    places(patient, "e")
    assert len(of_kind(patient.scale(0.0), StartReplica)) == 1


def test_growth_is_met_before_there_is_a_line() -> None:
    policy = a_fleet(8, pool={"start_s": 60, "maximum": 50})
    started = 0
    for number in range(16):
        policy.ask(a_request(f"s{number}"), 10.0 * number)
        started += len(of_kind(policy.scale(10.0 * number), StartReplica))
    assert policy.waiting(160.0) == ()
    assert started >= 2, "in the minute that a start takes twelve more come"


def test_a_start_that_fails_is_tried_again_later_each_time() -> None:
    policy = a_fleet(0, pool={"minimum": 1})
    at = list[int]()
    for now in range(100):
        if of_kind(policy.scale(float(now)), StartReplica):
            at.append(now)
            policy.start_failed("brook", float(now))
    assert at == [0, 1, 3, 7, 15, 31, 63]


@pytest.mark.parametrize("surge", [0, 1])
def test_a_deploy_replaces_every_replica_one_by_one_and_cuts_nobody_off(surge: int) -> None:
    policy = a_fleet(3, pool={"minimum": 3, "maximum": 3, "surge": surge})
    places(policy, "a", "b", "c")
    todo = policy.deploy("brook", "2", 0.0)
    now = 0.0
    most = 3
    number = 3
    while todo or policy.metrics(now).pools["brook"].draining or now < 100:
        now += 1.0
        following: list[Decision] = policy.scale(now)
        for decision in todo:
            if isinstance(decision, StartReplica):
                following += policy.replica_ready(a_replica(f"r{number}", version=decision.version), now)
                number += 1
            elif isinstance(decision, Move):
                following += policy.moved(decision.session_id, now)
            elif isinstance(decision, StopReplica):
                assert policy.sessions_on(decision.replica_id) == ()
                following += policy.replica_gone(decision.replica_id, now)
        todo = following
        most = max(most, policy.metrics(now).pools["brook"].ready)
    assert sorted(policy.pools["brook"].rooms) == ["r3", "r4", "r5"]
    assert all(policy.place_of(name) in ("r3", "r4", "r5") for name in "abc")
    assert most <= 3 + surge
    assert policy.metrics(now).deaths == 0


def test_money_and_stream_hours_are_those_of_the_clock() -> None:
    policy = a_fleet(2, pool={"dollars_per_hour": 3.0})
    places(policy, "a", "b")
    policy.on_session_left("a", 1800.0)
    pool = policy.metrics(3600.0).pools["brook"]
    assert (pool.replica_hours, pool.dollars, pool.stream_hours) == (2.0, 6.0, 1.5)


def test_a_pool_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="got 3 to 2"):
        Pool(name="x", model="x", minimum=3, maximum=2)


class Drawn:
    """In place of hypothesis: what was drawn where the second book once disagreed."""

    def __init__(self, *values: Any) -> None:
        self.values = list(values)

    def draw(self, strategy: object) -> Any:
        return self.values.pop(0)


def test_the_second_book_lets_a_session_arrive_where_it_became_slow_while_it_moved() -> None:
    states: Any = FleetStates()
    states.begin(placement="pack")
    states.come(people=[{}] * 4)
    source, other = (name for name in sorted(states.replicas) if states.replicas[name].pool == "brook")
    source, other = (source, other) if source in states.at.values() else (other, source)
    states.drain(data=Drawn(source))
    assert set(states.moving.values()) == {other}
    states.slow_down(data=Drawn(other), seconds=0.6)
    states.die(data=Drawn(source))
    assert set(states.at.values()) == {other}
    states.teardown()


def test_the_second_book_lets_a_strict_one_wait_where_its_rate_cannot_be_kept() -> None:
    states: Any = FleetStates()
    states.begin(placement="pack")
    for name in sorted(name for name, replica in states.replicas.items() if replica.pool == "brook"):
        states.slow_down(data=Drawn(name), seconds=0.6)
    states.come(people=[dict(geometry=LARGE, rate="strict"), {}])
    assert sorted(place is None for place in states.at.values()) == [False, True], (
        "it waits for a large one, and holds up nobody"
    )
    states.everybody_is_somewhere()
    states.teardown()


def test_whatever_people_and_machines_do_promises_positions_and_quotas_hold() -> None:
    run_state_machine_as_test(
        FleetStates, settings=settings(max_examples=50, stateful_step_count=50, deadline=None)
    )
