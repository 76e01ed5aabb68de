"""Chunks between their plan and their frames: the one loop that every stream goes through, of one session or
of many.

    send ─► [with the generator] ─► land ─► [its latents are here] ─► show ─► [frames]

    pipeline.send(chunks)    # the generator begins chunk k+1
    pipeline.show()          # the frames of chunk k are made meanwhile
    pipeline.land()          # wait for chunk k+1, and keep its latents

So a mesh works while frames are made here, and a GPU of this process has its next chunk queued behind them. A
generator that is done when it has been called leaves nothing to overlap with: its frames are made at once.
How much may be under way is a `Depths`; which chunks are sent is the driver's business: `engine/stream.py`
for one session, `serving/turn_runner.py` for many.

Knows no turns and no lock: the driver is called when a chunk has landed, is shown, or has failed. An error
ends the session it happened to and no other. One thread uses it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NoReturn

import torch
from torch import Tensor

from millstream.core.errors import MeshGivenUp
from millstream.engine.depths import Depths
from millstream.engine.host_clock import HostClock
from millstream.generation.stopwatch import Stopwatch
from millstream.session.chunk import Chunk, PendingChunk
from millstream.wire.parcel import Delivery, Parcel, PendingDeliveries


class ChunkPipeline:
    def __init__(
        self,
        post: Callable[[Sequence[Parcel]], PendingDeliveries],
        depths: Depths,
        stopwatch: Stopwatch,
        *,
        landed: Callable[[PendingChunk], None] = lambda chunk: None,
        shown: Callable[[PendingChunk, Chunk], None],
        failed: Callable[[PendingChunk, Exception], None],
        flush: Callable[[], PendingDeliveries] | None = None,
    ) -> None:
        """`landed`: the next chunk may leave, of this session too; `failed`: its session cannot go on.
        `flush` has a generator that holds chunks back until others come give them out."""
        self.depths = depths
        self._post = post
        self._flush = flush
        self._stopwatch = stopwatch
        self._landed = landed
        self._shown = shown
        self._failed = failed
        self._posts: deque[tuple[Sequence[PendingChunk], PendingDeliveries]] = deque()
        """Chunks that were sent together, and what comes of them."""
        self._sent: dict[int, PendingChunk] = {}
        """Chunks that have not come back, by call."""
        self._unshown: list[PendingChunk] = []
        self._failures: list[tuple[PendingChunk, Exception]] = []
        """Failures of frames that were made while other chunks were with the generator: a session is not let
        go of then."""
        self._clock = HostClock()

    @property
    def num_sent(self) -> int:
        """Chunks with the generator."""
        return len(self._sent)

    @property
    def num_answered(self) -> int:
        """Posts that are done and were not received."""
        return sum(deliveries.done() for _, deliveries in self._posts)

    @property
    def num_posts(self) -> int:
        """Posts that were not received, done or not."""
        return len(self._posts)

    @property
    def any_unshown(self) -> bool:
        return bool(self._unshown)

    def unshown(self, session_id: str) -> PendingChunk | None:
        """This session's chunk that is back and has no frames yet."""
        return next((chunk for chunk in self._unshown if chunk.session.id == session_id), None)

    def turn(self, chunks: Sequence[PendingChunk]) -> None:
        """Make chunks k+1 of some sessions, and the frames of chunks k. Nothing is with the generator
        afterwards, so a session is only ever met between chunks; `show` is all it takes to leave nothing
        under way."""
        start = self._clock.now()
        self.send(chunks)  # the generator begins chunks k+1
        if self._posts:
            self.show()  # meanwhile the frames of chunks k are made
        self._land_all()  # now chunks k+1 are waited for
        if any(chunk.done_when_sent for chunk in self._unshown):
            self.show()  # their own frames: there was nothing to overlap with
        took = self._clock.now().since(start)
        for chunk in self._unshown:
            chunk.host_s, chunk.thread_s = (seconds / len(self._unshown) for seconds in took)

    def send(self, chunks: Sequence[PendingChunk]) -> None:
        """Send chunks that can share their model calls, from plan to generator."""
        names = {chunk.session.id for chunk in chunks}
        assert len(names) == len(chunks), f"{len(chunks)} chunks of {len(names)} sessions are sent together"
        start_s = time.monotonic()
        for chunk in [chunk for chunk in chunks if self._anchored(chunk)]:
            chunk.sent_s = start_s
            try:
                chunk.parcel = chunk.session.prepare(chunk.plan)
            except Exception as error:
                self._give_up(chunk, error)
        ready = [chunk for chunk in chunks if chunk.parcel is not None and not chunk.session.ended]
        if ready:
            self._send(ready)

    def land(self) -> None:
        """Wait for what was sent first, and keep its latents: what is built on them may be planned."""
        if not self._posts:
            assert self._flush is not None, f"{len(self._sent)} chunks are under way and none was sent"
            self._posts.append(((), self._flush()))
        chunks, pending = self._posts[0]
        with self._clock.stopped():
            deliveries, refusal = _wait(pending)
        self._posts.popleft()
        self._report()
        if refusal is not None:
            for chunk in chunks:
                del self._sent[chunk.envelope.call_id]
            self._send_singly(chunks, refusal)
            return
        self._share_phases(chunks)
        landed = [chunk for delivery in deliveries for chunk in self._receive(delivery)]
        self._unshown += landed
        for chunk in landed:
            if not chunk.done_when_sent:
                self._turn_over(chunk)

    def show(self) -> None:
        """Make the frames of what is back."""
        chunks = self._unshown
        self._unshown = []
        for chunk in chunks:
            self._make_frames(chunk)
        if not self._posts:
            self._report()

    def _land_all(self) -> None:
        """Wait for every chunk that is with the generator."""
        while self._posts:
            self.land()

    def _send(self, chunks: Sequence[PendingChunk]) -> None:
        try:
            pending = self._post([chunk.parcel for chunk in chunks if chunk.parcel is not None])
        except Exception as error:
            self._send_singly(chunks, error)
            return
        now = time.monotonic()
        done = pending.done() and not self.depths.shares_device
        for chunk in chunks:
            call_id = chunk.envelope.call_id
            assert call_id not in self._sent, f"call {call_id} is with the generator already"
            chunk.batch_size = len(chunks)
            chunk.front_s = (now - chunk.sent_s) / len(chunks)
            chunk.done_when_sent = done
            chunk.shares_device = self.depths.shares_device
            self._sent[call_id] = chunk
        self._posts.append((chunks, pending))
        if self.depths.shares_device:
            self._decode_ahead(chunks, pending.ahead())

    def _decode_ahead(self, chunks: Sequence[PendingChunk], latents: Sequence[Tensor]) -> None:
        """Have the device make their frames as soon as it has their latents."""
        if len(latents) == len(chunks):  # if one was refused, it is not known whose latents these are
            for chunk, mine in zip(chunks, latents, strict=True):
                with suppress(
                    torch.OutOfMemoryError
                ):  # raised again by `finish`, where its session can be told
                    chunk.session.decode_ahead(chunk, mine)

    def _send_singly(self, chunks: Sequence[PendingChunk], error: Exception) -> None:
        """Send the chunks of a group that failed one by one, to learn whose fault it was. One that was alone
        is at fault."""
        for chunk in chunks:
            if chunk.session.ended:
                continue
            if len(chunks) == 1:
                self._give_up(chunk, error)
            else:
                chunk.sent_s = time.monotonic()
                self._send([chunk])
                if self._posts:
                    self.show()
                self._land_all()

    def _receive(self, delivery: Delivery) -> Iterator[PendingChunk]:
        """Hand a delivery to its session, if that is still there."""
        chunk = self._sent.pop(delivery.result.call_id, None)
        if chunk is None or chunk.session.ended:
            return
        chunk.parcel = None
        try:
            chunk.session.receive(chunk, delivery)
            if chunk.delivery is not None and chunk.shares_device:
                chunk.session.decode_all(chunk)
        except Exception as error:
            self._failed(chunk, error)
            return
        chunk.back_s = time.monotonic()
        yield chunk

    def _make_frames(self, chunk: PendingChunk) -> None:
        chunk.decode_start_s = time.monotonic()
        finished = None
        if chunk.delivery is not None:
            try:
                if chunk.shares_device:  # they are queued there; elsewhere they are made now
                    with self._clock.stopped():
                        chunk.wait()
                finished = chunk.session.finish(chunk)
            except Exception as error:
                self._failures.append((chunk, error))
                return
        chunk.shown_s = time.monotonic()
        chunk.front_s += chunk.shown_s - chunk.decode_start_s
        chunk.device_s = 0.0 if finished is None else sum(finished.timing.phases_ms.values()) / 1e3
        if chunk.turn_s is None:
            self._turn_over(chunk)
        if finished is not None:
            self._shown(chunk, finished)

    def _share_phases(self, chunks: Sequence[PendingChunk]) -> None:
        """Divide phases that several went through together; a GPU is not waited for to learn how long they
        took."""
        if len(chunks) > 1 and not self.depths.shares_device:
            phases_ms = self._stopwatch.lap(chunks[0].envelope)
            for chunk in chunks:
                chunk.phases_ms.update({name: ms / len(chunks) for name, ms in phases_ms.items()})

    def _report(self) -> None:
        failures = self._failures
        self._failures = []
        for chunk, error in failures:
            self._failed(chunk, error)

    def _turn_over(self, chunk: PendingChunk) -> None:
        assert chunk.turn_s is None, f"the turn of {chunk.session.id} is over already"
        chunk.turn_s = chunk.commit_cost.seconds + time.monotonic() - chunk.sent_s
        self._landed(chunk)

    def _anchored(self, chunk: PendingChunk) -> bool:
        """Make the one picture that a session's next chunk may be built on, ahead of the others. False if it
        cannot go on."""
        if chunk.session.ended:  # its last frames could not be made
            return False
        last = (
            None if self.depths.shares_device else self.unshown(chunk.session.id)
        )  # there they are queued already
        if last is None or last.delivery is None:
            return True
        start_s = time.monotonic()
        try:
            last.session.decode_anchor(last)
        except Exception as error:
            self._unshown.remove(last)
            self._failed(last, error)
            return False
        last.front_s += time.monotonic() - start_s
        return True

    def _give_up(self, chunk: PendingChunk, error: Exception) -> None:
        """End a session at this chunk. The chunk before was made and is shown all the same."""
        self.show()
        self._failed(chunk, error)


def raise_failure(chunk: PendingChunk, error: Exception) -> NoReturn:
    """For the driver of a single session: its failure is the driver's."""
    raise error


def _wait(pending: PendingDeliveries) -> tuple[list[Delivery], Exception | None]:
    """Wait for what comes back; return it, or the error if nothing did. A mesh that is given up raises: that
    is not one session's failure, and none can go on."""
    try:
        return pending.result(), None
    except MeshGivenUp:
        raise
    except Exception as error:
        return [], error
