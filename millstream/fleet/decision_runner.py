"""Runner of what a fleet's policy decides: places are sent, sessions moved and restored, replicas started and
stopped.

Results are reported to the policy, which decides anew. Knows neither Ray nor clients. On the event loop of
`fleet/fleet.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from millstream.core.errors import MillstreamError, ProtocolBroken, UnknownSession
from millstream.fleet import link
from millstream.fleet.config import FleetConfig
from millstream.fleet.policy.fleet_policy import FleetPolicy
from millstream.fleet.policy.types import Decision, Move, Place, StartReplica, StopReplica
from millstream.fleet.recorder import LABEL, FleetNotes
from millstream.fleet.replica_link import ReplicaLink, hand_on
from millstream.fleet.replica_starter import ReplicaStarter, ReplicaStarts
from millstream.fleet.waiters import Waiters
from millstream.serving.admission_types import Refused

log = logging.getLogger(__name__)

ARRIVE_S = 45.0
"""For a client that was given a place to come; then it is another's."""
RESTORE_S = 30.0
"""For a session whose replica died to have its place on another."""


@dataclass(eq=False)
class DecisionRunner:
    config: FleetConfig
    policy: FleetPolicy
    replicas: ReplicaStarter
    links: dict[str, ReplicaLink]
    """By replica, also of those that are not ready yet."""
    notes: FleetNotes
    known: dict[str, set[str]] = field(default_factory=dict)
    """By replica that the policy knows: the sessions that its last report named."""
    waiters: Waiters = field(default_factory=Waiters)
    expected: dict[str, float] = field(default_factory=dict)
    """Sessions with a place that have not come yet, and until when they may."""
    ending: set[str] = field(default_factory=set)
    """Replicas that are being stopped."""
    moving: dict[str, str] = field(default_factory=dict)
    """Sessions that are being moved, and to which replica."""
    starts: ReplicaStarts = field(default_factory=ReplicaStarts)
    keys: dict[str, str] = field(default_factory=dict)
    """Whose each session is that has a place."""
    _failing: dict[str, str] = field(default_factory=dict)
    """Sessions that could not be restored yet, and why."""
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def carry_out(self, decisions: Iterable[Decision]) -> None:
        decisions = list(decisions)
        if self.notes.recorder is not None:
            self.notes.recorder.decided(decisions, time.monotonic())
        for decision in decisions:
            match decision:
                case Place(restore=True):
                    self.spawn(self._restore(decision))
                case Place() | Refused():
                    self.waiters.answer(decision)
                case Move():
                    self.moving[decision.session_id] = decision.target
                    self.spawn(self._move(decision))
                case StartReplica(pool=pool, version=version, why=why):
                    self.notes.note("start", pool, why)
                    self.spawn(self._start(pool, version))
                case StopReplica(replica_id=replica_id, why=why):
                    self.notes.note("stop", replica_id, why)
                    self.spawn(self._stop(replica_id))
        self.waiters.tell(self.policy.waiting(time.monotonic()))

    def expect(self, session_id: str) -> None:
        """It has a place, and some time to come to it."""
        self.expected[session_id] = time.monotonic() + ARRIVE_S

    def end_session(self, session_id: str, now: float) -> list[Decision]:
        self.keys.pop(session_id, None)
        self._failing.pop(session_id, None)
        if self.notes.recorder is not None:
            self.notes.recorder.session_left(session_id, now)
        return self.policy.on_session_left(session_id, now)

    def forget_late(self) -> None:
        """Places that no client came for, and replicas that never became ready."""
        now = time.monotonic()
        for session_id in [name for name, until in self.expected.items() if now > until]:
            del self.expected[session_id]
            self.carry_out(self.end_session(session_id, now))
        for pool in self.starts.overdue(now):
            self.starts.end_one(pool)
            self.spawn(self._give_up_start(pool))

    async def _restore(self, place: Place) -> None:
        """A session whose replica died, from what was kept."""
        session_id = place.session_id
        here = self.links.get(place.replica_id)
        begun = time.monotonic()
        self.expect(session_id)
        try:
            if here is None:
                raise ProtocolBroken("the replica has gone meanwhile")
            key = self.keys.get(session_id, "")
            await here.order(link.TakeOver(session_id=session_id, key=key, patience_s=RESTORE_S, yields=True))
        except UnknownSession as error:
            self.notes.note("lost", place.replica_id, f": {error}", session_id)
            self.carry_out(self.end_session(session_id, time.monotonic()))
        except MillstreamError as error:
            if self._failing.get(session_id) != str(error):  # tried again and again, logged once
                log.warning("%s was not restored on %s: %s", session_id[:LABEL], place.replica_id, error)
            self._failing[session_id] = str(error)
            if self.policy.place_of(session_id) == place.replica_id:  # if that died too, the policy knows
                self.carry_out(self.policy.on_declined(session_id, time.monotonic()))
            return  # who waits for it goes on waiting
        else:
            self._failing.pop(session_id, None)
            self.notes.note("restored", place.replica_id, "", session_id, time.monotonic() - begun)
        self.waiters.answer(place)

    async def _move(self, move: Move) -> None:
        """Save, restore, tell its people. Whatever goes wrong, it is in one place, or in storage."""
        session_id = move.session_id
        begun = time.monotonic()
        source = self.links.get(move.source)
        target = self.links.get(move.target)
        try:
            if source is None or target is None:
                raise ProtocolBroken("a replica has gone meanwhile")
            await hand_on(session_id, self.keys.get(session_id, ""), source, target)
        except MillstreamError as error:
            self.notes.note("move failed", move.source, f" to {move.target}: {error}", session_id)
            # Where its source is gone too, it is in storage alone, and has to be restored as after a death.
            lost = move.source not in self.links
            decisions = self.policy.move_failed(session_id, time.monotonic(), lost=lost, target=move.target)
        else:
            self.expect(session_id)
            self.notes.move_seconds.append(time.monotonic() - begun)
            self.notes.note(
                "move", move.source, f" to {move.target}: {move.why}", session_id, time.monotonic() - begun
            )
            decisions = self.policy.moved(session_id, time.monotonic(), target=move.target)
        if (
            self.moving.get(session_id) == move.target
        ):  # else its target died, and it is on its way to another
            del self.moving[session_id]
        self.carry_out(decisions)

    async def _start(self, pool: str, version: str) -> None:
        self.starts.begin(pool, give_up=time.monotonic() + self.config.replicas[pool].ready_within)
        try:
            await self.replicas.start(pool, version)
        except MillstreamError as error:
            self.starts.end_one(pool)
            self._failed_start(pool, str(error))

    async def _give_up_start(self, pool: str) -> None:
        said = " ".join((await self.replicas.last_words(pool)).split())  # one line, whatever it is
        within = self.config.replicas[pool].ready_within
        self._failed_start(
            pool, f"a replica of {pool} was not ready within {within:g} s" + (f": {said}" if said else "")
        )

    def _failed_start(self, pool: str, why: str) -> None:
        log.error("%s", why)
        self.notes.note("start failed", pool, why)
        self.carry_out(self.policy.start_failed(pool, time.monotonic()))

    async def _stop(self, replica_id: str) -> None:
        self.ending.add(replica_id)
        self.known.pop(replica_id, None)  # so that its end is no death
        try:
            await self.replicas.stop(replica_id)
        except MillstreamError as error:
            log.warning("replica %s was not stopped: %s", replica_id, error)
        self.carry_out(self.policy.replica_gone(replica_id, time.monotonic()))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
