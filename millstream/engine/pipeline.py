"""Chunks between their plan and their pictures: the one loop that every stream goes through, of one session or of many.

    send ─► [with the generator] ─► land ─► [its latents are here] ─► show ─► [pictures]

    pipeline.send(chunks)    # the generator begins chunk k+1
    pipeline.show()          # the pictures of chunk k are made meanwhile
    pipeline.land()          # wait for chunk k+1, and keep its latents

So a mesh works while pictures are made here, and a GPU of this process has its next chunk queued behind them. A generator that
is done when it has been called leaves nothing to overlap with: its pictures are made at once. How much may be under way is a
`Depths`; who sends what is the driver's business: `engine/stream.py` for one session, `serving/service.py` for many.

Knows no turns and no lock: the driver is told when a chunk has landed, is shown, or has failed. Whatever goes wrong ends the
session it happened to and no other. One thread uses it.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NoReturn

import torch
from torch import Tensor

from millstream.core.errors import MeshGivenUp
from millstream.engine.depths import Depths
from millstream.engine.flights import Failure, Flight, Landing, Planned, Sent, Streaming
from millstream.engine.host_clock import HostClock
from millstream.generation.stopwatch import Stopwatch
from millstream.session.chunk import Chunk
from millstream.wire.parcel import Delivery, Parcel, Posted


class ChunkPipeline:
    def __init__(
        self,
        post: Callable[[Sequence[Parcel]], Posted],
        depths: Depths,
        stopwatch: Stopwatch,
        *,
        landed: Callable[[Landing], None] = lambda landing: None,
        shown: Callable[[Landing, Chunk], None],
        failed: Callable[[Streaming, Exception, int], None],
        flush: Callable[[], Posted] | None = None,
    ) -> None:
        """`landed`: the next chunk may leave, of this session too; `failed` says in which chunk. `flush` has a generator that
        holds chunks back until others come give them out."""
        self.depths = depths
        self._post, self._flush, self._stopwatch = post, flush, stopwatch
        self._landed, self._shown, self._failed = landed, shown, failed
        self._flights: deque[Flight] = deque()
        self._sent: dict[int, Sent] = {}
        """By call, all that have not come back."""
        self._unshown: list[Landing] = []
        self._failures: list[Failure] = []
        """Of pictures that were made while others' chunks were in flight: a session is not let go of then."""
        self._clock = HostClock()

    @property
    def num_sent(self) -> int:
        """Chunks with the generator."""
        return len(self._sent)

    @property
    def num_answered(self) -> int:
        """Flights that are done and were not looked at."""
        return sum(flight.posted.done() for flight in self._flights)

    @property
    def num_flights(self) -> int:
        return len(self._flights)

    @property
    def any_unshown(self) -> bool:
        return bool(self._unshown)

    def unshown(self, session_id: str) -> Landing | None:
        """This session's chunk that is back and has no pictures yet."""
        return next((landing for landing in self._unshown if landing.session.id == session_id), None)

    def send(self, planned: Sequence[Planned]) -> None:
        """Chunks of one kind, from decision to the generator: in the same model calls."""
        names = {chunk.session.id for chunk in planned}
        assert len(names) == len(planned), f"{len(planned)} chunks of {len(names)} sessions are sent together"
        sent_s, ready = time.monotonic(), list[Sent]()
        for session, decision, settled in [chunk for chunk in planned if self._anchored(chunk.session)]:
            try:
                ready.append(Sent(session, session.prepare(decision), settled, sent_s))
            except Exception as error:
                self._give_up(session, error, decision.envelope.chunk_index)
        standing = [chunk for chunk in ready if not chunk.session.ended]
        if standing:
            self._send(standing)

    def land(self) -> None:
        """Wait for what was sent first, and keep its latents: what is built on them may be planned."""
        if not self._flights:
            assert self._flush is not None, f"{len(self._sent)} chunks are under way and none was sent"
            self._flights.append(Flight((), self._flush(), at_once=True))
        chunks, posted, at_once = self._flights[0]
        with self._clock.stopped():
            deliveries, refusal = _wait(posted)
        self._flights.popleft()
        self._report()
        if refusal is not None:
            for chunk in chunks:
                del self._sent[chunk.parcel.envelope.call_id]
            self._send_singly(chunks, refusal)
            return
        self._share_phases(chunks)
        landings = [landing for delivery in deliveries for landing in self._receive(delivery, at_once)]
        self._unshown += landings
        if not at_once:
            for landing in landings:
                self._turn_over(landing)

    def show(self) -> None:
        """Make the pictures of what is back."""
        landings, self._unshown = self._unshown, []
        for landing in landings:
            self._make_pictures(landing)
        if not self._flights:
            self._report()

    def turn(self, planned: Sequence[Planned]) -> None:
        """Send chunks, make the pictures of those before meanwhile, and wait. Nothing is with the generator afterwards, so
        nobody ever meets a session that has a chunk there; `show` is all it takes to leave nothing under way."""
        begun = self._clock.now()
        self.send(planned)
        self._bring_home()
        if any(landing.at_once for landing in self._unshown):
            self.show()
        took = self._clock.now().since(begun)
        for landing in self._unshown:
            landing.host_s, landing.thread_s = (seconds / len(self._unshown) for seconds in took)

    def _bring_home(self) -> None:
        """All that are in flight; meanwhile the pictures of those before."""
        if self._flights:
            self.show()
        while self._flights:
            self.land()

    def _send(self, chunks: Sequence[Sent]) -> None:
        try:
            posted = self._post([chunk.parcel for chunk in chunks])
        except Exception as error:
            self._send_singly(chunks, error)
            return
        now = time.monotonic()
        for chunk in chunks:
            call_id = chunk.parcel.envelope.call_id
            assert call_id not in self._sent, f"call {call_id} is with the generator already"
            chunk.together, chunk.front_s = len(chunks), (now - chunk.sent_s) / len(chunks)
            self._sent[call_id] = chunk
        self._flights.append(Flight(chunks, posted, posted.done() and not self.depths.shares_device))
        if self.depths.shares_device:
            self._decode_ahead(chunks, posted.ahead())

    def _decode_ahead(self, chunks: Sequence[Sent], latents: Sequence[Tensor]) -> None:
        """Have the device make their pictures as soon as it has their latents."""
        if len(latents) == len(chunks):  # of some that were refused nobody knows whose these are
            for chunk, mine in zip(chunks, latents, strict=True):
                with suppress(torch.OutOfMemoryError):  # is met again where its session can be told
                    chunk.session.decode_ahead(mine)

    def _send_singly(self, chunks: Sequence[Sent], error: Exception) -> None:
        """Those of a group that failed who are still there, to learn whose fault it was; one that was alone has nobody else to
        blame."""
        for chunk in chunks:
            if chunk.session.ended:
                continue
            if len(chunks) == 1:
                self._give_up(chunk.session, error, chunk.parcel.envelope.chunk_index)
            else:
                chunk.sent_s = time.monotonic()
                self._send([chunk])
                self._bring_home()

    def _receive(self, delivery: Delivery, at_once: bool) -> Iterator[Landing]:
        """What came back, for one who is still there."""
        chunk = self._sent.pop(delivery.result.call_id, None)
        if chunk is None or chunk.session.ended:
            return
        session = chunk.session
        try:
            arrived = session.receive(delivery)
            if arrived is not None and self.depths.shares_device:
                session.decode_all(arrived)
        except Exception as error:
            self._failed(session, error, chunk.parcel.envelope.chunk_index)
            return
        yield Landing(
            session=session,
            arrived=arrived,
            result=delivery.result,
            together=chunk.together,
            sent_s=chunk.sent_s,
            back_s=time.monotonic(),
            front_s=chunk.front_s,
            settled=chunk.settled,
            phases_ms=chunk.phases_ms + Counter(chunk.settled.phases_ms),
            at_once=at_once,
            shares_device=self.depths.shares_device,
        )

    def _make_pictures(self, landing: Landing) -> None:
        chunk, landing.decode_begun_s = None, time.monotonic()
        if landing.arrived is not None:
            try:
                if landing.shares_device:  # they are queued there; elsewhere they are made now
                    with self._clock.stopped():
                        landing.arrived.planned.wait()
                chunk = landing.session.finish(landing.arrived, shared_ms=landing.phases_ms, before_s=landing.settled.seconds)
            except Exception as error:
                self._failures.append(Failure(landing.session, error, landing.arrived.envelope.chunk_index))
                return
        landing.shown_s = time.monotonic()
        landing.front_s += landing.shown_s - landing.decode_begun_s
        landing.device_s = 0.0 if chunk is None else sum(chunk.timing.phases_ms.values()) / 1e3
        if landing.turn_s is None:
            self._turn_over(landing)
        if chunk is not None:
            self._shown(landing, chunk)

    def _share_phases(self, chunks: Sequence[Sent]) -> None:
        """What several went through together goes under the first of them; a GPU is not waited for to learn what that was."""
        if len(chunks) > 1 and not self.depths.shares_device:
            phases_ms = self._stopwatch.lap(chunks[0].parcel.envelope)
            for chunk in chunks:
                chunk.phases_ms.update({name: ms / len(chunks) for name, ms in phases_ms.items()})

    def _report(self) -> None:
        failures, self._failures = self._failures, []
        for failure in failures:
            self._failed(*failure)

    def _turn_over(self, landing: Landing) -> None:
        assert landing.turn_s is None, f"the turn of {landing.session.id} is over already"
        landing.turn_s = landing.settled.seconds + time.monotonic() - landing.sent_s
        self._landed(landing)

    def _anchored(self, session: Streaming) -> bool:
        """Make the one picture that a session's next chunk may be built on, ahead of the others. Whether it can go on."""
        if session.ended:  # its last pictures could not be made
            return False
        landing = None if self.depths.shares_device else self.unshown(session.id)  # there they are queued already
        if landing is None or landing.arrived is None:
            return True
        begun = time.monotonic()
        try:
            session.decode_anchor(landing.arrived)
        except Exception as error:
            self._unshown.remove(landing)
            self._failed(session, error, landing.arrived.envelope.chunk_index)
            return False
        landing.front_s += time.monotonic() - begun
        return True

    def _give_up(self, session: Streaming, error: Exception, chunk_index: int) -> None:
        """The chunk before was made and is shown, whatever became of this one."""
        self.show()
        self._failed(session, error, chunk_index)


def raise_failure(session: Streaming, error: Exception, chunk_index: int) -> NoReturn:
    """For whoever drives one session: what happened to it is what happened."""
    raise error


def _wait(posted: Posted) -> tuple[list[Delivery], Exception | None]:
    """What came back, or why nothing did. Without a mesh no session can go on: that is not one of them failing."""
    try:
        return posted.result(), None
    except MeshGivenUp:
        raise
    except Exception as error:
        return [], error
