"""A fleet's decisions, all of them: every event comes in here, and out comes what is to be done.

The caller (Ray, or the simulator) tells what happened and when, carries out the decisions in their
order, and tells what came of them. A session goes where it fits by the rules of one server's admission; who
fits nowhere waits in one line.

Nothing here knows Ray, sockets, threads or a clock: `now` is seconds of one clock, never backwards. Reports
that come too late, of a session or a replica that is gone, change nothing. Not safe to call from two threads
at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from millstream.core.errors import Overloaded
from millstream.core.keys import Key
from millstream.fleet.policy.placement_table import FleetSession, PlacementTable
from millstream.fleet.policy.pool_state import PoolState
from millstream.fleet.policy.replica_capacity import ReplicaCapacity, ReplicaIndex
from millstream.fleet.policy.scaling import scale_pool
from millstream.fleet.policy.types import (
    Answer,
    Decision,
    FleetMetrics,
    FleetRequest,
    MoveReason,
    Placement,
    Pool,
    PoolMetrics,
    Replica,
)
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
        """`keys` by name; a key that is not among them has no limits. The line of the whole fleet has
        `max_waiting` places."""
        self.pools = {pool.name: PoolState(pool) for pool in pools}
        self._keys = dict(keys or {})
        self._max_waiting = max_waiting
        models = {state.pool.model for state in self.pools.values()}
        self._table = PlacementTable(models, placement, self._why_never)
        self._homes: dict[str, ReplicaIndex] = {}
        """By replica."""
        self._stay_s: float | None = None

    # Sessions

    def ask(self, asked: FleetRequest, now: float, *, since: float | None = None) -> Answer:
        """A new session: a place, a place in line, or why not. `since`, for one that stood in the line of a
        gateway that is gone: when it first asked. It is where it was."""
        table = self._table
        request = asked.request
        assert asked.session_id not in table.sessions, f"{asked.session_id} has asked already"
        never = self._why_never(asked)
        why = never or self._why_over_quota(asked)
        if why is not None:
            return table.refuse(asked, why, never=never is not None)
        session = table.session(asked, now if since is None else since)
        room = None if table.is_behind(session) else table.choose(session)
        full = room is None and table.num_waiting >= self._max_waiting
        if room is None and (full or not request.may_wait):
            taken = f"; all {self._max_waiting} places in line are taken" if full else ""
            return table.refuse(asked, f"{FULL}{taken}: try again later", can_wait=not full)
        table.add(session)
        if room is not None:
            return table.place(session, room, now)
        before = table.lines[asked.model].before(session.line_place)
        table.line_up(session, lost=False)
        return self._queued(asked.session_id, before)

    def came_back(self, asked: FleetRequest, now: float) -> list[Decision]:
        """A client wants one again that was kept and is nowhere: its replica died, and so did the gateway
        that knew of it."""
        table = self._table
        assert asked.session_id not in table.sessions, f"{asked.session_id} is known"
        why = self._why_never(asked) or self._why_over_quota(asked)
        if why is not None:
            return [table.refuse(asked, why)]
        session = table.session(asked, now)
        table.add(session)
        table.line_up(session, lost=True)
        return table.assign_waiting(asked.model, now)

    def knows(self, session_id: str) -> bool:
        """Return whether the session is on a replica, on its way to one, or in line."""
        return session_id in self._table.sessions

    def on_session_left(self, session_id: str, now: float) -> list[Decision]:
        """A session has ended, wherever it was, in line, moving or lost. Who comes in instead."""
        session = self._table.sessions.get(session_id)
        if session is None:
            return []
        if session.room is not None:
            stay = now - session.placed_at
            past = self._stay_s
            self._stay_s = stay if past is None else STAY_SMOOTHING * past + (1 - STAY_SMOOTHING) * stay
        self._table.forget(session, now)
        return self._table.assign_waiting(session.asked.model, now)

    def on_declined(self, session_id: str, now: float) -> list[Decision]:
        """The replica would not have it after all, and is asked again when it has said how it is. The session
        is placed elsewhere, or stands in line where it would have stood; who would not wait is refused."""
        table = self._table
        session = self._table.sessions.get(session_id)
        if session is None or session.room is None or session.state != "placed":
            return []
        session.room.closed = True
        table.put_back(session, now, lost=session.restored)
        decisions = table.assign_waiting(session.asked.model, now)
        if not (session.restored or session.asked.request.may_wait) and self.place_of(session_id) is None:
            table.forget(session, now)
            decisions.append(table.refuse(session.asked, f"{FULL}: try again later"))
        return decisions

    def waiting(self, now: float) -> tuple[Queued, ...]:
        """All in line, in order. A position counts those of the same model: others use other
        replicas."""
        lines = self._table.lines.values()
        return tuple(
            self._queued(session_id, before) for line in lines for before, session_id in enumerate(line)
        )

    def place_of(self, session_id: str) -> str | None:
        """The replica that a session is on; while it moves, the one it comes from. None: in line, or
        unknown."""
        session = self._table.sessions.get(session_id)
        return None if session is None or session.room is None else session.room.replica_id

    def sessions_on(self, replica_id: str) -> tuple[str, ...]:
        """Return the sessions on the replica, without those on their way to it."""
        home = self._homes.get(replica_id)
        held = () if home is None else home.by_id[replica_id].held
        return tuple(name for name in held if self.place_of(name) == replica_id)

    # Moves

    def drain(self, replica_id: str, now: float, *, why: MoveReason = "drain") -> list[Decision]:
        """Take no more sessions, move all away, then stop. Who has nowhere to go stays on it until there is
        room."""
        home = self._homes.get(replica_id)
        if home is None:
            return []
        room = home.by_id[replica_id]
        room.draining = room.draining or why
        home.refile(room)
        return self._table.assign_waiting(self._model_of(room.replica), now)

    def move(self, session_id: str, target: str, now: float) -> list[Decision]:
        """An operator wants it there; nothing where it cannot go."""
        session = self._table.sessions.get(session_id)
        home = self._homes.get(target)
        if (
            session is None
            or session.state != "placed"
            or home is None
            or self.place_of(session_id) == target
        ):
            return []
        room = home.by_id[target]
        fits = (
            home is self._table.rooms[session.asked.model]
            and room.is_open
            and room.has_room(session.asked.request)
        )
        return [self._table.start_move(session, room, "asked")] if fits else []

    def moved(self, session_id: str, now: float, *, target: str | None = None) -> list[Decision]:
        """A `Move` is done: the session is on the target, and the source has its place back. A report that
        names another target than it goes to now is of an earlier move, and changes nothing."""
        session = self._moving(session_id, target)
        if session is None:
            return []
        self._table.arrive(session, now)
        self._table.counts["moves"] += 1
        return self._table.assign_waiting(session.asked.model, now)

    def move_failed(
        self, session_id: str, now: float, *, lost: bool = False, target: str | None = None
    ) -> list[Decision]:
        """A `Move` did not happen: the session is where it was, or `lost` and to be restored from what was
        kept."""
        session = self._moving(session_id, target)
        if session is None:
            return []
        self._table.stay(session, now)
        if lost:
            self._table.put_back(session, now, lost=True)
        return self._table.assign_waiting(session.asked.model, now)

    def _moving(self, session_id: str, target: str | None) -> FleetSession | None:
        session = self._table.sessions.get(session_id)
        if session is None or session.target is None or target not in (None, session.target.replica_id):
            return None
        return session

    # Replicas

    def replica_ready(
        self, replica: Replica, now: float, sessions: Sequence[FleetRequest] = ()
    ) -> list[Decision]:
        """It can be used. `sessions` are on it already: a gateway that restarts learns from its replicas who
        is where. One that has a place elsewhere by now keeps that: `place_of` says so."""
        assert replica.replica_id not in self._homes, f"{replica.replica_id} was ready already"
        state = self.pools[replica.pool]
        table = self._table
        room = ReplicaCapacity(replica, now)
        room.outdated = replica.version != state.pool.version
        state.ready(room, now)
        home = self._homes[replica.replica_id] = table.rooms[state.pool.model]
        home.add(room)
        for asked in sessions:
            self._place_found(asked, room, now)
        return table.assign_waiting(state.pool.model, now)

    def on_session_found(self, asked: FleetRequest, replica_id: str, now: float) -> list[Decision]:
        """A session is on a replica and was not placed there, as a branch of another is. One that has a place
        keeps that."""
        home = self._homes.get(replica_id)
        if home is None:
            return []
        self._place_found(asked, home.by_id[replica_id], now)
        return self._table.assign_waiting(asked.model, now)

    def _place_found(self, asked: FleetRequest, room: ReplicaCapacity, now: float) -> None:
        session = self._table.sessions.get(asked.session_id)
        if session is None:
            session = self._table.session(asked, now)
            self._table.add(session)
        elif session.room is not None:
            return
        else:
            self._table.lines[asked.model].remove(asked.session_id)
        self._table.place(session, room, now)

    def replica_changed(self, replica: Replica, now: float) -> list[Decision]:
        """It says other chunk times, graphs or misses of itself."""
        home = self._homes.get(replica.replica_id)
        if home is None:
            return []
        room = home.by_id[replica.replica_id]
        room.update(replica)
        home.refile(room, heard=True)
        return self._table.assign_waiting(self._model_of(replica), now)

    def replica_gone(self, replica_id: str, now: float) -> list[Decision]:
        """It is dead, or has stopped. Its sessions are restored elsewhere, or stand at the head of the line,
        in the order in which they would wait."""
        home = self._homes.pop(replica_id, None)
        if home is None:
            return []
        table = self._table
        room = home.remove(replica_id)
        self.pools[room.replica.pool].gone(room, now)
        table.counts["deaths"] += not room.stopping
        decisions: list[Decision] = []
        for session in [table.sessions[session_id] for session_id in room.held]:
            if session.target is room:
                table.stay(session, now)
            elif session.target is not None:
                decisions.append(table.restore_at_target(session, now))
            else:
                table.put_back(session, now, lost=True)
        return [*decisions, *table.assign_waiting(self._model_of(room.replica), now)]

    def start_failed(self, pool: str, now: float) -> list[Decision]:
        """A `StartReplica` came to nothing. It is asked for again, later each time."""
        self.pools[pool].failed(now)
        return []

    # How many there are

    def deploy(self, pool: str, version: str, now: float) -> list[Decision]:
        """From now on this version: replicas of others are replaced one by one, the emptiest first; no
        session is cut off."""
        state = self.pools[pool]
        state.pool = replace(state.pool, version=version)
        for room in state.rooms.values():
            room.outdated = room.replica.version != version
        return self.scale(now)

    def resize(self, pool: str, minimum: int, maximum: int, now: float) -> list[Decision]:
        """Other bounds on how many replicas there may be."""
        state = self.pools[pool]
        state.pool = replace(state.pool, minimum=minimum, maximum=maximum)
        return self.scale(now)

    def scale(self, now: float) -> list[Decision]:
        """To be called every few seconds: starts, drains and stops replicas by what is promised and queued,
        goes on with deploys, and moves sessions away from replicas that turned out slower than they
        promised."""
        decisions: list[Decision] = []
        for name, state in self.pools.items():
            starts, changed = scale_pool(state, self._table.by_pool[name], self._waiting_for(name), now)
            for room in changed:
                self._homes[room.replica_id].refile(room)
            decisions += starts
        for model in self._table.rooms:
            decisions += self._table.cool(self._table.rooms[model], now)
            decisions += self._table.assign_waiting(model, now)
            self._table.regain(model)
        return decisions

    def metrics(self, now: float) -> FleetMetrics:
        counts = self._table.counts
        return FleetMetrics(
            pools={name: self._pool_metrics(name, state, now) for name, state in self.pools.items()},
            placed=counts["placed"],
            refused=counts["refused"],
            moves=counts["moves"],
            deaths=counts["deaths"],
            restored=counts["restored"],
            yielded=counts["yielded"],
        )

    def _pool_metrics(self, name: str, state: PoolState, now: float) -> PoolMetrics:
        rooms = state.rooms.values()
        hours = state.hours(now)
        sessions = self._table.by_pool[name]
        waiting = self._waiting_for(name)
        whole = sum(room.config.share for room in rooms)
        return PoolMetrics(
            ready=len(rooms),
            starting=len(state.starts),
            draining=len(state.draining),
            wanted=state.wanted(sessions, waiting),
            sessions=sessions,
            waiting=waiting,
            promised=sum(room.share for room in rooms) / whole if whole else 0.0,
            replica_hours=hours,
            stream_hours=(self._table.stream_s[name] + sessions * now) / 3600,
            dollars=hours * state.pool.dollars_per_hour,
            misses=state.misses + sum(room.replica.misses for room in rooms),
        )

    def _waiting_for(self, pool: str) -> int:
        """Sessions in line count for the first pool of their model that may still grow, or else for the
        first; those that are too large for every replica there is, for the pools that have none."""
        # A session in line counts for one pool alone: else each pool of its model would start a replica for
        # it.
        model = self.pools[pool].pool.model
        line = self._table.lines[model]
        home = self._table.rooms[model]
        pools = {name: state for name, state in self.pools.items() if state.pool.model == model}
        growing = [name for name, state in pools.items() if state.may_grow]
        is_first = pool == (growing or list(pools))[0]
        if not line or (home.by_id and not is_first and pools[pool].rooms):
            return 0
        large = [name for name in line if home.by_id and not home.ever(self._table.sessions[name].sized)]
        return (len(line) - len(large) if is_first else 0) + (0 if pools[pool].rooms else len(large))

    def _model_of(self, replica: Replica) -> str:
        return self.pools[replica.pool].pool.model

    def _why_never(self, asked: FleetRequest) -> str | None:
        """None while a pool of its model has no replica: it is not known yet."""
        homes = self._table.rooms
        if asked.model not in homes:
            return f"no replica of this fleet runs {asked.model}; it has {', '.join(sorted(homes))}"
        home = homes[asked.model]
        request = asked.request
        pools = (state for state in self.pools.values() if state.pool.model == asked.model)
        if home.ever(home.sized(request)) or not all(state.rooms for state in pools):
            return None
        obstacles = [obstacle for room in home if (obstacle := room.obstacle(request, ())) is not None]
        return f"no replica is large enough: {obstacles[0].reason}"

    def _why_over_quota(self, asked: FleetRequest) -> str | None:
        key = self._keys.get(asked.key)
        try:
            if key is not None:
                key.check_sessions(self._table.open[asked.key])
        except Overloaded as error:
            return str(error)
        return None

    def _queued(self, session_id: str, before: int) -> Queued:
        """People who have stayed are as likely to go as people who just came: places become free one by
        one."""
        placed = len(self._table.sessions) - self._table.num_waiting
        wait = None if self._stay_s is None or not placed else (before + 1) * self._stay_s / placed
        reason = f"{before} waiting before it" if before else f"{FULL}: it is next"
        return Queued(session_id=session_id, position=before + 1, expected_wait_s=wait, reason=reason)
