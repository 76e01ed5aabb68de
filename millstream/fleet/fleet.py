"""A fleet at work: tells the policy what happens to replicas and sessions, and has done what it decides.

Knows neither Ray nor clients: `Replicas` starts and ends servers (`fleet/on_ray.py`), the gateway asks for
places. All of it is on one event loop. Nothing is kept that a restart would lose: who is where, the replicas
say (`fleet/link.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec

from millstream.core import tracing
from millstream.core.client_messages import Ask
from millstream.core.errors import ConfigError, MillstreamError, Overloaded, ProtocolBroken, UnknownSession
from millstream.fleet import link
from millstream.fleet.config import FleetConfig
from millstream.fleet.decision_runner import DecisionRunner
from millstream.fleet.policy.fleet_policy import FleetPolicy
from millstream.fleet.policy.types import FleetRequest, Place
from millstream.fleet.recorder import FleetNotes, FleetRecorder
from millstream.fleet.replica_link import ReplicaLink, end_copy
from millstream.fleet.replica_starter import ReplicaStarter
from millstream.fleet.waiters import Tell
from millstream.serving.admission_types import Queued, Refused, Request

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""How often it is looked which replicas there are."""
SCALE_S = 2.0
SETTLE_S = 10.0
"""For replicas that are there already to report, before it is decided that there are too few."""
FIND_S = 1.0
"""For a session that no replica knows of to be reported: it may be a branch a moment old."""


