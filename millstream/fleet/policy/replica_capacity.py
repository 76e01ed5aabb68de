"""The room of every replica, and the one that fits a session best.

A `ReplicaCapacity` is a replica with what was promised there, by the rules of a server's own admission
(`serving/capacity_check.py`) at the chunk times that it says. Choosing looks at few of them: they are kept in
the order of how full they are, and what was judged once for a mix of sessions of equal kinds is remembered.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Hashable, Iterator
from typing import NamedTuple

from millstream.fleet.policy.types import MoveReason, Placement, Replica
from millstream.serving.admission_types import Request
from millstream.serving.capacity_check import CapacityCheck
from millstream.serving.chunk_times import ChunkTimes

ROUNDING = 1e-9
MAX_REMEMBERED = 20_000
"""Kinds and profiles, and verdicts of a mix of kinds on a profile; past that they are met anew."""


class SizedRequest(NamedTuple):
    """A request, and its kind: those of equal kind need the same of any replica."""

    request: Request
    kind: int

    @property
    def session_id(self) -> str:
        return self.request.session_id


class ReplicaCapacity(CapacityCheck):
    def __init__(self, replica: Replica, started_at: float) -> None:
        self.started_at = started_at
        self.held: dict[str, SizedRequest] = {}
        """Sessions that are on the replica, come to it or have not left it yet."""
        self.yielding: set[str] = set()
        """Ids of held sessions that have what the others leave, for there was no room for their rate."""
        self.share = 0.0
        self.num_bytes = 0
        """Memory and, as `share`, device time that the held sessions need at the least."""
        self.draining: MoveReason | None = None
        self.closed = False
        """True if it declined a session that fitted: then it takes none until its next report."""
        self.stopping = False
        self.outdated = False
        """True if its pool has another version by now: a current replica is preferred."""
        self.suspect = False
        """True if it has reported something new since it was last seen to keep its promises."""
        self._kinds: Counter[int] = Counter()
        self._shares: dict[int, float] = {}
        self.update(replica)

    def update(self, replica: Replica) -> None:
        """Go by the latest report of the replica."""
        self.replica = replica
        self.closed = False
        self.suspect = True
        times = ChunkTimes(clock=lambda: 0.0)  # what it says holds until it says something else
        for geometry, seconds in replica.chunk_s.items():
            times.add(geometry, seconds)
        super().__init__(replica.room, times)
        self._shares.clear()
        self.share = sum(map(self.share_of, self.held.values()))

    @property
    def replica_id(self) -> str:
        return self.replica.replica_id

    @property
    def is_open(self) -> bool:
        return self.draining is None and not self.closed and not self.stopping

    def hold(self, sized: SizedRequest) -> None:
        assert sized.session_id not in self.held, f"{sized.session_id} is on {self.replica_id} already"
        self.held[sized.session_id] = sized
        if sized.request.yields:
            self.yielding.add(sized.session_id)
            self.suspect = True
        self._kinds[sized.kind] += 1
        self.share += self.share_of(sized)
        self.num_bytes += sized.request.memory_bytes

    def release(self, session_id: str) -> None:
        sized = self.held.pop(session_id)
        self.yielding.discard(session_id)
        self.num_bytes -= sized.request.memory_bytes
        self._kinds[sized.kind] -= 1
        if not self._kinds[sized.kind]:
            del self._kinds[sized.kind]
        self.share = self.share - self.share_of(sized) if self.held else 0.0

    def share_of(self, sized: SizedRequest) -> float:
        """Return the least share that the session needs; all of it, where nothing is measured."""
        if sized.kind not in self._shares:
            least = self.need(sized.request).least
            self._shares[sized.kind] = self.config.share if least is None else least.share
        return self._shares[sized.kind]

    def mix(self, kind: int) -> Hashable:
        """Return what decides whether one more of that kind fits, besides the replica's profile."""
        return frozenset(self._kinds.items()), kind

    def has_room(self, request: Request) -> bool:
        """Return whether the session fits beside those that are there."""
        return self.fits(request, [each.request for each in self.held.values()])

    def is_overfull(self, leaving: Collection[str]) -> bool:
        """Return whether chunks have become so slow that what was promised cannot be kept, even without the
        sessions that are `leaving`."""
        staying = [each.request for session_id, each in self.held.items() if session_id not in leaving]
        claims = [claim for request in staying if (claim := self.need(request).least) is not None]
        return len(claims) > 1 and not self.promises(claims)


class Facts(NamedTuple):
    """Facts about all replicas together, for one kind of session; they hold until one reports something
    new."""

    least: float
    """The smallest share that it needs anywhere."""
    most: float
    """The largest that a replica gives."""
    recorded: bool
    """True if its graphs are recorded on some replica."""
    ever: bool
    """True if some replica could take it if it were empty."""


