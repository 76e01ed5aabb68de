"""Chunks between their plan and their pictures: one group with the generator, one that is back and not shown, never more.

    prepare ─► post ─► [pictures of what came back before] ─► wait ─► keep its latents ─► pictures, once the next has left

So a mesh works while pictures are made here. A generator in this process is done when the post returns: there is nothing to
overlap with, the pictures are made at once, and the chunk's commit when they are out. Every post is waited for before
anything else happens, so nobody ever meets a session that has a chunk with the generator; `show` is all it takes to leave
nothing under way.

Knows no turns and no lock: whoever flies chunks is told when a turn is over, a chunk is shown or a session has failed. One
thread uses it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.core.errors import MeshGivenUp
from millstream.runtime.decoding import Arrived
from millstream.runtime.engine import Engine
from millstream.runtime.ports import Posted
from millstream.runtime.seats import Ready, Seat, Work
from millstream.runtime.session import Chunk, Session
from millstream.wire.parcel import Delivery


class Begun(NamedTuple):
    """A turn."""

    at: float
    """By `time.monotonic`."""
    repairs: int
    """Of the mesh, before it."""


@dataclass(slots=True, eq=False)
class Landing:
    """A chunk that is back."""

    seat: Seat
    session: Session
    arrived: Arrived | None
    """None for one that is not to be shown: a duplicate, or from before a cut."""
    begun: Begun
    """Its turn."""
    together: int
    """Chunks that shared its model calls."""
    front_s: float
    """Seconds of this process that it alone has cost: its part of what came before the post, and its pictures."""
    phases_ms: Counter[str] = field(default_factory=Counter)
    turn_s: float | None = None
    """How long its turn kept the next one from leaving; None while it still does."""
    repaired: bool = False
    """Whether the mesh was mended in its turn: how long that took says nothing of the next one."""

    @property
    def num_frames(self) -> int:
        """Pixel frames that a viewer gets."""
        return 0 if self.arrived is None else self.arrived.planned.real_frames

    @property
    def chunk_s(self) -> float:
        """What one more such chunk takes of a server that does nothing else, which is what promises are made of.

        On one device that is all it took. Over a mesh, generator and pictures of two chunks run at the same time, and what
        counts is the longer of the two; time between sessions' turns, when neither works, is nobody's.
        """
        assert self.turn_s is not None, f"the turn of {self.seat.label} is not over"
        return max(self.turn_s / self.together, self.front_s)


class Failure(NamedTuple):
    seat: Seat
    error: Exception
    chunk_index: int


class Flights:
    def __init__(
        self,
        engine: Engine,
        *,
        turn_over: Callable[[Landing], None],
        shown: Callable[[Landing, Chunk], None],
        failed: Callable[[Seat, Exception, int], None],
    ) -> None:
        """`turn_over`: the next chunk may leave, of this session too; `failed` says in which chunk."""
        self._engine, self._turn_over, self._shown, self._failed = engine, turn_over, shown, failed
        self._unshown: list[Landing] = []

    @property
    def any_unshown(self) -> bool:
        return bool(self._unshown)

    def unshown(self, seat: Seat) -> Landing | None:
        """This session's chunk that is back and has no pictures yet."""
        return next((landing for landing in self._unshown if landing.seat is seat), None)

    def fly(self, work: Sequence[Work], begun: Begun) -> None:
        """Chunks of one kind, from decision to latents. Whatever goes wrong ends the session it happened to and no other."""
        taken_up, ready = time.monotonic(), list[Ready]()
        for seat, session, decision in [item for item in work if self._anchored(item)]:
            try:
                ready.append(Ready(seat, session, session.prepare(decision)))
            except Exception as error:
                self._give_up(seat, error, decision.envelope.chunk_index)
        standing = [one for one in ready if not one.session.ended]
        if standing:
            self._send(standing, begun, taken_up)

    def show(self) -> None:
        """Make the pictures of what is back: nothing is under way afterwards."""
        self._report(self._make_pictures())

    def _send(self, ready: Sequence[Ready], begun: Begun, taken_up: float) -> None:
        """In the same model calls; if those fail, one by one, to learn whose fault it was."""
        try:
            posted = self._engine.transport.post([parcel for _, _, parcel in ready])
        except Exception as error:
            self._send_singly(ready, begun, error)
            return
        elsewhere, phases_ms = not posted.done(), self._engine.parts.stopwatch.lap()
        before_s = time.monotonic() - taken_up
        failures = self._make_pictures()  # the mesh works meanwhile
        deliveries, refusal = _wait(posted)
        self._report(failures)  # only now: a session is not let go of in flight
        if refusal is not None:
            self._send_singly(ready, begun, refusal)
            return
        for seat, session, arrived in self._receive(ready, deliveries):
            share_ms = Counter({name: ms / len(ready) for name, ms in phases_ms.items()})
            self._unshown.append(Landing(seat, session, arrived, begun, len(ready), before_s / len(ready), share_ms))
        if not elsewhere:
            self.show()
        for landing in self._unshown:
            self._turn_over(landing)

    def _send_singly(self, ready: Sequence[Ready], begun: Begun, error: Exception) -> None:
        """Those of a group that failed who are still there; one that was alone has nobody else to blame."""
        for one in ready:
            if not one.session.ended:
                if len(ready) == 1:
                    self._give_up(one.seat, error, one.parcel.envelope.chunk_index)
                else:
                    self._send([one], begun, time.monotonic())

    def _make_pictures(self) -> list[Failure]:
        landings, self._unshown = self._unshown, []
        failures = list[Failure]()
        for landing in landings:
            chunk, begun = None, time.monotonic()
            if landing.arrived is not None:
                try:
                    before_s = landing.seat.commit_s
                    chunk = landing.session.finish(landing.arrived, shared_ms=landing.phases_ms, before_s=before_s)
                except Exception as error:
                    failures.append(Failure(landing.seat, error, landing.arrived.envelope.chunk_index))
                    continue
            landing.front_s += time.monotonic() - begun
            if landing.turn_s is None:
                self._turn_over(landing)
            if chunk is not None:
                self._shown(landing, chunk)
                failures += self._settled(landing.seat, chunk)
        return failures

    def _settled(self, seat: Seat, chunk: Chunk) -> list[Failure]:
        """Make the commit, if that was left for now. What it took is the session's to pay for, in its next turn."""
        begun = time.monotonic()
        try:
            self._engine.settle()
        except Exception as error:
            return [Failure(seat, error, chunk.index)]
        seat.commit_s = time.monotonic() - begun
        return []

    def _report(self, failures: Sequence[Failure]) -> None:
        for failure in failures:
            self._failed(*failure)

    def _receive(
        self, ready: Sequence[Ready], deliveries: Sequence[Delivery]
    ) -> Iterator[tuple[Seat, Session, Arrived | None]]:
        """What came back for those who are still there."""
        for (seat, session, parcel), delivery in zip(ready, deliveries, strict=True):
            if session.ended:
                continue
            try:
                yield seat, session, session.receive(delivery)
            except Exception as error:
                self._failed(seat, error, parcel.envelope.chunk_index)

    def _anchored(self, work: Work) -> bool:
        """Make the one picture that a session's next chunk may be built on, ahead of the others. Whether it can go on."""
        if work.session.ended:  # its last pictures could not be made
            return False
        landing = self.unshown(work.seat)
        if landing is None or landing.arrived is None:
            return True
        begun = time.monotonic()
        try:
            work.session.decode_anchor(landing.arrived)
        except Exception as error:
            self._unshown.remove(landing)
            self._failed(work.seat, error, landing.arrived.envelope.chunk_index)
            return False
        landing.phases_ms.update(self._engine.parts.stopwatch.lap())
        landing.front_s += time.monotonic() - begun
        return True

    def _give_up(self, seat: Seat, error: Exception, chunk: int) -> None:
        """The chunk before was made and is shown, whatever became of this one."""
        self.show()
        self._failed(seat, error, chunk)


def _wait(posted: Posted) -> tuple[list[Delivery], Exception | None]:
    """What came back, or why nothing did. Without a mesh no session can go on: that is not one of them failing."""
    try:
        return posted.result(), None
    except MeshGivenUp:
        raise
    except Exception as error:
        return [], error