@dataclass(eq=False)
class LiveFleet:
    config: FleetConfig
    replicas: ReplicaStarter
    secret: bytes
    policy: FleetPolicy = field(init=False)
    links: dict[str, ReplicaLink] = field(default_factory=dict)
    """By replica, also of those that are not ready yet."""
    notes: FleetNotes = field(default_factory=FleetNotes)
    _runner: DecisionRunner = field(init=False)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by every report."""

    def __post_init__(self) -> None:
        table = self.config.table
        self.policy = FleetPolicy(
            self.config.pools, keys=self.config.keys, placement=table.placement, max_waiting=table.max_waiting
        )
        self._runner = DecisionRunner(self.config, self.policy, self.replicas, self.links, self.notes)

    async def run(self) -> None:
        """Until it is cancelled."""
        settled_by = time.monotonic() + SETTLE_S
        next_scale = 0.0
        while True:
            await self._find_replicas()
            self._runner.forget_late()
            now = time.monotonic()
            if now >= next_scale and (
                now > settled_by or all(each.report is not None for each in self.links.values())
            ):
                settled_by = now
                next_scale = now + SCALE_S
                self._runner.carry_out(self.policy.scale(now))
            await asyncio.sleep(LOOK_S if next_scale else LOOK_S / 5)

    async def close(self) -> None:
        await self._runner.close()

    # What the gateway asks for

    def ready(self, model: str = "") -> list[ReplicaLink]:
        """Replicas of a model that can be used; without one, of the first pool's."""
        model = model or self.config.pools[0].model
        pools = {pool.name for pool in self.config.pools if pool.model == model}
        return [each for each in self.links.values() if each.is_ready and each.address.pool in pools]

    async def price(self, ask: Ask, session_id: str, *, key: str, model: str = "") -> FleetRequest:
        """Return what a session would take. Raises the error of a faulty request, and `Overloaded` where no
        replica can answer."""
        asked = msgspec.structs.replace(ask, image=b"")  # a picture changes nothing of what it takes
        request = await self._ask_any(link.Price(ask=msgspec.json.encode(asked), key=key), model)
        return FleetRequest(request=replace(request, session_id=session_id), key=key)

    async def place(self, asked: FleetRequest, tell: Tell) -> ReplicaLink:
        """Where the session is to be; `tell` hears its position while it waits. Raises `Overloaded`."""
        now = time.monotonic()
        answer = self.policy.ask(asked, now)
        if self.notes.recorder is not None:
            self.notes.recorder.asked(asked, now)
            self.notes.recorder.decided([answer], now)
        self._runner.keys[asked.session_id] = asked.key
        if isinstance(answer, Queued):
            here = await self._wait(asked.session_id, tell)
        else:
            here = self._seated(asked.session_id, answer)
        tracing.record("place", asked.session_id, time.monotonic() - now, replica=here.replica_id)
        return here

    def give_back(self, session_id: str) -> None:
        """The place of a session that has not come to it, and will not."""
        if self._runner.expected.pop(session_id, None) is not None:
            self._runner.carry_out(self._runner.end_session(session_id, time.monotonic()))

    async def find(self, session_id: str, key: str, tell: Tell) -> ReplicaLink:
        """Find where a session is that was live: on a replica, in line to come back, or kept. Raises
        `UnknownSession`."""
        give_up = time.monotonic() + FIND_S
        while (here := self.link_of(session_id)) is None:
            if any(queued.session_id == session_id for queued in self.policy.waiting(time.monotonic())):
                return await self._wait(session_id, tell)
            if time.monotonic() > give_up:
                request = await self._ask_any(link.FindKept(session_id=session_id, key=key))
                self._come_back(FleetRequest(request=replace(request, session_id=session_id), key=key))
            else:
                await self._next_news()
        return here

    def _come_back(self, asked: FleetRequest) -> None:
        """A kept session that is nowhere has its place, or is in line. Raises `Overloaded`."""
        if self.policy.knows(asked.session_id):  # another client asked for it meanwhile
            return
        self._runner.keys[asked.session_id] = asked.key
        decisions = self.policy.came_back(asked, time.monotonic())
        self._runner.carry_out(decisions)
        for decision in decisions:
            if isinstance(decision, Refused) and decision.session_id == asked.session_id:
                self._seated(asked.session_id, decision)

    async def find_view(self, view_id: str) -> ReplicaLink:
        give_up = time.monotonic() + FIND_S
        while True:
            for each in self.links.values():
                if each.report is not None and any(
                    view_id in (known.view_id, *known.other_views) for known in each.report.sessions
                ):
                    return each
            if time.monotonic() > give_up:
                raise UnknownSession("there is no such session; it may have ended")
            await self._next_news()

    async def moved_from(self, session_id: str, here: ReplicaLink) -> ReplicaLink | None:
        """Where a session is now that was there a moment ago; None where it did not move."""
        while session_id in self._runner.moving:
            await self._next_news()
        now = self.link_of(session_id)
        return None if now is here else now

    def link_of(self, session_id: str) -> ReplicaLink | None:
        replica_id = self.policy.place_of(session_id)
        return None if replica_id is None else self.links.get(replica_id)

    def drain(self, replica_id: str) -> None:
        if replica_id not in self._runner.known:
            raise UnknownSession(
                f"there is no replica {replica_id}; known: {', '.join(sorted(self._runner.known)) or 'none'}"
            )
        self.notes.note("drain", replica_id, "asked for")
        if self.notes.recorder is not None:
            self.notes.recorder.drained(replica_id, time.monotonic())
        self._runner.carry_out(self.policy.drain(replica_id, time.monotonic()))

    def record(self) -> None:
        """Begin a trace; one that was begun is given up."""
        self.notes.recorder = FleetRecorder(self.config, time.monotonic(), SCALE_S)

    def move(self, session: str, target: str) -> None:
        """An operator wants one session elsewhere, by the letters that are shown of it."""
        found = [name for known in self._runner.known.values() for name in known if name.startswith(session)]
        decisions = self.policy.move(found[0], target, time.monotonic()) if len(found) == 1 else []
        if not decisions:
            raise UnknownSession(f"{session!r} is not one session that {target} has room for now")
        self._runner.carry_out(decisions)

    def resize(self, pool: str, minimum: int, maximum: int) -> None:
        self._check_pool(pool)
        self._runner.carry_out(self.policy.resize(pool, minimum, maximum, time.monotonic()))

    def deploy(self, pool: str, version: str) -> None:
        self._check_pool(pool)
        now = time.monotonic()
        if self.notes.recorder is not None:
            self.notes.recorder.deployed(pool, version, now)
        self._runner.carry_out(self.policy.deploy(pool, version, now))

    def _check_pool(self, pool: str) -> None:
        if pool not in self.config.replicas:
            raise ConfigError(
                f"there are no replicas called {pool}; known: {', '.join(sorted(self.config.replicas))}"
            )

    # Replicas come and go

    async def _find_replicas(self) -> None:
        try:
            found = await self.replicas.running()
        except MillstreamError as error:
            log.warning("cannot see which replicas there are: %s", error)
            return
        for address in found:
            if address.replica_id not in self.links:
                each = ReplicaLink(address, self.secret, self._heard)
                self.links[address.replica_id] = each
                self._runner.spawn(self._listen(each))

    async def _listen(self, each: ReplicaLink) -> None:
        why = await each.run()
        del self.links[each.replica_id]
        self._runner.ending.discard(each.replica_id)
        if each.replica_id not in self._runner.known:
            return  # it may be there yet: it is looked for again
        del self._runner.known[each.replica_id]
        log.warning("replica %s is gone: %s", each.replica_id, why)
        self.notes.note("death", each.replica_id, why)
        if self.notes.recorder is not None:
            self.notes.recorder.killed(each.replica_id, time.monotonic())
        self._runner.carry_out(self.policy.replica_gone(each.replica_id, time.monotonic()))

    def _heard(self, each: ReplicaLink) -> None:
        report = each.report
        now = time.monotonic()
        assert report is not None, "called with a report"
        if self.notes.recorder is not None and not report.trouble:
            self.notes.recorder.ready(each.replica_id, report, now)
        if each.replica_id in self._runner.ending:
            return
        if not report.trouble and each.replica_id not in self._runner.known:
            self._welcome(each, report, now)
        elif each.replica_id in self._runner.known:
            self._compare(each.replica_id, report, now)
        self._news.set()

    def _welcome(self, each: ReplicaLink, report: link.Report, now: float) -> None:
        self._runner.starts.end_one(report.pool)
        self._runner.known[each.replica_id] = {session.asked.session_id for session in report.sessions}
        self._runner.keys |= {session.asked.session_id: session.asked.key for session in report.sessions}
        self.notes.note(
            "ready", each.replica_id, f"{report.pool} on {report.node}, {len(report.sessions)} sessions"
        )
        sessions = [session.asked for session in report.sessions]
        self._runner.carry_out(self.policy.replica_ready(report.replica(each.replica_id), now, sessions))

    def _compare(self, replica_id: str, report: link.Report, now: float) -> None:
        """Carry out what follows from the sessions that came to the replica or left it since its last
        report."""
        named = {session.asked.session_id: session for session in report.sessions}
        before = self._runner.known[replica_id]
        self._runner.known[replica_id] = set(named)
        decisions = self.policy.replica_changed(report.replica(replica_id), now)
        for session_id in before - set(named) - self._runner.moving.keys():
            if self.policy.place_of(session_id) == replica_id:
                decisions += self._runner.end_session(session_id, now)
        for session_id in set(named) - self._runner.moving.keys():
            if self.policy.place_of(session_id) is None:
                self._runner.keys[session_id] = named[session_id].asked.key
                decisions += self.policy.on_session_found(named[session_id].asked, replica_id, now)
            if self.policy.place_of(session_id) == replica_id:
                self._runner.expected.pop(session_id, None)
            else:
                self._runner.spawn(end_copy(session_id, self.links[replica_id]))
        self._runner.carry_out(decisions)

    async def _wait(self, session_id: str, tell: Tell) -> ReplicaLink:
        try:
            answer = await self._runner.waiters.wait(session_id, tell, self.policy.waiting(time.monotonic()))
        except asyncio.CancelledError:  # the caller has gone
            self._runner.carry_out(self._runner.end_session(session_id, time.monotonic()))
            raise
        return self._seated(session_id, answer)

    def _seated(self, session_id: str, answer: Place | Refused) -> ReplicaLink:
        if isinstance(answer, Refused):
            self._runner.keys.pop(session_id, None)
            raise Overloaded(answer.reason, fps=answer.fps, can_wait=answer.can_wait, never=answer.never)
        here = self.links.get(answer.replica_id)
        if here is None:
            raise ProtocolBroken("the replica has gone meanwhile; try again")
        self._runner.expect(session_id)
        return here

    async def _ask_any(self, order: link.AnyOrder, model: str = "") -> Request:
        for each in self.ready(model):
            try:
                request = await each.order(order)
            except ProtocolBroken:
                continue
            assert request is not None, f"{order} was not answered"
            return request
        raise Overloaded("no replica is ready; try again in a moment")

    async def _next_news(self) -> None:
        self._news.clear()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._news.wait(), FIND_S / 4)
