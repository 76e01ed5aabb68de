"""Sessions of a fleet, on replicas and in line: their states, the line, and which of them gets the room that
becomes free.

Room goes to sessions whose replica died, then to those that must move, then to the line; in the line none
overtakes. One that comes back yields for a while: if need be it has what the others there leave, shared with
all that came back, until it is moved to where there is room."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, NamedTuple

from millstream.fleet.policy.replica_capacity import ReplicaCapacity, ReplicaIndex, SizedRequest
from millstream.fleet.policy.types import (
    Decision,
    FleetRequest,
    Move,
    MoveReason,
    Place,
    Placement,
    StopReplica,
)
from millstream.serving.admission_types import Refused

MOVE_AGAIN_S = 10.0
"""A session whose move failed is left alone for so long."""
PATIENCE_S = 30.0
"""One of weight 1 is overtaken by none; one of 0.5 by those of weight 1 who ask up to 30 s after it."""


class LinePlace(NamedTuple):
    """A place in line; the smaller is before the larger."""

    comes_new: bool
    due: float
    session_id: str


def line_place(session_id: str, *, since: float, weight: float, lost: bool) -> LinePlace:
    assert weight > 0, f"{session_id} weighs {weight}"
    return LinePlace(not lost, since + PATIENCE_S / weight, session_id)


class WaitingLine:
    """Sessions that wait, in order: one line for a model on the whole fleet.

    Those whose replica died come first. Others come by when they asked and by weight: a session of weight w
    stands as if it had asked `PATIENCE_S` / w later. A heavier one so overtakes those who asked shortly
    before it, and none is overtaken for ever: one that asks later than that stands behind, whatever the
    weight. A place in line never changes but by others coming and going."""

    def __init__(self) -> None:
        self._order: list[LinePlace] = []
        self._standings: dict[str, LinePlace] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[str]:
        return (each.session_id for each in self._order)

    def add(self, place: LinePlace) -> None:
        assert place.session_id not in self._standings, f"{place.session_id} stands in line already"
        self._standings[place.session_id] = place
        insort(self._order, place)

    def remove(self, session_id: str) -> None:
        del self._order[bisect_left(self._order, self._standings.pop(session_id))]

    def before(self, place: LinePlace) -> int:
        """Return how many stand before this place."""
        return bisect_left(self._order, place)

    @property
    def first(self) -> LinePlace | None:
        return self._order[0] if self._order else None


State = Literal["waiting", "lost", "placed", "moving"]

LEADS_TO: dict[State, frozenset[State]] = {
    "waiting": frozenset({"lost", "placed"}),
    "lost": frozenset({"placed"}),
    "placed": frozenset({"waiting", "lost", "moving"}),
    "moving": frozenset({"placed"}),
}


@dataclass(slots=True)
class FleetSession:
    """A session of the fleet: where it is or waits, and the only ways from one to the next.

        waiting ──► placed ◄──► moving
           │         ▲ │
           └─► lost ◄┘─┘       and out of the fleet from each of them

    Waiting: in line. Lost: in line too, first, because its replica died. Placed: on a replica. Moving: on
    two. What it holds there is held and given back here; `PlacementTable` files the replicas anew and counts.
    """

    asked: FleetRequest
    sized: SizedRequest
    since: float
    """When it first asked."""
    state: State = "waiting"
    placed_at: float = 0.0
    room: ReplicaCapacity | None = None
    """Replica that it is on; None in line."""
    target: ReplicaCapacity | None = None
    """Replica that it moves to."""
    restored: bool = False
    """True if it had its place after a death: declined, it is lost again."""
    move_from: float = 0.0
    """It is not moved before."""
    yields: bool = False
    """True if it came back to its place, which need not have room for its rate."""

    @property
    def session_id(self) -> str:
        return self.asked.session_id

    @property
    def line_place(self) -> LinePlace:
        request = self.asked.request
        return line_place(
            request.session_id, since=self.since, weight=request.weight, lost=self.state == "lost"
        )

    def place(self, room: ReplicaCapacity, yielding: SizedRequest, now: float) -> None:
        """Have a place there; `yielding` is what it holds where it comes back."""
        assert self.room is None, f"{self.session_id} has a place already"
        self.restored = self.state == "lost"
        self.yields = self.yields or self.restored
        if not self.restored:
            self.placed_at = now
        self._become("placed")
        self.room = room
        room.hold(yielding if self.yields else self.sized)

    def unplace(self) -> ReplicaCapacity:
        """Give back its place, and return where that was. It is not in line yet."""
        assert self.state == "placed", f"{self.session_id} is {self.state}"
        assert self.room is not None, f"{self.session_id} has no place"
        room = self.room
        room.release(self.session_id)
        self.room = None
        self.yields = False
        return room

    def wait(self, *, lost: bool) -> LinePlace:
        """Stand in line again, or for the first time; return the place in it."""
        assert self.room is None, f"{self.session_id} is on {self.room.replica_id}"
        if lost or self.state != "waiting":
            self._become("lost" if lost else "waiting")
        return self.line_place

    def start_move(self, target: ReplicaCapacity) -> None:
        self._become("moving")
        self.target = target
        target.hold(self.sized)

    def arrive(self) -> tuple[ReplicaCapacity, ReplicaCapacity]:
        """Be where it was moving to; return where it was, and that."""
        assert self.room is not None
        assert self.target is not None, f"{self.session_id} is {self.state}"
        source = self.room
        source.release(self.session_id)
        self._become("placed")
        self.room = self.target
        self.target = None
        self.yields = False
        return source, self.room

    def stay(self, now: float) -> ReplicaCapacity:
        """Move no more; return where it was to go."""
        assert self.target is not None, f"{self.session_id} is {self.state}"
        target = self.target
        target.release(self.session_id)
        self._become("placed")
        self.target = None
        self.move_from = now + MOVE_AGAIN_S
        return target

    def regain_rate(self) -> None:
        """Hold its own rate again, where it yielded."""
        assert self.room is not None, f"{self.session_id} has no place"
        self.yields = False
        self.room.release(self.session_id)
        self.room.hold(self.sized)

    def _become(self, state: State) -> None:
        assert state in LEADS_TO[self.state], f"{self.session_id} cannot go from {self.state} to {state}"
        self.state = state


class PlacementTable:
    def __init__(
        self, models: Iterable[str], placement: Placement, why_never: Callable[[FleetRequest], str | None]
    ) -> None:
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
        """Make a session at its own rate, also where it is found with less."""
        whole = replace(asked, request=replace(asked.request, yields=False))
        return FleetSession(
            whole, self.rooms[asked.model].sized(whole.request), since, yields=asked.request.yields
        )

    def add(self, session: FleetSession) -> None:
        self.sessions[session.asked.session_id] = session
        self.open[session.asked.key] += 1

    def forget(self, session: FleetSession, now: float) -> None:
        """Forget one that has ended, wherever it was."""
        if session.room is None:
            self.lines[session.asked.model].remove(session.session_id)
        else:
            self._unplace(session, now)
        del self.sessions[session.asked.session_id]
        self.open[session.asked.key] -= 1

    def is_behind(self, session: FleetSession) -> bool:
        """Return whether another waits before it for the same room."""
        line = self.lines[session.asked.model]
        home = self.rooms[session.asked.model]
        if not line:
            return False
        before = islice(line, line.before(session.line_place))
        return any(home.ever_open(self.sessions[name].sized) for name in before)

    def choose(self, session: FleetSession) -> ReplicaCapacity | None:
        return self.rooms[session.asked.model].choose(session.sized)

    def place(self, session: FleetSession, room: ReplicaCapacity, now: float) -> Place:
        """Give it a place; it is no longer in line."""
        session.place(room, self._yielding(session), now)
        self.rooms[session.asked.model].refile(room)
        self._count(room, 1, now)
        self.counts["restored" if session.restored else "placed"] += 1
        return Place(session_id=session.session_id, replica_id=room.replica_id, restore=session.restored)

    def line_up(self, session: FleetSession, *, lost: bool) -> None:
        """Have one without a place stand in line."""
        self.lines[session.asked.model].add(session.wait(lost=lost))

    def put_back(self, session: FleetSession, now: float, *, lost: bool) -> None:
        """Have it stand in line instead of on its replica; all that it holds is free."""
        self._unplace(session, now)
        self.line_up(session, lost=lost)

    def start_move(self, session: FleetSession, target: ReplicaCapacity, why: MoveReason) -> Move:
        assert session.room is not None
        session.start_move(target)
        self.rooms[session.asked.model].refile(target)
        return Move(
            session_id=session.session_id, source=session.room.replica_id, target=target.replica_id, why=why
        )

    def arrive(self, session: FleetSession, now: float) -> None:
        """It is where it was moving to."""
        source, target = session.arrive()
        self.rooms[session.asked.model].refile(source)
        self._count(source, -1, now)
        self._count(target, 1, now)

    def restore_at_target(self, session: FleetSession, now: float) -> Place:
        """The replica it moved away from has died: it comes back where it was going."""
        self.arrive(session, now)
        assert session.room is not None
        session.restored = True
        self.counts["restored"] += 1
        return Place(session_id=session.session_id, replica_id=session.room.replica_id, restore=True)

    def stay(self, session: FleetSession, now: float) -> None:
        """It does not move after all."""
        self.rooms[session.asked.model].refile(session.stay(now))

    def _unplace(self, session: FleetSession, now: float) -> None:
        if session.target is not None:
            self.stay(session, now)
        room = session.unplace()
        self.rooms[session.asked.model].refile(room)
        self._count(room, -1, now)

    def assign_waiting(self, model: str, now: float) -> list[Decision]:
        """Give what room there is to the next in line."""
        home = self.rooms[model]
        line = self.lines[model]
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
        """Count sessions that came back like any other where all have their own rate by now."""
        home = self.rooms[model]
        for room in [room for room in home.crowded.values() if not room.is_overfull(())]:
            for session in [self.sessions[name] for name in room.held if name in room.yielding]:
                session.regain_rate()
            home.refile(room)

    def cool(self, rooms: Iterable[ReplicaCapacity], now: float) -> list[Decision]:
        """Move sessions away from replicas that have become too slow for what they promised: those that
        yield, the lightest, then the dearest first, until the others are kept."""
        decisions: list[Decision] = []
        for room in [room for room in rooms if room.suspect]:
            leaving = {
                name for name in room.held if self.sessions[name].room is room and self.sessions[name].target
            }
            for session in self._movable(room, now):
                if not room.is_overfull(leaving):
                    break
                target = self.rooms[session.asked.model].choose(session.sized, but=room.replica_id)
                if target is not None:
                    decisions.append(self.start_move(session, target, "hot"))
                    leaving.add(session.asked.session_id)
            room.suspect = room.is_overfull(())
        return decisions

    def refuse(
        self, asked: FleetRequest, reason: str, *, can_wait: bool = False, never: bool = False
    ) -> Refused:
        self.counts["refused"] += 1
        return Refused(session_id=asked.session_id, reason=reason, can_wait=can_wait, never=never)

    def _admit(self, model: str, now: float, *, lost: bool) -> list[Decision]:
        """Place sessions from the head of the line while there is room; only the lost ones, or all. One that
        waits for a kind of replica that is not there yet, or takes none now, does not keep others from those
        that do."""
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
                line.remove(session_id)
                decisions.append(self.place(session, room, now))
                continue
            never = None if session.state == "lost" else self._why_never(session.asked)
            if never is not None:
                self.forget(session, now)
                decisions.append(self.refuse(session.asked, never, never=True))
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

    def _movable(self, room: ReplicaCapacity, now: float) -> list[FleetSession]:
        sessions = [self.sessions[name] for name in room.held]
        may = [
            session
            for session in sessions
            if session.room is room and session.state == "placed" and now >= session.move_from
        ]
        return sorted(
            may, key=lambda each: (not each.yields, each.asked.request.weight, -room.share_of(each.sized))
        )

    def _yielding(self, session: FleetSession) -> SizedRequest:
        """Return what it holds after a death."""
        return self.rooms[session.asked.model].sized(replace(session.asked.request, yields=True))

    def _count(self, room: ReplicaCapacity, change: int, now: float) -> None:
        self.by_pool[room.replica.pool] += change
        self.stream_s[room.replica.pool] -= change * now


def _stops(home: ReplicaIndex) -> list[Decision]:
    """Stop draining replicas that hold no session."""
    empty = [room for room in home.leaving.values() if not room.held and not room.stopping]
    for room in empty:
        room.stopping = True
    return [StopReplica(replica_id=room.replica_id, why=str(room.draining)) for room in empty]
