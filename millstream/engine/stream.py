"""One session's chunks through a pipeline: planned as far ahead as may be, shown in order.

    land chunk k ─► send chunk k+1 ─► show chunk k

At most `d_in` chunks are with the generator, and at most `d_out` are back and not looked at: then nothing new
is sent. A chunk that depends on the one before, because a control is due or the window is rebuilt from it, is
not planned before that is here; with decoded anchors it waits for the one picture it is built on, not for the
whole chunk.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from millstream.core.config import StreamConfig
from millstream.core.errors import ConfigError
from millstream.core.overlap import ChunkPace
from millstream.engine.depths import Depths
from millstream.engine.pipeline import ChunkPipeline, raise_failure
from millstream.generation.stopwatch import Stopwatch
from millstream.session.chunk import Chunk, ChunkPlan, PendingChunk, Streaming
from millstream.session.journal import ChunkLine
from millstream.session.timeline import Timeline
from millstream.wire.parcel import Parcel, PendingDeliveries

KEPT_PACES = 512


class Planning(Streaming, Protocol):
    """A session that is asked for its chunks."""

    config: StreamConfig
    timeline: Timeline

    def decide(self) -> ChunkPlan | None: ...

    def recall(self, line: ChunkLine) -> ChunkPlan: ...


class Stream:
    def __init__(
        self,
        session: Planning,
        post: Callable[[Sequence[Parcel]], PendingDeliveries],
        depths: Depths,
        stopwatch: Stopwatch,
        *,
        flush: Callable[[], PendingDeliveries] | None = None,
        before_plan: Callable[[], None] = lambda: None,
    ) -> None:
        """`before_plan` is called before a chunk is planned: the time to hand in controls for it. `flush`:
        `ChunkPipeline`."""
        self.paces: deque[ChunkPace] = deque(maxlen=KEPT_PACES)
        self._session = session
        self._before_plan = before_plan
        self._shown = shown = deque[tuple[PendingChunk, Chunk]]()

        def show(
            pending: PendingChunk, chunk: Chunk
        ) -> None:  # not a method: a session that is dropped is to be gone at once
            shown.append((pending, chunk))

        self._pipeline = ChunkPipeline(post, depths, stopwatch, shown=show, failed=raise_failure, flush=flush)

    def stream(self, chunks: int | None = None, *, num_frames: int | None = None) -> Iterator[Chunk]:
        """Chunks until the session ends or is paused, or `chunks` of them, or as many as hold `num_frames`
        pictures: none is begun that is not shown."""
        if (fewest := min(chunks or 0, num_frames or 0)) < 0:
            raise ConfigError(f"a stream has 0 chunks or frames or more, got {fewest}")
        begun = begun_frames = 0

        def plan() -> ChunkPlan | None:
            nonlocal begun, begun_frames
            if begun == chunks or (num_frames is not None and begun_frames >= num_frames):
                return None
            decision = self._session.decide()
            if decision is not None:
                begun += 1
                begun_frames += decision.envelope.num_shown
            return decision

        return self._flow(plan, waits=lambda: not self._session.timeline.undisturbed)

    def replay(self, lines: Iterable[ChunkLine]) -> Iterator[Chunk]:
        """The chunks of a journal again. Its receipts say which of them were planned when all before were
        here; after a crash its last ones were made while others that it lacks were under way."""
        left = deque(lines)

        def plan() -> ChunkPlan | None:
            return self._session.recall(left.popleft()) if left else None

        return self._flow(plan, waits=lambda: bool(left and (left[0].receipts or left[0].envelope.recompute)))

    def _flow(self, plan: Callable[[], ChunkPlan | None], waits: Callable[[], bool]) -> Iterator[Chunk]:
        """`waits`: the next chunk is planned when all before it are shown."""
        pipeline = self._pipeline
        last_shown_s = None
        resumed_s = time.monotonic()
        while True:
            self._send(plan, waits)
            if not pipeline.num_sent:
                return
            asked_s = time.monotonic()
            pipeline.land()  # wait for chunk k
            if pipeline.depths.send_first:
                self._send(plan, waits)  # the generator begins chunk k+1
            waiting = pipeline.num_posts - pipeline.num_answered, pipeline.num_answered
            pipeline.show()  # meanwhile the frames of chunk k are made
            while self._shown:
                pending, chunk = self._shown.popleft()
                if last_shown_s is not None:
                    busy_s = (asked_s - resumed_s) + (pending.shown_s - pending.back_s)
                    self.paces.append(_pace(pending, busy_s, pending.shown_s - last_shown_s, *waiting))
                last_shown_s = resumed_s = pending.shown_s
                yield chunk

    def _send(self, plan: Callable[[], ChunkPlan | None], waits: Callable[[], bool]) -> None:
        """Plan and send as many chunks as may be on their way."""
        while self._may_send(waits) and (decision := plan()) is not None:
            self._pipeline.send([PendingChunk(self._session, decision)])

    def _may_send(self, waits: Callable[[], bool]) -> bool:
        self._before_plan()
        pipeline = self._pipeline
        depths = self._pipeline.depths
        answered = self._pipeline.num_answered
        if waits():
            return not (pipeline.num_sent or pipeline.any_unshown)
        if self._session.config.anchor != "off":
            return not pipeline.num_sent
        return pipeline.num_posts - answered < depths.d_in and answered < depths.d_out


def _pace(
    pending: PendingChunk, busy_s: float, period_s: float, waiting_in: int, waiting_out: int
) -> ChunkPace:
    assert pending.delivery is not None, f"chunk {pending.envelope.chunk_index} was shown and is not here"
    result = pending.delivery.result
    return ChunkPace(
        stage0_ms=1e3 * busy_s,
        stage1_ms=result.stage1_ms,
        period_ms=1e3 * period_s,
        idle_ms=result.mesh_idle_ms,
        latency_ms=1e3 * (pending.shown_s - pending.sent_s),
        waiting_in=waiting_in,
        waiting_out=waiting_out,
        chunk_index=pending.envelope.chunk_index,
        back_s=pending.back_s,
        decode_start_s=pending.decode_start_s,
        shown_s=pending.shown_s,
    )