class ReplicaIndex:
    """All replicas of one model."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.by_id: dict[str, ReplicaCapacity] = {}
        self.leaving: dict[str, ReplicaCapacity] = {}
        """Replicas that drain, by id."""
        self.crowded: dict[str, ReplicaCapacity] = {}
        """Replicas where some session yields, by id."""
        self._order: list[tuple[float, str]] = []
        """Open replicas in order of how full they are: share and id."""
        self._filed: dict[str, float] = {}
        """Share under which each replica is in the order, by id."""
        self._numbers: dict[Hashable, int] = {}
        """Numbers of kinds and of profiles, as they were met; none is given twice."""
        self._next_number = itertools.count()
        self._profiles: dict[str, int] = {}
        """Number of each replica's profile, by id; replicas of one profile report the same limits and
        times."""
        self._verdicts: dict[Hashable, bool] = {}
        self._facts: dict[int, Facts] = {}

    def __iter__(self) -> Iterator[ReplicaCapacity]:
        return iter(self.by_id.values())

    def sized(self, request: Request) -> SizedRequest:
        chunks = request.geometry, request.first_geometry
        kind = (chunks, request.pace, request.rate, request.memory_bytes, request.yields)
        return SizedRequest(request, self._number(kind))

    def _number(self, thing: Hashable) -> int:
        if thing not in self._numbers:
            if len(self._numbers) >= MAX_REMEMBERED:
                self._numbers.clear()
                self._facts.clear()
            self._numbers[thing] = next(self._next_number)
        return self._numbers[thing]

    def add(self, room: ReplicaCapacity) -> None:
        self.by_id[room.replica_id] = room
        self.refile(room, heard=True)

    def remove(self, replica_id: str) -> ReplicaCapacity:
        room = self.by_id.pop(replica_id)
        self._facts.clear()
        self._profiles.pop(replica_id, None)
        self._unfile(replica_id)
        self.leaving.pop(replica_id, None)
        self.crowded.pop(replica_id, None)
        return room

    def refile(self, room: ReplicaCapacity, *, heard: bool = False) -> None:
        """After every change of it; `heard`, when it may need another share for the same. One that was
        removed stays so."""
        name = room.replica_id
        if self.by_id.get(name) is not room:
            return
        if heard:
            self._facts.clear()
            self._profiles[name] = self._number((room.config, tuple(room.replica.chunk_s.items())))
        self._unfile(name)
        self.leaving.pop(name, None)
        self.crowded.pop(name, None)
        if room.yielding:
            self.crowded[name] = room
        if room.draining is not None:
            self.leaving[name] = room
        elif room.is_open:
            self._filed[name] = room.share
            insort(self._order, (room.share, name))

    def _unfile(self, replica_id: str) -> None:
        filed = self._filed.pop(replica_id, None)
        if filed is not None:
            del self._order[bisect_left(self._order, (filed, replica_id))]

    def ever(self, sized: SizedRequest) -> bool:
        """Return whether one of the replicas could take it if it were empty."""
        return self._known(sized).ever

    def ever_open(self, sized: SizedRequest) -> bool:
        """Return whether one of the replicas that take sessions now could take it if it were empty."""
        return any(self._judge(self.by_id[name], sized, alone=True) for _, name in self._order)

    def choose(self, sized: SizedRequest, *, but: str | None = None) -> ReplicaCapacity | None:
        """The best that has room, not `but`. Of equals in version and recorded graphs, the fullest, or the
        emptiest; for one that yields the emptiest, where it loses least."""
        best: ReplicaCapacity | None = None
        facts = self._known(sized)
        geometry = sized.request.geometry
        yields = sized.request.yields
        # Beyond `end` it is too full for any session of this kind; an empty one refuses none for being slow.
        end = max(
            bisect_left(self._order, (facts.most - facts.least + ROUNDING, "")),
            bisect_left(self._order, (ROUNDING, "")),
        )
        end = len(self._order) if yields else end
        best_rank = (2, 2)
        for number in range(end) if yields or self.placement == "spread" else range(end - 1, -1, -1):
            name = self._order[number][1]
            room = self.by_id[name]
            rank = (int(room.outdated), int(facts.recorded and geometry not in room.replica.recorded))
            if rank < best_rank and name != but and self._judge(room, sized):
                best = room
                best_rank = rank
                if rank == (0, 0):
                    break
        return best

    def _judge(self, room: ReplicaCapacity, sized: SizedRequest, *, alone: bool = False) -> bool:
        """Return whether the replica has room for it beside its sessions or, if `alone`, when empty. Judged
        once for a mix of kinds on a profile."""
        key = (self._profiles[room.replica_id], (frozenset(), sized.kind) if alone else room.mix(sized.kind))
        if key not in self._verdicts:
            if len(self._verdicts) >= MAX_REMEMBERED:
                self._verdicts.clear()
            self._verdicts[key] = room.fits(sized.request, ()) if alone else room.has_room(sized.request)
        return self._verdicts[key]

    def _known(self, sized: SizedRequest) -> Facts:
        if sized.kind not in self._facts:
            self._facts[sized.kind] = Facts(
                least=min((room.share_of(sized) for room in self), default=0.0),
                most=max((room.config.share for room in self), default=0.0),
                recorded=any(sized.request.geometry in room.replica.recorded for room in self),
                ever=any(room.fits(sized.request, ()) for room in self),
            )
        return self._facts[sized.kind]
