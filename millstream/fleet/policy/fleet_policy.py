"""A fleet's decisions, all of them: every event comes in here, and out comes what is to be done.

Whoever runs a fleet (Ray, or the simulator) tells what happened and when, carries out the decisions in their order, and tells
what came of them. A session goes where it fits by the rules of one server's admission; who fits nowhere waits in one line.

Nothing here knows Ray, sockets, threads or a clock: `now` is seconds of one clock, never backwards. Reports that come too late,
of a session or a replica that is gone, change nothing. Not safe to call from two threads at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from millstream.core.errors import Overloaded
from millstream.fleet.policy.berths import Berth, Berths
from millstream.fleet.policy.pool_state import PoolState
from millstream.fleet.policy.scaling import scale_pool
from millstream.fleet.policy.seating import Guest, Seating
from millstream.fleet.policy.types import (
    Answer,
    Decision,
    FleetMetrics,
    FleetRequest,
    MoveReason,
    Place,
    Placement,
    Pool,
    PoolMetrics,
    Replica,
)
from millstream.server.access.keys import Key
from millstream.serving.admission_types import Queued

STAY_SMOOTHING = 0.95
"""Share of the past in the mean time that a session keeps its place."""
FULL = "all replicas are full"


class FleetPolicy:
    def __init__(
        self,
        pools: Iterable[Pool],
        *,
        keys: Mapping[str, Key] | None = None,
        placement: Placement = "pack",
        max_waiting: int = 256,
    ) -> None:
        """`keys` by name; a key that is not among them has no limits. The line of the whole fleet has `max_waiting` places."""
        self.pools = {pool.name: PoolState(pool) for pool in pools}
        self._keys, self._max_waiting = dict(keys or {}), max_waiting
        models = {state.pool.model for state in self.pools.values()}
        self._seating = Seating(models, placement, self._why_never)
        self._homes: dict[str, Berths] = {}
        """By replica."""
        self._stay_s: float | None = None

    # Sessions

    def ask(self, asked: FleetRequest, now: float, *, since: float | None = None) -> Answer:
        """A new session: a place, a place in line, or why not. `since`, for one that stood in the line of a gateway that is
        gone: when it first asked. It is where it was."""
        seating, request = self._seating, asked.request
        assert asked.session_id not in seating.guests, f"{asked.session_id} has asked already"
        why = self._why_never(asked) or self._why_over_quota(asked)
        if why is not None:
            return seating.refuse(asked, why)
        guest = Guest(asked, now if since is None else since)
        berth = None if seating.is_behind(guest) else seating.choose(guest)
        full = seating.num_waiting >= self._max_waiting
        if berth is None and (full or not request.may_wait):
            taken = f"; all {self._max_waiting} places in line are taken" if full else ""
            return seating.refuse(asked, f"{FULL}{taken}: try again later", can_wait=not full)
        seating.add(guest)
        if berth is not None:
            return seating.seat(guest, berth, now)
        before = seating.lines[asked.model].before(guest.standing)
        seating.line_up(guest, lost=False)
        return self._queued(asked.session_id, before)

    def left(self, session_id: str, now: float) -> list[Decision]:
        """A session has ended, wherever it was, in line, moving or lost. Who comes in instead."""
        guest = self._seating.guests.get(session_id)
        if guest is None:
            return []
        if guest.berth is not None:
            stay, past = now - guest.placed_at, self._stay_s
            self._stay_s = stay if past is None else STAY_SMOOTHING * past + (1 - STAY_SMOOTHING) * stay
        self._seating.forget(guest, now)
        return self._seating.settle(guest.asked.model, now)

    def declined(self, session_id: str, now: float) -> list[Decision]:
        """The replica would not have it after all, and is asked again when it has said how it is. The session is placed
        elsewhere, or stands in line where it would have stood; who would not wait is refused."""
        seating, guest = self._seating, self._seating.guests.get(session_id)
        if guest is None or guest.berth is None or guest.state != "placed":
            return []
        guest.berth.closed = True
        seating.unseat(guest, now)
        seating.line_up(guest, lost=guest.restored)
        decisions = seating.settle(guest.asked.model, now)
        if not (guest.restored or guest.asked.request.may_wait) and self.place_of(session_id) is None:
            seating.forget(guest, now)
            decisions.append(seating.refuse(guest.asked, f"{FULL}: try again later"))
        return decisions

    def waiting(self, now: float) -> tuple[Queued, ...]:
        """Everybody in line, in order. A position counts those of the same model: others use other replicas."""
        lines = self._seating.lines.values()
        return tuple(self._queued(session_id, before) for line in lines for before, session_id in enumerate(line))

    def place_of(self, session_id: str) -> str | None:
        """The replica that a session is on; while it moves, the one it comes from. None: in line, or unknown."""
        guest = self._seating.guests.get(session_id)
        return None if guest is None or guest.berth is None else guest.berth.replica_id

    # Moves

    def drain(self, replica_id: str, now: float, *, why: MoveReason = "drain") -> list[Decision]:
        """Take nobody more, move everybody away, then stop. Who has nowhere to go stays on it until there is room."""
        home = self._homes.get(replica_id)
        if home is None:
            return []
        berth = home.by_id[replica_id]
        berth.draining = berth.draining or why
        home.refile(berth)
        return self._seating.settle(self._model_of(berth.replica), now)

    def moved(self, session_id: str, now: float) -> list[Decision]:
        """A `Move` is done: the session is on the target, and the source has its place back."""
        guest = self._seating.guests.get(session_id)
        if guest is None or guest.state != "moving":
            return []
        self._seating.arrive(guest, now)
        self._seating.counts["moves"] += 1
        return self._seating.settle(guest.asked.model, now)

    def move_failed(self, session_id: str, now: float, *, lost: bool = False) -> list[Decision]:
        """A `Move` did not happen: the session is where it was, or `lost` and to be restored from what was kept."""
        guest = self._seating.guests.get(session_id)
        if guest is None or guest.state != "moving":
            return []
        self._seating.stay(guest, now)
        if lost:
            self._seating.unseat(guest, now)
            self._seating.line_up(guest, lost=True)
        return self._seating.settle(guest.asked.model, now)

    # Replicas

    def replica_ready(self, replica: Replica, now: float, sessions: Sequence[FleetRequest] = ()) -> list[Decision]:
        """It can be used. `sessions` are on it already: a gateway that restarts learns from its replicas who is where. One that
        has a place elsewhere by now keeps that: `place_of` says so."""
        assert replica.replica_id not in self._homes, f"{replica.replica_id} was ready already"
        state, seating = self.pools[replica.pool], self._seating
        berth = Berth(replica, now)
        berth.outdated = replica.version != state.pool.version
        state.ready(berth, now)
        home = self._homes[replica.replica_id] = seating.berths[state.pool.model]
        home.add(berth)
        for asked in sessions:
            self._seat_found(asked, berth, now)
        return seating.settle(state.pool.model, now)

    def found(self, asked: FleetRequest, replica_id: str, now: float) -> list[Decision]:
        """A session is on a replica and was not placed there, as a branch of another is. One that has a place keeps that."""
        home = self._homes.get(replica_id)
        if home is None:
            return []
        self._seat_found(asked, home.by_id[replica_id], now)
        return self._seating.settle(asked.model, now)

    def _seat_found(self, asked: FleetRequest, berth: Berth, now: float) -> None:
        guest = self._seating.guests.get(asked.session_id)
        if guest is None:
            guest = Guest(asked, now)
            self._seating.add(guest)
        elif guest.berth is not None:
            return
        else:
            self._seating.lines[asked.model].leave(asked.session_id)
        self._seating.seat(guest, berth, now)

    def replica_changed(self, replica: Replica, now: float) -> list[Decision]:
        """It says other chunk times, graphs or misses of itself."""
        home = self._homes.get(replica.replica_id)
        if home is None:
            return []
        berth = home.by_id[replica.replica_id]
        berth.hear(replica)
        home.refile(berth, heard=True)
        return self._seating.settle(self._model_of(replica), now)

    def replica_gone(self, replica_id: str, now: float) -> list[Decision]:
        """It is dead, or has stopped. Its sessions are restored elsewhere, or stand at the head of the line, in the order in
        which they would wait."""
        home = self._homes.pop(replica_id, None)
        if home is None:
            return []
        seating, berth = self._seating, home.remove(replica_id)
        self.pools[berth.replica.pool].gone(berth, now)
        seating.counts["deaths"] += not berth.stopping
        decisions: list[Decision] = []
        for guest in [seating.guests[session_id] for session_id in berth.held]:
            if guest.target is berth:
                seating.stay(guest, now)
            elif guest.target is not None:
                seating.arrive(guest, now)
                seating.counts["restored"] += 1
                guest.restored = True
                target = guest.berth
                assert target is not None
                decisions.append(Place(session_id=guest.asked.session_id, replica_id=target.replica_id, restore=True))
            else:
                seating.unseat(guest, now)
                seating.line_up(guest, lost=True)
        return [*decisions, *seating.settle(self._model_of(berth.replica), now)]

    def start_failed(self, pool: str, now: float) -> list[Decision]:
        """A `StartReplica` came to nothing. It is asked for again, later each time."""
        self.pools[pool].failed(now)
        return []

    # How many there are

    def deploy(self, pool: str, version: str, now: float) -> list[Decision]:
        """From now on this version: replicas of others are replaced one by one, the emptiest first, nobody is cut off."""
        state = self.pools[pool]
        state.pool = replace(state.pool, version=version)
        for berth in state.berths.values():
            berth.outdated = berth.replica.version != version
        return self.scale(now)

    def resize(self, pool: str, minimum: int, maximum: int, now: float) -> list[Decision]:
        """Other bounds on how many replicas there may be."""
        state = self.pools[pool]
        state.pool = replace(state.pool, minimum=minimum, maximum=maximum)
        return self.scale(now)

    def scale(self, now: float) -> list[Decision]:
        """To be called every few seconds: starts, drains and stops replicas by what is promised and queued, goes on with
        deploys, and moves sessions away from replicas that turned out slower than they promised."""
        decisions: list[Decision] = []
        for name, state in self.pools.items():
            starts, changed = scale_pool(state, self._waiting_for(name), now)
            for berth in changed:
                self._homes[berth.replica_id].refile(berth)
            decisions += starts
        for model in self._seating.berths:
            decisions += self._seating.cool(model, now)
            decisions += self._seating.settle(model, now)
        return decisions

    def metrics(self, now: float) -> FleetMetrics:
        counts = self._seating.counts
        return FleetMetrics(
            pools={name: self._pool_metrics(name, state, now) for name, state in self.pools.items()},
            placed=counts["placed"],
            refused=counts["refused"],
            moves=counts["moves"],
            deaths=counts["deaths"],
            restored=counts["restored"],
        )

    def _pool_metrics(self, name: str, state: PoolState, now: float) -> PoolMetrics:
        berths, hours, waiting = state.berths.values(), state.hours(now), self._waiting_for(name)
        room = sum(berth.config.share for berth in berths)
        return PoolMetrics(
            ready=len(berths),
            starting=len(state.starts),
            draining=len(state.draining),
            wanted=state.wanted(waiting),
            sessions=state.sessions,
            waiting=waiting,
            promised=sum(berth.share for berth in berths) / room if room else 0.0,
            replica_hours=hours,
            stream_hours=(self._seating.stream_s[name] + state.sessions * now) / 3600,
            dollars=hours * state.pool.dollars_per_hour,
            misses=state.misses + sum(berth.replica.misses for berth in berths),
        )

    def _waiting_for(self, pool: str) -> int:
        """Sessions in line count for the first pool of their model that may still grow, or else for the first; those that are
        too large for every replica there is, for the pools that have none."""
        model = self.pools[pool].pool.model
        line, home = self._seating.lines[model], self._seating.berths[model]
        pools = {name: state for name, state in self.pools.items() if state.pool.model == model}
        growing = [name for name, state in pools.items() if state.may_grow]
        is_first = pool == (growing or list(pools))[0]
        if not line or (home.by_id and not is_first and pools[pool].berths):
            return 0
        large = [name for name in line if home.by_id and not home.ever(self._seating.guests[name].asked.request)]
        return (len(line) - len(large) if is_first else 0) + (0 if pools[pool].berths else len(large))

    def _model_of(self, replica: Replica) -> str:
        return self.pools[replica.pool].pool.model

    def _why_never(self, asked: FleetRequest) -> str | None:
        """None while a pool of its model has no replica: nobody knows yet."""
        homes = self._seating.berths
        if asked.model not in homes:
            return f"no replica of this fleet runs {asked.model}; it has {', '.join(sorted(homes))}"
        home, request = homes[asked.model], asked.request
        if home.ever(request) or not all(state.berths for state in self.pools.values() if state.pool.model == asked.model):
            return None
        obstacles = [obstacle for berth in home if (obstacle := berth.obstacle(request, ())) is not None]
        return f"no replica is large enough: {obstacles[0].reason}"

    def _why_over_quota(self, asked: FleetRequest) -> str | None:
        key = self._keys.get(asked.key)
        try:
            if key is not None:
                key.check_sessions(self._seating.open[asked.key])
        except Overloaded as error:
            return str(error)
        return None

    def _queued(self, session_id: str, before: int) -> Queued:
        """People who have stayed are as likely to go as people who just came: places become free one by one."""
        placed = len(self._seating.guests) - self._seating.num_waiting
        wait = None if self._stay_s is None or not placed else (before + 1) * self._stay_s / placed
        reason = f"{before} waiting before it" if before else f"{FULL}: it is next"
        return Queued(session_id=session_id, position=before + 1, expected_wait_s=wait, reason=reason)
