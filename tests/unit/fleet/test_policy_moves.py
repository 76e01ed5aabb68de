"""Who moves: from a replica that is drained, slow or dead, and back from what was kept."""

from __future__ import annotations

import pytest

from millstream.core.keys import Key
from millstream.fleet.policy.types import Move, Place, StopReplica
from millstream.serving.admission_types import Queued, Refused
from tests.unit.fleet.small_fleets import LARGE, a_fleet, a_replica, a_request, of_kind, places


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
    assert [policy.move("a", target, 1.0) for target in ("r1", "r2", "gone")] == [[], [], []], (
        "full, there already, unknown"
    )
    assert policy.move("a", "r0", 1.0) == [Move(session_id="a", source="r2", target="r0", why="asked")]
    assert policy.move("a", "r0", 1.0) == [], "it is on its way"
    policy.moved("a", 2.0)
    assert (policy.place_of("a"), policy.metrics(2.0).moves) == ("r0", 1)


def test_who_has_nowhere_to_go_stays_until_there_is_room_and_goes_before_the_line() -> None:
    policy = a_fleet(2)
    places(policy, "a", "b", "c", "d", "waits")
    assert policy.drain("r0", 1.0) == []
    (move,) = policy.on_session_left("a", 2.0)
    assert isinstance(move, Move)
    assert move.source == "r0"


def test_sessions_of_a_dead_replica_are_restored_before_anybody_else() -> None:
    policy = a_fleet(2)
    assert places(policy, "a", "b", "c", "waits-1", "waits-2") == ["r1", "r1", "r0", "r0", None]
    assert policy.replica_gone("r1", 5.0) == [Place(session_id="a", replica_id="r0", restore=True)], (
        "at a quarter of its rate"
    )
    assert [each.session_id for each in policy.waiting(5.0)] == ["b", "waits-2"]
    assert policy.on_session_left("c", 6.0) == [Place(session_id="b", replica_id="r0", restore=True)]
    ready = policy.replica_ready(a_replica("r2"), 7.0)
    assert [each.session_id for each in ready if isinstance(each, Place | Move)] == ["a", "waits-2"], (
        "one yields no more"
    )


def test_who_comes_back_and_finds_no_room_for_its_rate_yields_until_there_is() -> None:
    policy = a_fleet(seconds=0.1, placement="pack")  # of which six fit
    assert places(policy, *"abcdefg") == ["r1"] * 6 + ["r0"]
    (back,) = of_kind(policy.replica_gone("r0", 1.0), Place)
    assert back == Place(session_id="g", replica_id="r1", restore=True)
    assert isinstance(policy.ask(a_request("new"), 1.0), Queued), "nobody new comes where somebody yields"
    (move, place) = policy.replica_ready(a_replica("r2", seconds=0.1), 2.0)
    assert isinstance(move, Move)
    assert (move.session_id, move.target) == ("g", "r2"), (
        "it is moved to the room that there is, before the line"
    )
    assert isinstance(place, Place)
    assert place.session_id == "new"
    policy.moved("g", 3.0)
    assert (policy.metrics(3.0).restored, policy.metrics(3.0).yielded) == (1, 1)
    assert of_kind(policy.scale(30.0), Move) == [], "there it has its own rate"


def test_those_who_come_back_share_what_is_free_down_to_a_quarter_of_their_rates_and_a_strict_one_has_its_own() -> (
    None
):
    policy = a_fleet(3, seconds=0.12, placement="pack")  # five fit on each, of 0.16
    small = dict(memory_bytes=0)
    assert places(policy, *"abcde", **small) == ["r2"] * 5
    assert places(policy, *"fghij", **small) == ["r1"] * 5
    assert places(policy, "strict", rate="strict", **small) == ["r0"]
    assert of_kind(policy.replica_gone("r0", 1.0), Place) == [], "0.1 is free on each"
    policy.on_session_left("a", 2.0)
    assert policy.place_of("strict") == "r2"
    for name in "bcd":
        policy.on_session_left(name, 2.0)
    back = of_kind(policy.replica_gone("r1", 3.0), Place)
    assert [place.session_id for place in back] == [*"fghij"], (
        "0.58 is free: three would fit, and all five share it"
    )
    assert policy.metrics(3.0).yielded == 2
    assert isinstance(policy.ask(a_request("new", **small), 4.0), Queued)
    for name in ("f", "g"):
        policy.on_session_left(name, 5.0)
    assert policy.place_of("new") is None, "it would have all that is left"
    policy.on_session_left("h", 6.0)
    assert policy.place_of("new") == "r2"


def test_a_session_that_was_kept_and_that_nobody_knows_of_comes_back_as_from_a_death() -> None:
    policy = a_fleet(1, seconds=0.1, placement="pack", keys={"team": Key(name="team", max_sessions=1)})
    places(policy, *"abcdef")
    places(policy, "waits")
    assert policy.came_back(a_request("back", key="team"), 1.0) == [
        Place(session_id="back", replica_id="r0", restore=True)
    ]
    assert policy.knows("back")
    (refused,) = policy.came_back(a_request("another", key="team"), 1.0)
    assert isinstance(refused, Refused)
    assert not policy.knows("another")


def test_a_gateway_that_restarts_counts_who_yields_at_its_own_rate() -> None:
    policy = a_fleet(0)
    policy.replica_ready(
        a_replica("r0", seconds=0.1), 0.0, [a_request(name, yields=name == "g") for name in "abcdefg"]
    )
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
    assert policy.on_declined("a", 1.0) == []
    assert policy.place_of("a") is None
    (place,) = policy.replica_changed(a_replica("r0"), 2.0)
    assert place == Place(session_id="a", replica_id="r0")


@pytest.mark.parametrize("why", ["declined", "drains"])
def test_who_waits_for_a_replica_that_takes_nobody_keeps_nobody_from_one_that_does(why: str) -> None:
    policy = a_fleet(0)
    policy.replica_ready(a_replica("fast", seconds=0.3), 0.0)
    policy.replica_ready(a_replica("slow", seconds=0.5), 0.0)
    assert places(policy, "a", "b", "c") == ["slow", "fast", "fast"]
    places(
        policy, "strict", now=1.0, geometry=LARGE, rate="strict"
    )  # a chunk takes longer than it plays on the slow one
    places(policy, "d", now=2.0)
    assert policy.on_session_left("a", 3.0) == [], "nobody overtakes while the fast one takes people"
    if why == "declined":
        policy.on_declined("b", 4.0)
    else:
        policy.drain("fast", 4.0)
    for name in "bc":
        policy.on_session_left(name, 5.0)
    assert policy.place_of("d") == "slow"
    policy.on_session_left("d", 6.0)
    assert places(policy, "e", now=6.0) == ["slow"], "nor does it keep out who comes now"
    policy.replica_ready(a_replica("another", seconds=0.3), 7.0)
    assert policy.place_of("strict") == "another"


def test_a_gateway_that_restarts_learns_from_its_replicas_who_is_where() -> None:
    policy = a_fleet(0, keys={"team": Key(name="team", max_sessions=1)})
    policy.replica_ready(a_replica("r0"), 0.0, [a_request("a", key="team"), a_request("b")])
    assert (policy.place_of("a"), policy.sessions_on("r0")) == ("r0", ("a", "b"))
    assert isinstance(policy.ask(a_request("c", key="team"), 0.0), Refused)
    assert isinstance(policy.ask(a_request("d"), 0.0), Queued)
