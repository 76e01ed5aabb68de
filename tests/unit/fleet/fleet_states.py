"""People, replicas and machines at random around a fleet's policy, and a second book kept from its decisions
alone.

Whatever happens, nobody is promised more than a replica has, everybody is somewhere, positions are true and
quotas hold.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.core.keys import Key
from millstream.fleet.policy.fleet_policy import FleetPolicy
from millstream.fleet.policy.types import (
    Decision,
    FleetRequest,
    Move,
    Place,
    Placement,
    Pool,
    Replica,
    StartReplica,
    StopReplica,
)
from millstream.serving.admission_types import Queued, Refused
from tests.unit.fleet.small_fleets import (
    LARGE,
    MAX_WAITING,
    MEMORY,
    OTHER,
    PACES,
    QUOTA,
    SHARE,
    SMALL,
    a_replica,
    a_request,
)

PERSON = st.fixed_dictionaries(
    {},
    optional=dict(
        geometry=st.sampled_from([SMALL, LARGE, OTHER]),
        pace=st.sampled_from(PACES),
        key=st.sampled_from(["", "", "team"]),
        weight=st.sampled_from([0.5, 0.1]),
        memory_bytes=st.sampled_from([1, 1, 2, 3, MEMORY, MEMORY + 1]),
        may_wait=st.sampled_from([True, True, False]),
        rate=st.sampled_from(["asked", "asked", "strict"]),
    ),
)


class FleetStates(RuleBasedStateMachine):
    @initialize(placement=st.sampled_from(["pack", "spread"]))
    def begin(self, placement: Placement) -> None:
        pools = [
            Pool(name="brook", model="brook", minimum=2, maximum=4, idle_s=20, start_s=10),
            Pool(name="big", model="brook", minimum=0, maximum=1, idle_s=20, start_s=10),
            Pool(name="wan", model="wan", minimum=1, maximum=2, surge=0, idle_s=20, start_s=10),
        ]
        self.policy = FleetPolicy(
            pools,
            keys={"team": Key(name="team", max_sessions=QUOTA)},
            placement=placement,
            max_waiting=MAX_WAITING,
        )
        self.now = 0.0
        self.number = 0
        self.asked: dict[str, FleetRequest] = {}
        self.at: dict[str, str | None] = {}
        """Where each session is, by the decisions; None in line."""
        self.moving: dict[str, str] = {}
        self.replicas: dict[str, Replica] = {}
        self.draining: set[str] = set()
        self.starting: list[StartReplica] = []
        self.lost: set[str] = set()
        self.restored: set[str] = set()
        """Who had its place after a death."""
        self.yielding: set[str] = set()
        """Who of them may have less than its rate."""
        self.following = False
        """Whether decisions are being followed; still so where one of them was wrong."""
        self.follow(self.policy.scale(self.now), None)
        for _ in tuple(self.starting):
            order = self.starting.pop()
            replica = a_replica(self.name(), order.pool, seconds=0.1)
            self.replicas[replica.replica_id] = replica
            self.policy.replica_ready(replica, self.now)

    def name(self) -> str:
        self.number += 1
        return f"n{self.number:04}"

    # What happens

    @rule(people=st.lists(PERSON, min_size=1, max_size=5))
    def come(self, people: list[dict[str, Any]]) -> None:
        for person in people:
            self.ask(a_request(self.name(), **person))

    def ask(self, asked: FleetRequest) -> None:
        open_before = sum(each.key == "team" for each in self.asked.values())
        answer = self.policy.ask(asked, self.now)
        if isinstance(answer, Refused):
            assert answer.reason
            return
        assert asked.key != "team" or open_before < QUOTA
        assert asked.request.may_wait or isinstance(answer, Place)
        self.asked[asked.session_id], self.at[asked.session_id] = asked, None
        if isinstance(answer, Queued):
            (place,) = [each for each in self.policy.waiting(self.now) if each.session_id == asked.session_id]
            assert place.position == answer.position
        else:
            self.follow([answer], {})

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(sorted(self.asked)))
        line = self.line()
        self.forget(session)
        self.follow(self.policy.on_session_left(session, self.now), line)

    @precondition(lambda self: self.starting)
    @rule(data=st.data(), seconds=st.sampled_from([0.1, 0.3, 0.5]), fails=st.integers(0, 6))
    def start(self, data: st.DataObject, seconds: float, fails: int) -> None:
        order = self.starting.pop(data.draw(st.integers(0, len(self.starting) - 1)))
        if fails == 0:
            self.policy.start_failed(order.pool, self.now)
            return
        replica = a_replica(self.name(), order.pool, seconds=seconds, version=order.version)
        line = self.line()
        self.replicas[replica.replica_id] = replica
        self.follow(self.policy.replica_ready(replica, self.now), line)

    @precondition(lambda self: len(self.replicas) > 2)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.replicas)))
        line = self.line()
        del self.replicas[name]
        for session, place in list(self.at.items()):
            if self.moving.get(session) == name:
                del self.moving[session]
            elif place == name and session not in self.moving:
                self.at[session] = None
                self.lost.add(session)
                self.yielding.discard(session)
        self.follow(self.policy.replica_gone(name, self.now), line)

    @precondition(lambda self: self.replicas)
    @rule(data=st.data(), seconds=st.sampled_from([0.1, 0.3, 0.6]))
    def slow_down(self, data: st.DataObject, seconds: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.replicas)))
        old = self.replicas[name]
        self.replicas[name] = replace(old, chunk_s=a_replica(name, old.pool, seconds=seconds).chunk_s)
        line = self.line()
        self.follow(self.policy.replica_changed(self.replicas[name], self.now), line)

    @precondition(lambda self: self.moving)
    @rule(data=st.data(), ends=st.sampled_from(["well", "well", "badly", "lost"]))
    def end_move(self, data: st.DataObject, ends: str) -> None:
        session = data.draw(st.sampled_from(sorted(self.moving)))
        line = self.line()
        target = self.moving.pop(session)
        if ends == "well":
            self.at[session] = target
            self.yielding.discard(session)
            self.follow(self.policy.moved(session, self.now), line)
            return
        if ends == "lost":
            self.at[session] = None
            self.lost.add(session)
            self.yielding.discard(session)
        self.follow(self.policy.move_failed(session, self.now, lost=ends == "lost"), line)

    @precondition(lambda self: len(self.replicas) > 2)
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.replicas)))
        line = self.line()
        self.draining.add(name)
        self.follow(self.policy.drain(name, self.now), line)

    @precondition(lambda self: self.asked and self.replicas)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        """Somebody wants it."""
        session, target = (data.draw(st.sampled_from(sorted(names))) for names in (self.asked, self.replicas))
        self.follow(self.policy.move(session, target, self.now), None)

    @precondition(
        lambda self: any(place and session not in self.moving for session, place in self.at.items())
    )
    @rule(data=st.data())
    def decline(self, data: st.DataObject) -> None:
        here = sorted(session for session, place in self.at.items() if place and session not in self.moving)
        session = data.draw(st.sampled_from(here))
        self.at[session] = None
        self.yielding.discard(session)
        if session in self.restored:
            self.lost.add(session)
        self.follow(self.policy.on_declined(session, self.now), None)

    @rule(pool=st.sampled_from(["brook", "wan"]), version=st.sampled_from(["1", "2"]))
    def deploy(self, pool: str, version: str) -> None:
        line = self.line()
        self.follow(self.policy.deploy(pool, version, self.now), line)
        self.regain()

    @rule(seconds=st.sampled_from([1.0, 10.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        line = self.line()
        self.follow(self.policy.scale(self.now), line)
        self.regain()

    def regain(self) -> None:
        """Where everybody can have their rate, nobody yields any more."""
        self.yielding = {session for session in self.yielding if not self.promises(self.at[session] or "")}

    # The second book

    def forget(self, session: str) -> None:
        del self.asked[session], self.at[session]
        self.moving.pop(session, None)
        self.lost.discard(session)
        self.yielding.discard(session)

    def line(self) -> dict[str, list[str]]:
        """Who stands where now, by model."""
        lines: dict[str, list[str]] = {}
        for place in self.policy.waiting(self.now):
            lines.setdefault(self.asked[place.session_id].model, []).append(place.session_id)
        return lines

    def follow(self, decisions: list[Any], line: dict[str, list[str]] | None) -> None:
        """Do as is decided, and look at each. `line` is who stood there before: from it people come in their
        order."""
        queues = {
            model: [name for name in names if name in self.asked] for model, names in (line or {}).items()
        }
        outer = self.following
        self.following = True
        for decision in decisions:
            session = getattr(decision, "session_id", "")
            for names in queues.values():
                if session in names and isinstance(decision, Place | Refused):
                    new = [name for name in names if name not in self.lost and self.could_go(name)]
                    assert isinstance(decision, Refused) or session in self.lost or session == new[0], (
                        "nobody overtakes"
                    )
                    names.remove(session)
            self.do(decision)
            if isinstance(decision, Place):
                (self.restored.add if decision.restore else self.restored.discard)(session)
                self.lost.discard(session)
        self.following = outer

    def do(self, decision: Decision) -> None:
        if isinstance(decision, Place):
            assert (
                decision.restore == (decision.session_id in self.lost) or decision.session_id in self.moving
            )
            if decision.session_id in self.moving:
                self.yielding.discard(decision.session_id)
                assert self.moving.pop(decision.session_id) == decision.replica_id, (
                    "it comes back where it was going"
                )
                self.at[decision.session_id] = (
                    decision.replica_id
                )  # promised when it began to move, however slow it is now
            else:
                assert self.at[decision.session_id] is None
                assert decision.replica_id not in self.draining, "it takes nobody more"
                if decision.restore:
                    self.yielding.add(decision.session_id)
                self.at[decision.session_id] = decision.replica_id
                assert self.promises(decision.replica_id, came_back=decision.restore)
        elif isinstance(decision, Move):
            assert self.at[decision.session_id] == decision.source != decision.target
            assert decision.session_id not in self.moving
            assert decision.target not in self.draining
            self.moving[decision.session_id] = decision.target
            assert self.promises(decision.target)
        elif isinstance(decision, StartReplica):
            self.starting.append(decision)
        elif isinstance(decision, StopReplica):
            assert not self.on(decision.replica_id), "nobody is cut off"
            del self.replicas[decision.replica_id]
            self.follow(self.policy.replica_gone(decision.replica_id, self.now), None)
        else:
            self.forget(decision.session_id)

    def on(self, replica: str) -> list[FleetRequest]:
        there = {session for session, place in self.at.items() if place == replica}
        return [
            self.asked[session]
            for session in there | {each for each, to in self.moving.items() if to == replica}
        ]

    def could_go(self, session: str) -> list[str]:
        """Replicas that take people and have room for it when they are empty; a strict one only where its
        rate can be kept."""
        request = self.asked[session].request
        names = list[str]()
        for name, replica in self.replicas.items():
            if request.geometry not in replica.chunk_s or request.memory_bytes > replica.room.memory_bytes:
                continue
            share = replica.chunk_s[request.geometry] / min(request.pace.media_s, request.pace.window_s)
            if (request.rate != "strict" or share <= SHARE + 1e-9) and self.takes_people(name):
                names.append(name)
        return names

    def takes_people(self, name: str) -> bool:
        """Whether it neither declined somebody nor gives way, which the policy says."""
        (room,) = [state.rooms[name] for state in self.policy.pools.values() if name in state.rooms]
        assert not (room.is_open and name in self.draining)
        return room.is_open

    def promises(self, name: str, *, came_back: bool = False) -> bool:
        """By the definition: each chunk's share of its playing time, and a chunk that has just begun, on top
        of each other. Where somebody `came_back`, those that yield count as a quarter of their rate, and
        everybody else whole."""
        replica = self.replicas[name]
        asked = [each.request for each in self.on(name)]
        if sum(request.memory_bytes for request in asked) > replica.room.memory_bytes:
            return False
        if len(asked) < 2:
            return True
        slower = {each.session_id for each in asked if came_back and each.session_id in self.yielding}
        rates = {
            each.session_id: 0.25 if each.session_id in slower and each.rate != "strict" else 1.0
            for each in asked
        }
        costs = [
            (replica.chunk_s[each.geometry], each.pace) for each in asked if each.session_id not in slower
        ]
        shares = [seconds / min(pace.media_s, pace.window_s) for seconds, pace in costs]
        for _, pace in costs:
            urgent = sum(
                share
                for share, (_, other) in zip(shares, costs, strict=True)
                if other.window_s <= pace.window_s
            )
            begun = max((seconds for seconds, other in costs if other.window_s > pace.window_s), default=0.0)
            if urgent + begun / pace.window_s > 1 + 1e-9:
                return False
        paces = {each.session_id: each.pace.at(rates[each.session_id] * each.pace.fps) for each in asked}
        windows = {name: min(pace.media_s, pace.window_s) for name, pace in paces.items()}
        return (
            sum(replica.chunk_s[each.geometry] / windows[each.session_id] for each in asked) <= SHARE + 1e-9
        )

    @invariant()
    def everybody_is_somewhere(self) -> None:
        if not hasattr(self, "policy"):
            return
        waiting = [place.session_id for place in self.policy.waiting(self.now)]
        assert sorted(waiting) == sorted(session for session, place in self.at.items() if place is None)
        for session, place in self.at.items():
            assert self.policy.place_of(session) == place
            assert place is None or place in self.replicas

    @invariant()
    def positions_are_true(self) -> None:
        if not hasattr(self, "policy"):
            return
        counted: Counter[str] = Counter()
        for place in self.policy.waiting(self.now):
            model = self.asked[place.session_id].model
            counted[model] += 1
            assert place.position == counted[model]

    @invariant()
    def money_and_numbers_agree(self) -> None:
        if not hasattr(self, "policy"):
            return
        metrics = self.policy.metrics(self.now)
        assert sum(pool.sessions for pool in metrics.pools.values()) == sum(
            place is not None for place in self.at.values()
        )
        assert sum(pool.ready for pool in metrics.pools.values()) == len(self.replicas)
        assert sum(pool.starting for pool in metrics.pools.values()) == len(self.starting)
        for name, pool in metrics.pools.items():
            most = self.policy.pools[name].pool
            assert pool.ready + pool.starting <= most.maximum + most.surge
            assert pool.stream_hours >= -1e-9
            assert pool.replica_hours >= 0

    def teardown(self) -> None:
        """Nobody starves: as people leave, everybody in line who can be placed at all is placed."""
        if not hasattr(self, "policy") or self.following:
            return
        while any(place is not None for place in self.at.values()):
            session = min(session for session, place in self.at.items() if place is not None)
            line = self.line()
            self.forget(session)
            self.follow(self.policy.on_session_left(session, self.now), line)
        for session in self.at:
            assert not self.could_go(session), "nobody waits for a replica that is empty"
