"""A fleet's decisions, all of them: every event comes in here, and out comes what is to be done.

Whoever runs a fleet (Ray, or the simulator) tells what happened and when, carries out the decisions in their order, and tells
what came of them. Admission across replicas: a session goes where it fits by the rules of one server's admission. Who fits
nowhere waits in one line. Nothing here knows Ray, sockets, threads or a clock: `now` is seconds of one clock, never backwards.
Not safe to call from two threads at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from millstream.fleet.policy.types import (
    Answer,
    Decision,
    FleetMetrics,
    FleetRequest,
    MoveReason,
    Placement,
    Pool,
    Replica,
)
from millstream.server.access.keys import Key
from millstream.serving.admission_types import Queued


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

    # Sessions

    def ask(self, asked: FleetRequest, now: float, *, since: float | None = None) -> Answer:
        """A new session: a place, a place in line, or why not. `since`, for one that stood in the line of a gateway that is
        gone: when it first asked. It is where it was."""
        raise NotImplementedError

    def left(self, session_id: str, now: float) -> list[Decision]:
        """A session has ended, wherever it was, in line, moving or lost. Who comes in instead."""
        raise NotImplementedError

    def declined(self, session_id: str, now: float) -> list[Decision]:
        """The replica would not have it after all. Unless it is placed elsewhere now, it stands in line, where it came from."""
        raise NotImplementedError

    def waiting(self, now: float) -> tuple[Queued, ...]:
        """Everybody in line, in order. A position counts those of the same model: others use other replicas."""
        raise NotImplementedError

    def place_of(self, session_id: str) -> str | None:
        """The replica that a session is on; while it moves, the one it comes from. None: in line."""
        raise NotImplementedError

    # Moves

    def drain(self, replica_id: str, now: float, *, why: MoveReason = "drain") -> list[Decision]:
        """Take nobody more, move everybody away, then stop. Who has nowhere to go stays on it until there is room."""
        raise NotImplementedError

    def moved(self, session_id: str, now: float) -> list[Decision]:
        """A `Move` is done: the session is on the target, and the source has its place back."""
        raise NotImplementedError

    def move_failed(self, session_id: str, now: float, *, lost: bool = False) -> list[Decision]:
        """A `Move` did not happen: the session is where it was, or `lost` and to be restored from what was kept."""
        raise NotImplementedError

    # Replicas

    def replica_ready(self, replica: Replica, now: float, sessions: Sequence[FleetRequest] = ()) -> list[Decision]:
        """It can be used. `sessions` are on it already: a gateway that restarts learns from its replicas who is where."""
        raise NotImplementedError

    def replica_changed(self, replica: Replica, now: float) -> list[Decision]:
        """It says other chunk times, graphs or misses of itself."""
        raise NotImplementedError

    def replica_gone(self, replica_id: str, now: float) -> list[Decision]:
        """It is dead, or has stopped. Its sessions are restored elsewhere, or stand at the head of the line."""
        raise NotImplementedError

    def start_failed(self, pool: str, now: float) -> list[Decision]:
        """A `StartReplica` came to nothing. It is asked for again, later each time."""
        raise NotImplementedError

    # How many there are

    def deploy(self, pool: str, version: str, now: float) -> list[Decision]:
        """From now on this version: replicas of others are replaced one by one, the emptiest first, nobody is cut off."""
        raise NotImplementedError

    def resize(self, pool: str, minimum: int, maximum: int, now: float) -> list[Decision]:
        """Other bounds on how many replicas there may be."""
        raise NotImplementedError

    def scale(self, now: float) -> list[Decision]:
        """To be called every few seconds: starts, drains and stops replicas by what is promised and queued, goes on with
        deploys, and moves sessions away from replicas that turned out slower than they promised."""
        raise NotImplementedError

    def metrics(self, now: float) -> FleetMetrics:
        raise NotImplementedError
