"""Who is where: sessions on replicas and in line, and who gets the room that becomes free.

Room goes to sessions whose replica died, then to those who must move, then to the line; in the line nobody overtakes. A session
is in one of four states: waiting, lost (in line too, its replica died), placed, and moving, when it holds two places. One that
comes back yields for a while: if need be it has what the others there leave, shared with all who came back, until it is moved
to where there is room.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from millstream.fleet.policy.replica_rooms import ReplicaIndex, ReplicaRoom, SizedRequest
from millstream.fleet.policy.types import Decision, FleetRequest, Move, MoveReason, Place, Placement, StopReplica
from millstream.fleet.policy.waiting_line import LinePlace, WaitingLine, line_place
from millstream.serving.admission_types import Refused

MOVE_AGAIN_S = 10.0
"""A session whose move failed is left alone for so long."""


@dataclass(slots=True)
class FleetSession:
    """A session of the fleet."""

    asked: FleetRequest
    sized: SizedRequest
    since: float
    """When it first asked."""
    state: Literal["waiting", "lost", "placed", "moving"] = "waiting"
    placed_at: float = 0.0
    room: ReplicaRoom | None = None
    """Where it is; None in line."""
    target: ReplicaRoom | None = None
    """Where it moves to."""
    restored: bool = False
    """Whether it had its place after a death: declined, it is lost again."""
    move_from: float = 0.0
    """It is not moved before."""
    yields: bool = False
    """Whether it came back to its place, which need not have room for its rate."""

    @property
    def line_place(self) -> LinePlace:
        request = self.asked.request
        return line_place(request.session_id, since=self.since, weight=request.weight, lost=self.state == "lost")


class PlacementTable:
    def __init__(self, models: Iterable[str], placement: Placement, why_never: Callable[[FleetRequest], str | None]) -> None:
        """`why_never` says why a session can be placed nowhere, ever; None where it may be."""
        self.sessions: dict[str, FleetSession] = {}
        self.rooms = {model: ReplicaIndex(placement) for model in models}
        self.lines = {model: WaitingLine() for model in self.rooms}
        self.counts: Counter[str] = Counter()
        self.open: Counter[str] = Counter()
        """Sessions by key, wherever they are."""
        self.by_pool: Counter[str] = Counter()
        """Sessions by pool; one that moves counts where it comes from."""
        self.stream_s: defaultdict[str, float] = defaultdict(float)
        """By pool: of streams that have ended, less the moments at which those that have not began."""
        self._why_never = why_never

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self.lines.values()))

    def session(self, asked: FleetRequest, since: float) -> FleetSession:
        """At its own rate, also where it is found with less."""
        whole = replace(asked, request=replace(asked.request, yields=False))
        return FleetSession(whole, self.rooms[asked.model].sized(whole.request), since, yields=asked.request.yields)

    def add(self, session: FleetSession) -> None:
        self.sessions[session.asked.session_id] = session
        self.open[session.asked.key] += 1

    def forget(self, session: FleetSession, now: float) -> None:
        """It has ended, wherever it was."""
        if session.room is None:
            self.lines[session.asked.model].leave(session.asked.session_id)
        else:
            self.unplace(session, now)
        del self.sessions[session.asked.session_id]
        self.open[session.asked.key] -= 1

    def is_behind(self, session: FleetSession) -> bool:
        """Whether somebody waits before it for the same room."""
        line, home = self.lines[session.asked.model], self.rooms[session.asked.model]
        if not line:
            return False
        before = islice(line, line.before(session.line_place))
        return any(home.ever_open(self.sessions[name].sized) for name in before)

    def choose(self, session: FleetSession) -> ReplicaRoom | None:
        return self.rooms[session.asked.model].choose(session.sized)

    def place(self, session: FleetSession, room: ReplicaRoom, now: float) -> Place:
        """It has a place; it is no longer in line."""
        assert session.room is None, f"{session.asked.session_id} has a place already"
        session.restored = session.state == "lost"
        session.yields = session.yields or session.restored
        if not session.restored:
            session.placed_at = now
        session.state, session.room = "placed", room
        room.take(self._yielding(session) if session.yields else session.sized)
        self.rooms[session.asked.model].refile(room)
        self._count(room, 1, now)
        self.counts["restored" if session.restored else "placed"] += 1
        return Place(session_id=session.asked.session_id, replica_id=room.replica_id, restore=session.restored)

    def unplace(self, session: FleetSession, now: float) -> None:
        """All that it holds is free."""
        assert session.room is not None, f"{session.asked.session_id} has no place"
        if session.target is not None:
            self.stay(session, now)
        self._release(session.room, session)
        self._count(session.room, -1, now)
        session.room, session.yields = None, False

    def line_up(self, session: FleetSession, *, lost: bool) -> None:
        session.state = "lost" if lost else "waiting"
        self.lines[session.asked.model].join(session.line_place)

    def start_move(self, session: FleetSession, target: ReplicaRoom, why: MoveReason) -> Move:
        assert session.state == "placed", f"{session.asked.session_id} is {session.state}"
        assert session.room is not None
        session.state, session.target = "moving", target
        target.take(session.sized, arriving=True)
        self.rooms[session.asked.model].refile(target)
        return Move(session_id=session.asked.session_id, source=session.room.replica_id, target=target.replica_id, why=why)

    def arrive(self, session: FleetSession, now: float) -> None:
        """It is where it was moving to."""
        source, target = session.room, session.target
        assert source is not None
        assert target is not None, f"{session.asked.session_id} is {session.state}"
        self._release(source, session)
        target.arriving.discard(session.asked.session_id)
        self._count(source, -1, now)
        self._count(target, 1, now)
        session.state, session.room, session.target, session.yields = "placed", target, None, False

    def stay(self, session: FleetSession, now: float) -> None:
        """It does not move after all."""
        assert session.target is not None, f"{session.asked.session_id} is {session.state}"
        self._release(session.target, session)
        session.state, session.target, session.move_from = "placed", None, now + MOVE_AGAIN_S

    def settle(self, model: str, now: float) -> list[Decision]:
        """Give what room there is to whoever is next."""
        home, line = self.rooms[model], self.lines[model]
        decisions: list[Decision] = []
        if line:
            decisions += self._admit(model, now, lost=True)
        if home.crowded:
            decisions += self.cool(home.crowded.values(), now)
        if home.leaving:
            decisions += self._move_off(home, now)
        if line:
            decisions += self._admit(model, now, lost=False)
        if home.leaving:
            decisions += _stops(home)
        return decisions

    def regain(self, model: str) -> None:
        """Who came back and has its own rate by now, where everybody has, counts like any other."""
        home = self.rooms[model]
        for room in [room for room in home.crowded.values() if not room.is_overfull(())]:
            for session in [self.sessions[name] for name in room.held if name in room.yielding]:
                session.yields = False
                room.release(session.asked.session_id)
                room.take(session.sized)
            home.refile(room)

    def cool(self, rooms: Iterable[ReplicaRoom], now: float) -> list[Decision]:
        """Move sessions away from replicas that have become too slow for what they promised: those that yield, the lightest,
        then the dearest first, until the others are kept."""
        decisions: list[Decision] = []
        for room in [room for room in rooms if room.suspect]:
            leaving = {name for name in room.held if self.sessions[name].room is room and self.sessions[name].target}
            for session in self._movable(room, now):
                if not room.is_overfull(leaving):
                    break
                target = self.rooms[session.asked.model].choose(session.sized, but=room.replica_id)
                if target is not None:
                    decisions.append(self.start_move(session, target, "hot"))
                    leaving.add(session.asked.session_id)
            room.suspect = room.is_overfull(())
        return decisions

    def refuse(self, asked: FleetRequest, reason: str, *, can_wait: bool = False) -> Refused:
        self.counts["refused"] += 1
        return Refused(session_id=asked.session_id, reason=reason, can_wait=can_wait)

    def _admit(self, model: str, now: float, *, lost: bool) -> list[Decision]:
        """From the head of the line while there is room; only those who are lost, or everybody. Who waits for a kind of replica
        that is not there yet, or takes nobody now, keeps nobody from those that do."""
        decisions: list[Decision] = []
        line = self.lines[model]
        for session_id in tuple(line):
            session = self.sessions[session_id]
            if lost and session.state != "lost":
                break
            room = self.choose(session)
            if room is None and session.state == "lost":
                room = self.rooms[model].choose(self._yielding(session))
                self.counts["yielded"] += room is not None
            if room is not None:
                line.leave(session_id)
                decisions.append(self.place(session, room, now))
                continue
            never = None if session.state == "lost" else self._why_never(session.asked)
            if never is not None:
                self.forget(session, now)
                decisions.append(self.refuse(session.asked, never))
            elif self.rooms[model].ever_open(session.sized):
                break
        return decisions

    def _move_off(self, home: ReplicaIndex, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        for room in tuple(home.leaving.values()):
            assert room.draining is not None
            hopeless = set[int]()
            for session in self._movable(room, now):
                target = None if session.sized.kind in hopeless else home.choose(session.sized)
                if target is not None:
                    decisions.append(self.start_move(session, target, room.draining))
                else:
                    hopeless.add(session.sized.kind)
        return decisions

    def _movable(self, room: ReplicaRoom, now: float) -> list[FleetSession]:
        sessions = [self.sessions[name] for name in room.held]
        may = [
            session for session in sessions if session.room is room and session.state == "placed" and now >= session.move_from
        ]
        return sorted(may, key=lambda each: (not each.yields, each.asked.request.weight, -room.share_of(each.sized)))

    def _yielding(self, session: FleetSession) -> SizedRequest:
        """What it takes after a death."""
        return self.rooms[session.asked.model].sized(replace(session.asked.request, yields=True))

    def _count(self, room: ReplicaRoom, change: int, now: float) -> None:
        self.by_pool[room.replica.pool] += change
        self.stream_s[room.replica.pool] -= change * now

    def _release(self, room: ReplicaRoom, session: FleetSession) -> None:
        room.release(session.asked.session_id)
        self.rooms[session.asked.model].refile(room)


def _stops(home: ReplicaIndex) -> list[Decision]:
    """Of those that drain, who has nobody any more."""
    empty = [room for room in home.leaving.values() if not room.held and not room.stopping]
    for room in empty:
        room.stopping = True
    return [StopReplica(replica_id=room.replica_id, why=str(room.draining)) for room in empty]
