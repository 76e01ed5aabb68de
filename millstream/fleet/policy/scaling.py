"""How many replicas a pool has: starts and drains, by what is promised and queued, and the steps of a deploy.

One step at a time: what it says holds until it is asked again, seconds later. `PoolState.wanted` says how
many there should be.
"""

from __future__ import annotations

from typing import Literal

from millstream.fleet.policy.pool_state import PoolState
from millstream.fleet.policy.replica_capacity import ReplicaCapacity
from millstream.fleet.policy.types import StartReplica

DRAINED_AT_ONCE = 20
"""One replica in so many may be drained at a time for being too many; of fewer, one."""


def scale_pool(
    state: PoolState, sessions: int, waiting: int, now: float
) -> tuple[list[StartReplica], list[ReplicaCapacity]]:
    """Replicas to start, and those that drain from now on or do so no more."""
    state.count(sessions + waiting, now)
    wanted = state.wanted(sessions, waiting)
    changed = _replace_outdated(state, wanted) or _give_back(state, wanted, now)
    if not changed and state.total < wanted:
        changed = _take_back(state, wanted - state.total)
    return _starts(state, wanted, now), changed


def _starts(state: PoolState, wanted: int, now: float) -> list[StartReplica]:
    """Up to what is wanted; in a deploy one more, before an old one is drained. After a failure one at a
    time."""
    if now < state.retry_at:
        return []
    missing = max(0, wanted - state.total)
    why = f"what is promised and queued needs {wanted}"
    deploying = _deploying(state)
    most = state.pool.maximum
    if _outdated(state) or deploying:
        most += state.pool.surge
        if not missing and not state.starts and not deploying:
            missing = 1
            why = f"version {state.pool.version}"
    missing = max(
        0, min(missing, most - len(state.rooms) - len(state.starts))
    )  # those that drain are there as well
    missing = min(missing, 1) if state.failures else missing
    state.starts += [now] * missing
    return [StartReplica(pool=state.pool.name, version=state.pool.version, why=why) for _ in range(missing)]


def _replace_outdated(state: PoolState, wanted: int) -> list[ReplicaCapacity]:
    """The emptiest, once there is one more than wanted or no way to have one more, and no other is on its way
    out."""
    outdated = _outdated(state)
    if not outdated or state.starts or _deploying(state):
        return []
    if state.total <= wanted and state.total < state.pool.maximum + state.pool.surge:
        return []
    return _drain(outdated[:1], "deploy")


def _give_back(state: PoolState, wanted: int, now: float) -> list[ReplicaCapacity]:
    """Drain replicas that were too many for long enough, and return them: the emptiest, so that fewest
    sessions must move."""
    surplus = state.total - wanted
    if surplus <= 0 or state.starts:
        state.surplus_since = None
        return []
    if state.surplus_since is None:
        state.surplus_since = now
    at_once = max(1, len(state.rooms) // DRAINED_AT_ONCE) - len(state.draining)
    if now - state.surplus_since < state.pool.idle_s or at_once <= 0:
        return []
    return _drain(_emptiest(state.staying)[: min(surplus, at_once)], "scale-in")


def _take_back(state: PoolState, missing: int) -> list[ReplicaCapacity]:
    """Keep replicas that were about to be given back, rather than start others, and return them: the
    fullest."""
    leaving = [
        room
        for room in state.draining
        if room.draining == "scale-in" and not room.stopping and not room.outdated
    ]
    kept = _emptiest(leaving)[::-1][:missing]
    for room in kept:
        room.draining = None
    return kept


def _drain(rooms: list[ReplicaCapacity], why: Literal["deploy", "scale-in"]) -> list[ReplicaCapacity]:
    for room in rooms:
        room.draining = why
    return rooms


def _outdated(state: PoolState) -> list[ReplicaCapacity]:
    return _emptiest([room for room in state.staying if room.outdated])


def _deploying(state: PoolState) -> bool:
    return any(room.draining == "deploy" for room in state.draining)


def _emptiest(rooms: list[ReplicaCapacity]) -> list[ReplicaCapacity]:
    return sorted(rooms, key=lambda room: (len(room.held), room.replica_id))
