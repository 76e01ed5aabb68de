"""Who is where: sessions on replicas and in line, and who gets the room that becomes free.

Room goes to sessions whose replica died, then to those who must move, then to the line; in the line nobody overtakes. A session
is in one of four states: waiting, lost (in line too, its replica died), placed, and moving, when it holds two places.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from millstream.fleet.policy.berths import Berth, Berths, kind_of
from millstream.fleet.policy.types import Decision, FleetRequest, Move, MoveReason, Place, Placement, StopReplica
from millstream.fleet.policy.waiting_line import Standing, WaitingLine, standing
from millstream.serving.admission_types import Refused

MOVE_AGAIN_S = 10.0
"""A session whose move failed is left alone for so long."""


@dataclass(slots=True)
class Guest:
    """A session of the fleet."""

    asked: FleetRequest
    since: float
    """When it first asked."""
    state: Literal["waiting", "lost", "placed", "moving"] = "waiting"
    placed_at: float = 0.0
    berth: Berth | None = None
    """Where it is; None in line."""
    target: Berth | None = None
    """Where it moves to."""
    restored: bool = False
    """Whether it had its place after a death: declined, it is lost again."""
    move_from: float = 0.0
    """It is not moved before."""

    @property
    def standing(self) -> Standing:
        request = self.asked.request
        return standing(request.session_id, since=self.since, weight=request.weight, lost=self.state == "lost")


class Seating:
    def __init__(self, models: Iterable[str], placement: Placement, why_never: Callable[[FleetRequest], str | None]) -> None:
        """`why_never` says why a session can be placed nowhere, ever; None where it may be."""
        self.guests: dict[str, Guest] = {}
        self.berths = {model: Berths(placement) for model in models}
        self.lines = {model: WaitingLine() for model in self.berths}
        self.counts: Counter[str] = Counter()
        self.open: Counter[str] = Counter()
        """Sessions by key, wherever they are."""
        self.stream_s: defaultdict[str, float] = defaultdict(float)
        """By pool: of streams that have ended, less the moments at which those that have not began."""
        self._why_never = why_never

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self.lines.values()))

    def add(self, guest: Guest) -> None:
        self.guests[guest.asked.session_id] = guest
        self.open[guest.asked.key] += 1

    def forget(self, guest: Guest, now: float) -> None:
        """It has ended, wherever it was."""
        if guest.berth is None:
            self.lines[guest.asked.model].leave(guest.asked.session_id)
        else:
            self.unseat(guest, now)
        del self.guests[guest.asked.session_id]
        self.open[guest.asked.key] -= 1

    def is_behind(self, guest: Guest) -> bool:
        """Whether somebody waits before it for the same room."""
        line, home = self.lines[guest.asked.model], self.berths[guest.asked.model]
        before = islice(line, line.before(guest.standing))
        return any(home.ever(self.guests[name].asked.request) for name in before)

    def choose(self, guest: Guest) -> Berth | None:
        return self.berths[guest.asked.model].choose(guest.asked.request)

    def seat(self, guest: Guest, berth: Berth, now: float) -> Place:
        """It has a place; it is no longer in line."""
        assert guest.berth is None, f"{guest.asked.session_id} has a place already"
        guest.restored = guest.state == "lost"
        if not guest.restored:
            guest.placed_at = now
        guest.state, guest.berth = "placed", berth
        berth.take(guest.asked.request)
        self.berths[guest.asked.model].refile(berth)
        self.stream_s[berth.replica.pool] -= now
        self.counts["restored" if guest.restored else "placed"] += 1
        return Place(session_id=guest.asked.session_id, replica_id=berth.replica_id, restore=guest.restored)

    def unseat(self, guest: Guest, now: float) -> None:
        """All that it holds is free."""
        assert guest.berth is not None, f"{guest.asked.session_id} has no place"
        if guest.target is not None:
            self.stay(guest, now)
        self._release(guest.berth, guest)
        self.stream_s[guest.berth.replica.pool] += now
        guest.berth = None

    def line_up(self, guest: Guest, *, lost: bool) -> None:
        guest.state = "lost" if lost else "waiting"
        self.lines[guest.asked.model].join(guest.standing)

    def start_move(self, guest: Guest, target: Berth, why: MoveReason) -> Move:
        assert guest.state == "placed", f"{guest.asked.session_id} is {guest.state}"
        assert guest.berth is not None
        guest.state, guest.target = "moving", target
        target.take(guest.asked.request, arriving=True)
        self.berths[guest.asked.model].refile(target)
        return Move(session_id=guest.asked.session_id, source=guest.berth.replica_id, target=target.replica_id, why=why)

    def arrive(self, guest: Guest, now: float) -> None:
        """It is where it was moving to."""
        source, target = guest.berth, guest.target
        assert source is not None
        assert target is not None, f"{guest.asked.session_id} is {guest.state}"
        self._release(source, guest)
        target.arriving.discard(guest.asked.session_id)
        self.stream_s[source.replica.pool] += now
        self.stream_s[target.replica.pool] -= now
        guest.state, guest.berth, guest.target = "placed", target, None

    def stay(self, guest: Guest, now: float) -> None:
        """It does not move after all."""
        assert guest.target is not None, f"{guest.asked.session_id} is {guest.state}"
        self._release(guest.target, guest)
        guest.state, guest.target, guest.move_from = "placed", None, now + MOVE_AGAIN_S

    def settle(self, model: str, now: float) -> list[Decision]:
        """Give what room there is to whoever is next."""
        home, line = self.berths[model], self.lines[model]
        decisions: list[Decision] = []
        if line:
            decisions += self._admit(model, now, lost=True)
        if home.leaving:
            decisions += self._move_off(home, now)
        if line:
            decisions += self._admit(model, now, lost=False)
        if home.leaving:
            decisions += _stops(home)
        return decisions

    def cool(self, model: str, now: float) -> list[Decision]:
        """Move sessions away from replicas that have become too slow for what they promised: the lightest, then the dearest
        first, until the others are kept."""
        decisions: list[Decision] = []
        for berth in [berth for berth in self.berths[model] if berth.suspect]:
            leaving = {name for name in berth.held if self.guests[name].berth is berth and self.guests[name].target}
            for guest in self._movable(berth, now):
                if not berth.is_overfull(leaving):
                    break
                target = self.berths[model].choose(guest.asked.request, but=berth.replica_id)
                if target is not None:
                    decisions.append(self.start_move(guest, target, "hot"))
                    leaving.add(guest.asked.session_id)
            berth.suspect = berth.is_overfull(())
        return decisions

    def refuse(self, asked: FleetRequest, reason: str, *, can_wait: bool = False) -> Refused:
        self.counts["refused"] += 1
        return Refused(session_id=asked.session_id, reason=reason, can_wait=can_wait)

    def _admit(self, model: str, now: float, *, lost: bool) -> list[Decision]:
        """From the head of the line while there is room; only those who are lost, or everybody. Who waits for a kind of replica
        that is not there yet keeps nobody from those that are."""
        decisions: list[Decision] = []
        line = self.lines[model]
        for session_id in tuple(line):
            guest = self.guests[session_id]
            if lost and guest.state != "lost":
                break
            berth = self.choose(guest)
            if berth is not None:
                line.leave(session_id)
                decisions.append(self.seat(guest, berth, now))
                continue
            never = None if guest.state == "lost" else self._why_never(guest.asked)
            if never is not None:
                self.forget(guest, now)
                decisions.append(self.refuse(guest.asked, never))
            elif self.berths[model].ever(guest.asked.request):
                break
        return decisions

    def _move_off(self, home: Berths, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        for berth in tuple(home.leaving.values()):
            assert berth.draining is not None
            hopeless = set[Hashable]()
            for guest in self._movable(berth, now):
                kind = kind_of(guest.asked.request)
                target = None if kind in hopeless else home.choose(guest.asked.request)
                if target is not None:
                    decisions.append(self.start_move(guest, target, berth.draining))
                else:
                    hopeless.add(kind)
        return decisions

    def _movable(self, berth: Berth, now: float) -> list[Guest]:
        guests = [self.guests[name] for name in berth.held]
        may = [guest for guest in guests if guest.berth is berth and guest.state == "placed" and now >= guest.move_from]
        return sorted(may, key=lambda guest: (guest.asked.request.weight, -berth.share_of(guest.asked.request)))

    def _release(self, berth: Berth, guest: Guest) -> None:
        berth.release(guest.asked.session_id)
        self.berths[guest.asked.model].refile(berth)


def _stops(home: Berths) -> list[Decision]:
    """Of those that drain, who has nobody any more."""
    empty = [berth for berth in home.leaving.values() if not berth.held and not berth.stopping]
    for berth in empty:
        berth.stopping = True
    return [StopReplica(replica_id=berth.replica_id, why=str(berth.draining)) for berth in empty]
