"""Who goes where, who waits, who moves and how many replicas there are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from millstream.core.errors import ConfigError
from millstream.fleet.policy.fleet_policy import FleetPolicy
from millstream.fleet.policy.types import Decision, Move, Place, Pool, StartReplica, StopReplica
from millstream.fleet.policy.waiting_line import PATIENCE_S, line_place
from millstream.server.access.keys import Key
from millstream.serving.admission import Admission
from millstream.serving.admission_types import Admitted, Queued, Refused
from tests.unit.fleet.fleet_states import LARGE, MEMORY, OTHER, PACES, SMALL, FleetStates, a_replica, a_request


def a_fleet(replicas: int = 2, *, seconds: float = 0.3, pool: dict[str, Any] | None = None, **changes: Any) -> FleetPolicy:
    """Two sessions fit on a replica."""
    fields: dict[str, Any] = dict(name="brook", model="brook", minimum=0, maximum=8)
    policy = FleetPolicy([Pool(**(fields | (pool or {})))], **changes)
    for number in range(replicas):
        policy.replica_ready(a_replica(f"r{number}", seconds=seconds), 0.0)
    return policy


def places(policy: FleetPolicy, *names: str, now: float = 0.0, **changes: Any) -> list[str | None]:
    for name in names:
        policy.ask(a_request(name, **changes), now)
    return [policy.place_of(name) for name in names]


def of_kind(decisions: list[Decision], kind: type) -> list[Any]:
    return [decision for decision in decisions if isinstance(decision, kind)]


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
    assert policy.left("a", 60.0) == [Place(session_id="e", replica_id="r1")]
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
        (a_request("x", rate="strict", pace=PACES[0].at(240)), "no replica is large enough: needs 6.00 of the device"),
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
    st.tuples(st.sampled_from([SMALL, LARGE]), st.sampled_from(PACES), st.sampled_from([1, 3])), min_size=1, max_size=9
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


# --- moving


def test_draining_moves_everybody_then_stops_and_takes_nobody_meanwhile() -> None:
    policy = a_fleet(3)
    assert places(policy, "a", "b") == ["r2", "r2"]
    moves = policy.drain("r2", 1.0)
    assert [(move.session_id, move.source, move.target, move.why) for move in of_kind(moves, Move)] == [
        ("a", "r2", "r1", "drain"),
        ("b", "r2", "r1", "drain"),
    ]
    assert places(policy, "c") == ["r0"], "both places of who moves are held"
    assert policy.place_of("a") == "r2"
    assert policy.moved("a", 2.0) == []
    assert policy.moved("b", 2.0) == [StopReplica(replica_id="r2", why="drain")]
    assert policy.replica_gone("r2", 3.0) == []
    assert policy.metrics(3.0).deaths == 0


def test_somebody_may_say_where_a_session_goes_and_it_goes_where_it_fits() -> None:
    policy = a_fleet(3)
    assert places(policy, "a", "b", "c", "d") == ["r2", "r2", "r1", "r1"]
    assert [policy.move("a", target, 1.0) for target in ("r1", "r2", "gone")] == [[], [], []], "full, there already, unknown"
    assert policy.move("a", "r0", 1.0) == [Move(session_id="a", source="r2", target="r0", why="asked")]
    assert policy.move("a", "r0", 1.0) == [], "it is on its way"
    policy.moved("a", 2.0)
    assert (policy.place_of("a"), policy.metrics(2.0).moves) == ("r0", 1)


def test_who_has_nowhere_to_go_stays_until_there_is_room_and_goes_before_the_line() -> None:
    policy = a_fleet(2)
    places(policy, "a", "b", "c", "d", "waits")
    assert policy.drain("r0", 1.0) == []
    (move,) = policy.left("a", 2.0)
    assert isinstance(move, Move)
    assert move.source == "r0"


def test_sessions_of_a_dead_replica_are_restored_before_anybody_else() -> None:
    policy = a_fleet(2)
    assert places(policy, "a", "b", "c", "waits-1", "waits-2") == ["r1", "r1", "r0", "r0", None]
    assert policy.replica_gone("r1", 5.0) == [Place(session_id="a", replica_id="r0", restore=True)], "at a quarter of its rate"
    assert [each.session_id for each in policy.waiting(5.0)] == ["b", "waits-2"]
    assert policy.left("c", 6.0) == [Place(session_id="b", replica_id="r0", restore=True)]
    ready = policy.replica_ready(a_replica("r2"), 7.0)
    assert [each.session_id for each in ready if isinstance(each, Place | Move)] == ["a", "waits-2"], "one yields no more"


def test_who_comes_back_and_finds_no_room_for_its_rate_yields_until_there_is() -> None:
    policy = a_fleet(seconds=0.1, placement="pack")  # of which six fit
    assert places(policy, *"abcdefg") == ["r1"] * 6 + ["r0"]
    (back,) = of_kind(policy.replica_gone("r0", 1.0), Place)
    assert back == Place(session_id="g", replica_id="r1", restore=True)
    assert isinstance(policy.ask(a_request("new"), 1.0), Queued), "nobody new comes where somebody yields"
    (move, place) = policy.replica_ready(a_replica("r2", seconds=0.1), 2.0)
    assert isinstance(move, Move)
    assert (move.session_id, move.target) == ("g", "r2"), "it is moved to the room that there is, before the line"
    assert isinstance(place, Place)
    assert place.session_id == "new"
    policy.moved("g", 3.0)
    assert (policy.metrics(3.0).restored, policy.metrics(3.0).yielded) == (1, 1)
    assert of_kind(policy.scale(30.0), Move) == [], "there it has its own rate"


def test_those_who_come_back_share_what_is_free_down_to_a_quarter_of_their_rates_and_a_strict_one_has_its_own() -> None:
    policy = a_fleet(3, seconds=0.12, placement="pack")  # five fit on each, of 0.16
    small = dict(memory_bytes=0)
    assert places(policy, *"abcde", **small) == ["r2"] * 5
    assert places(policy, *"fghij", **small) == ["r1"] * 5
    assert places(policy, "strict", rate="strict", **small) == ["r0"]
    assert of_kind(policy.replica_gone("r0", 1.0), Place) == [], "0.1 is free on each"
    policy.left("a", 2.0)
    assert policy.place_of("strict") == "r2"
    for name in "bcd":
        policy.left(name, 2.0)
    back = of_kind(policy.replica_gone("r1", 3.0), Place)
    assert [place.session_id for place in back] == [*"fghij"], "0.58 is free: three would fit, and all five share it"
    assert policy.metrics(3.0).yielded == 2
    assert isinstance(policy.ask(a_request("new", **small), 4.0), Queued)
    for name in ("f", "g"):
        policy.left(name, 5.0)
    assert policy.place_of("new") is None, "it would have all that is left"
    policy.left("h", 6.0)
    assert policy.place_of("new") == "r2"


def test_a_session_that_was_kept_and_that_nobody_knows_of_comes_back_as_from_a_death() -> None:
    policy = a_fleet(1, seconds=0.1, placement="pack", keys={"team": Key(name="team", max_sessions=1)})
    places(policy, *"abcdef")
    places(policy, "waits")
    assert policy.came_back(a_request("back", key="team"), 1.0) == [Place(session_id="back", replica_id="r0", restore=True)]
    assert policy.knows("back")
    (refused,) = policy.came_back(a_request("another", key="team"), 1.0)
    assert isinstance(refused, Refused)
    assert not policy.knows("another")


def test_a_gateway_that_restarts_counts_who_yields_at_its_own_rate() -> None:
    policy = a_fleet(0)
    policy.replica_ready(a_replica("r0", seconds=0.1), 0.0, [a_request(name, yields=name == "g") for name in "abcdefg"])
    (move,) = of_kind(policy.replica_ready(a_replica("r1", seconds=0.1), 1.0), Move)
    assert move.session_id == "g"


def test_a_move_whose_source_dies_ends_where_it_was_going_and_one_whose_target_dies_where_it_was() -> None:
    policy = a_fleet(2)
    places(policy, "a")
    policy.drain("r1", 1.0)
    assert policy.replica_gone("r1", 2.0) == [Place(session_id="a", replica_id="r0", restore=True)]
    policy.replica_ready(a_replica("r2"), 3.0)
    policy.drain("r0", 4.0)
    assert policy.replica_gone("r2", 5.0) == []
    assert policy.place_of("a") == "r0"
    assert policy.moved("a", 6.0) == [], "a report that comes too late changes nothing"
    policy.replica_ready(a_replica("r3"), 20.0)
    assert policy.moved("a", 21.0, target="r2") == [], "nor does one of an earlier move"
    assert policy.place_of("a") == "r0"
    assert policy.moved("a", 22.0, target="r3") == [StopReplica(replica_id="r0", why="drain")]


def test_a_replica_that_becomes_too_slow_gives_as_many_away_as_it_must() -> None:
    policy = a_fleet(2, seconds=0.1)
    places(policy, "a", "b", "c", "d")
    policy.replica_changed(a_replica("r1", seconds=0.3), 1.0)
    moves = of_kind(policy.scale(2.0), Move)
    assert [(move.target, move.why) for move in moves] == [("r0", "hot")] * 2
    assert of_kind(policy.scale(3.0), Move) == [], "once is enough"


def test_a_replica_that_declines_is_not_asked_again_before_it_has_said_how_it_is() -> None:
    policy = a_fleet(1)
    places(policy, "a")
    assert policy.declined("a", 1.0) == []
    assert policy.place_of("a") is None
    (place,) = policy.replica_changed(a_replica("r0"), 2.0)
    assert place == Place(session_id="a", replica_id="r0")


@pytest.mark.parametrize("why", ["declined", "drains"])
def test_who_waits_for_a_replica_that_takes_nobody_keeps_nobody_from_one_that_does(why: str) -> None:
    policy = a_fleet(0)
    policy.replica_ready(a_replica("fast", seconds=0.3), 0.0)
    policy.replica_ready(a_replica("slow", seconds=0.5), 0.0)
    assert places(policy, "a", "b", "c") == ["slow", "fast", "fast"]
    places(policy, "strict", now=1.0, geometry=LARGE, rate="strict")  # a chunk takes longer than it plays on the slow one
    places(policy, "d", now=2.0)
    assert policy.left("a", 3.0) == [], "nobody overtakes while the fast one takes people"
    if why == "declined":
        policy.declined("b", 4.0)
    else:
        policy.drain("fast", 4.0)
    for name in "bc":
        policy.left(name, 5.0)
    assert policy.place_of("d") == "slow"
    policy.left("d", 6.0)
    assert places(policy, "e", now=6.0) == ["slow"], "nor does it keep out who comes now"
    policy.replica_ready(a_replica("another", seconds=0.3), 7.0)
    assert policy.place_of("strict") == "another"


def test_a_gateway_that_restarts_learns_from_its_replicas_who_is_where() -> None:
    policy = a_fleet(0, keys={"team": Key(name="team", max_sessions=1)})
    policy.replica_ready(a_replica("r0"), 0.0, [a_request("a", key="team"), a_request("b")])
    assert (policy.place_of("a"), policy.sessions_on("r0")) == ("r0", ("a", "b"))
    assert isinstance(policy.ask(a_request("c", key="team"), 0.0), Refused)
    assert isinstance(policy.ask(a_request("d"), 0.0), Queued)


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
        policy.left(name, 70.0)
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
    todo, now, most, number = policy.deploy("brook", "2", 0.0), 0.0, 3, 3
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
    policy.left("a", 1800.0)
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
    run_state_machine_as_test(FleetStates, settings=settings(max_examples=50, stateful_step_count=50, deadline=None))
