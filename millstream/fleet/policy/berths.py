"""The room of every replica, and the one that fits a session best.

A berth is a replica with what was promised there, by the rules of a server's own admission (`serving/room.py`) at the chunk
times that it says. Choosing looks at few of them: they are kept in the order of how full they are, and what was judged once for
a mix of sessions of equal kinds is remembered.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Hashable, Iterator

from millstream.fleet.policy.types import MoveReason, Placement, Replica
from millstream.serving.admission_types import Request
from millstream.serving.chunk_times import ChunkTimes
from millstream.serving.room import Need, Room

ROUNDING = 1e-9
MAX_REMEMBERED = 20_000
"""Verdicts of one mix of sessions on one replica's times; then all are forgotten."""

Verdicts = dict[tuple[Hashable, ...], bool]


class Berth(Room):
    def __init__(self, replica: Replica, started_at: float) -> None:
        self.replica, self.started_at = replica, started_at
        self.held: dict[str, Request] = {}
        """Who is there, comes there or has not left yet."""
        self.arriving: set[str] = set()
        """Who of them still is on the replica that it comes from."""
        self.share, self.num_bytes = 0.0, 0
        """Of the device, that they need at the least."""
        self.draining: MoveReason | None = None
        self.closed = False
        """Whether it declined somebody who fitted: then it takes nobody until it says how it is."""
        self.stopping = False
        self.outdated = False
        """Whether its pool has another version by now: one that is current is preferred."""
        self.suspect = False
        """Whether it has said something new since it was last seen to keep its promises."""
        self._kinds: Counter[Hashable] = Counter()
        self._needs: dict[Hashable, Need] = {}
        self.hear(replica)

    def hear(self, replica: Replica) -> None:
        """What it says of itself now."""
        self.replica, self.closed, self.suspect = replica, False, True
        times = ChunkTimes(clock=lambda: 0.0)  # what it says holds until it says something else
        for geometry, seconds in replica.chunk_s.items():
            times.add(geometry, seconds)
        super().__init__(replica.room, times)
        self._needs.clear()
        self.profile = (replica.room, tuple(replica.chunk_s.items()))
        self.share = sum(self.share_of(request) for request in self.held.values())

    @property
    def replica_id(self) -> str:
        return self.replica.replica_id

    @property
    def is_open(self) -> bool:
        return self.draining is None and not self.closed and not self.stopping

    def take(self, request: Request, *, arriving: bool = False) -> None:
        assert request.session_id not in self.held, f"{request.session_id} is on {self.replica_id} already"
        self.held[request.session_id] = request
        if arriving:
            self.arriving.add(request.session_id)
        self._kinds[kind_of(request)] += 1
        self.share += self.share_of(request)
        self.num_bytes += request.memory_bytes

    def release(self, session_id: str) -> None:
        request = self.held.pop(session_id)
        self.arriving.discard(session_id)
        self.num_bytes -= request.memory_bytes
        kind = kind_of(request)
        self._kinds[kind] -= 1
        if not self._kinds[kind]:
            del self._kinds[kind]
        self.share = self.share - self.share_of(request) if self.held else 0.0

    def need(self, request: Request) -> Need:
        kind = kind_of(request)
        if kind not in self._needs:
            self._needs[kind] = super().need(request)
        return self._needs[kind]

    def share_of(self, request: Request) -> float:
        """All of it, where nothing is measured."""
        least = self.need(request).least
        return self.config.share if least is None else least.share

    def has_room(self, request: Request, verdicts: Verdicts) -> bool:
        """Beside those who are there. Alike on every replica of this profile that has the same kinds of sessions."""
        key = (self.profile, frozenset(self._kinds.items()), kind_of(request))
        if key not in verdicts:
            if len(verdicts) >= MAX_REMEMBERED:
                verdicts.clear()
            verdicts[key] = self.fits(request, tuple(self.held.values()))
        return verdicts[key]

    def is_overfull(self, leaving: Collection[str]) -> bool:
        """Whether chunks have become so slow that what was promised cannot be kept, even without those who are `leaving`."""
        staying = [request for session_id, request in self.held.items() if session_id not in leaving]
        claims = [claim for request in staying if (claim := self.need(request).least) is not None]
        return len(claims) > 1 and not self.promises(claims)


