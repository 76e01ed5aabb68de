"""One session's chunks through a pipeline: planned as far ahead as may be, shown in order.

    land chunk k ─► send what may be sent ─► show chunk k

At most `d_in` chunks are with the generator, and at most `d_out` are back and not looked at: then nothing new is sent. A chunk
that depends on the one before, because a control is due or the window is rebuilt from it, is not planned before that is here;
with decoded anchors it waits for the one picture it is built on, not for the whole chunk.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from millstream.core.config import StreamConfig, pixel_frames
from millstream.core.errors import ConfigError
from millstream.core.overlap import ChunkPace
from millstream.engine.depths import Depths
from millstream.engine.flights import Landing, Planned, Streaming
from millstream.engine.pipeline import ChunkPipeline, raise_failure
from millstream.generation.stopwatch import Stopwatch
from millstream.session.chunk import Chunk, ChunkPlan
from millstream.session.journal import ChunkLine
from millstream.session.timeline import Timeline
from millstream.wire.parcel import Parcel, Posted

KEPT_PACES = 512


class Planning(Streaming, Protocol):
    """A session that is asked for its chunks."""

    config: StreamConfig
    timeline: Timeline

    def decide(self) -> ChunkPlan | None: ...

    def recall(self, line: ChunkLine) -> ChunkPlan: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Where one chunk was, in seconds by `time.monotonic`: for the plot of a run."""

    chunk_index: int
    back_s: float
    mesh_ms: float
    decode_begun_s: float
    shown_s: float


class Stream:
    def __init__(
        self,
        session: Planning,
        post: Callable[[Sequence[Parcel]], Posted],
        depths: Depths,
        stopwatch: Stopwatch,
        *,
        flush: Callable[[], Posted] | None = None,
        before_plan: Callable[[], None] = lambda: None,
    ) -> None:
        """`before_plan` is called before a chunk is planned: the time to hand in controls for it. `flush`: `ChunkPipeline`."""
        self.paces: deque[ChunkPace] = deque(maxlen=KEPT_PACES)
        self.stretches: deque[Stretch] = deque(maxlen=KEPT_PACES)
        self._session, self._before_plan = session, before_plan
        self._shown = shown = deque[tuple[Landing, Chunk]]()

        def keep(landing: Landing, chunk: Chunk) -> None:  # not a method: a session that is dropped is to be gone at once
            shown.append((landing, chunk))

        self._pipeline = ChunkPipeline(post, depths, stopwatch, shown=keep, failed=raise_failure, flush=flush)

    def stream(self, chunks: int | None = None, *, num_frames: int | None = None) -> Iterator[Chunk]:
        """Chunks until the session ends or is paused, or `chunks` of them, or as many as hold `num_frames` pictures: none is
        begun that is not shown."""
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
                begun_frames += pixel_frames(decision.envelope.start_frame, decision.envelope.frames)
            return decision

        return self._flow(plan, waits=lambda: not self._session.timeline.undisturbed)

    def follow(self, lines: Iterable[ChunkLine]) -> Iterator[Chunk]:
        """The chunks of a journal again. Its receipts say which of them were planned when all before were here; after a crash
        its last ones were made while others that it lacks were under way."""
        left = deque(lines)

        def plan() -> ChunkPlan | None:
            return self._session.recall(left.popleft()) if left else None

        return self._flow(plan, waits=lambda: bool(left and (left[0].receipts or left[0].envelope.recompute)))

    def _flow(self, plan: Callable[[], ChunkPlan | None], waits: Callable[[], bool]) -> Iterator[Chunk]:
        """`waits` is whether the next chunk is planned when all before it are shown."""
        pipeline, shown_s, resumed_s = self._pipeline, None, time.monotonic()
        while True:
            self._send(plan, waits)
            if not pipeline.num_sent:
                return
            asked_s = time.monotonic()
            pipeline.land()
            if pipeline.depths.send_first:
                self._send(plan, waits)
            waiting = pipeline.num_flights - pipeline.num_answered, pipeline.num_answered
            pipeline.show()
            while self._shown:
                landing, chunk = self._shown.popleft()
                busy_ms = 1e3 * ((asked_s - resumed_s) + (landing.shown_s - landing.back_s))
                if shown_s is not None:
                    self.paces.append(_pace(landing, busy_ms, 1e3 * (landing.shown_s - shown_s), *waiting))
                self.stretches.append(_stretch(landing, chunk))
                shown_s = resumed_s = landing.shown_s
                yield chunk

    def _send(self, plan: Callable[[], ChunkPlan | None], waits: Callable[[], bool]) -> None:
        """Plan and send as many chunks as may be on their way."""
        while self._may_send(waits) and (decision := plan()) is not None:
            self._pipeline.send([Planned(self._session, decision)])

    def _may_send(self, waits: Callable[[], bool]) -> bool:
        self._before_plan()
        pipeline, depths, answered = self._pipeline, self._pipeline.depths, self._pipeline.num_answered
        if waits():
            return not (pipeline.num_sent or pipeline.any_unshown)
        if self._session.config.anchor != "off":
            return not pipeline.num_sent
        return pipeline.num_flights - answered < depths.d_in and answered < depths.d_out


def _pace(landing: Landing, busy_ms: float, period_ms: float, waiting_in: int, waiting_out: int) -> ChunkPace:
    return ChunkPace(
        stage0_ms=busy_ms,
        stage1_ms=landing.result.stage1_ms,
        period_ms=period_ms,
        idle_ms=landing.result.mesh_idle_ms,
        latency_ms=1e3 * (landing.shown_s - landing.sent_s),
        waiting_in=waiting_in,
        waiting_out=waiting_out,
    )


def _stretch(landing: Landing, chunk: Chunk) -> Stretch:
    return Stretch(
        chunk_index=chunk.index,
        back_s=landing.back_s,
        mesh_ms=landing.result.stage1_ms,
        decode_begun_s=landing.decode_begun_s,
        shown_s=landing.shown_s,
    )