def kind_of(request: Request) -> Hashable:
    """Sessions of equal kind need the same of any replica."""
    return (request.geometry, request.pace, request.rate, request.memory_bytes)


class Berths:
    """All of one model."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.by_id: dict[str, Berth] = {}
        self.leaving: dict[str, Berth] = {}
        """Those that drain."""
        self._order: list[tuple[float, str]] = []
        """Open ones: how full, and which."""
        self._filed: dict[str, float] = {}
        """Under which number each is in the order."""
        self._verdicts: Verdicts = {}
        self._known: dict[Hashable, tuple[float, float, bool]] = {}
        """Of all of them together, by kind of session, as long as none says anything new."""

    def __iter__(self) -> Iterator[Berth]:
        return iter(self.by_id.values())

    def add(self, berth: Berth) -> None:
        self.by_id[berth.replica_id] = berth
        self.refile(berth, heard=True)

    def remove(self, replica_id: str) -> Berth:
        berth = self.by_id.pop(replica_id)
        self._known.clear()
        self._unfile(replica_id)
        self.leaving.pop(replica_id, None)
        return berth

    def refile(self, berth: Berth, *, heard: bool = False) -> None:
        """After every change of it; `heard`, when it may need another share for the same. One that was removed stays so."""
        name = berth.replica_id
        if self.by_id.get(name) is not berth:
            return
        if heard:
            self._known.clear()
        self._unfile(name)
        self.leaving.pop(name, None)
        if berth.draining is not None:
            self.leaving[name] = berth
        elif berth.is_open:
            self._filed[name] = berth.share
            insort(self._order, (berth.share, name))

    def _unfile(self, replica_id: str) -> None:
        filed = self._filed.pop(replica_id, None)
        if filed is not None:
            del self._order[bisect_left(self._order, (filed, replica_id))]

    def ever(self, request: Request) -> bool:
        """Whether one of them could take it if it were empty."""
        for berth in self:
            key = (berth.profile, frozenset[Hashable](), kind_of(request))
            if key not in self._verdicts:
                self._verdicts[key] = berth.fits(request, ())
            if self._verdicts[key]:
                return True
        return False

    def choose(self, request: Request, *, but: str | None = None) -> Berth | None:
        """The best that has room, not `but`. Of equals in version and recorded graphs, the fullest, or the emptiest."""
        best: Berth | None = None
        least, most, recorded = self._facts(request)
        # Beyond `end` it is too full for anybody of this kind; an empty one refuses nobody for being slow.
        end = max(bisect_left(self._order, (most - least + ROUNDING, "")), bisect_left(self._order, (ROUNDING, "")))
        names = self._order[:end] if self.placement == "spread" else reversed(self._order[:end])
        best_rank = (2, 2)
        for _, name in names:
            berth = self.by_id[name]
            rank = (int(berth.outdated), int(recorded and request.geometry not in berth.replica.recorded))
            if rank < best_rank and name != but and berth.has_room(request, self._verdicts):
                best, best_rank = berth, rank
                if rank == (0, 0):
                    break
        return best

    def _facts(self, request: Request) -> tuple[float, float, bool]:
        """The least share that this kind needs anywhere, the most that a replica gives, whether its graphs are recorded
        somewhere."""
        kind = kind_of(request)
        if kind not in self._known:
            self._known[kind] = (
                min((berth.share_of(request) for berth in self), default=0.0),
                max((berth.config.share for berth in self), default=0.0),
                any(request.geometry in berth.replica.recorded for berth in self),
            )
        return self._known[kind]
