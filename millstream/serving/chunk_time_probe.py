"""Chunks made without a viewer, to learn how long they take.

They are of the server's own stream when it starts, of several sessions together where they may share their
calls, and later of configurations that were refused. Where calls are recorded, so are those of the first
sessions to come: a recording takes as long as a chunk or two, and all sessions wait for it. On the engine's
thread, between turns.
"""

from __future__ import annotations

import logging
import math
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from millstream.core.config import StreamConfig, pixel_frames
from millstream.engine.engine import Engine
from millstream.engine.pipeline import ChunkPipeline, raise_failure
from millstream.serving.admission import Admission
from millstream.serving.batching import BatchTimes
from millstream.serving.chunk_times import Geometry
from millstream.serving.session_entry import batch_key, geometry
from millstream.session.chunk import Chunk, PendingChunk
from millstream.session.session import Session

log = logging.getLogger(__name__)

MEASURED_CHUNKS = 2
"""Once a session costs what it always will."""
STALE_S = 20.0
"""Seconds after which a measurement is repeated when a session was refused because of it."""
QUICK_S = 1.0
"""Most estimated seconds of a chunk that is tried, unless the server's own stream takes longer: a client's
request must not hold up the device."""
PREPARED = 8
"""Most sessions whose calls are recorded before the first client connects; calls of further sessions are
recorded when they come."""
CUT_AFTER = 2.0
"""Factor on the longest chunk that is let in: a chunk that takes longer than that is cut off."""


@contextmanager
def _said_if_slow(config: StreamConfig, limit_s: float) -> Iterator[None]:
    """Log a warning if no picture can be had for so long: the operator may have asked for more than the
    device can do."""
    said = (
        f"still warming up after {limit_s:g} s, and nobody has a picture before that ends; if it goes on, "
        "serve a smaller "
        f"--size than {config.height}x{config.width}, or fewer --steps"
    )
    timer = threading.Timer(limit_s, log.warning, [said])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class ChunkTimeProbe:
    def __init__(
        self,
        engine: Engine,
        admission: Admission,
        shared: BatchTimes,
        session_bytes: Callable[[StreamConfig], int],
    ) -> None:
        self._engine = engine
        self._admission = admission
        self._shared = shared
        self._session_bytes = session_bytes
        self._quick_s = QUICK_S

    def warm_up(self, configs: Sequence[StreamConfig]) -> None:
        """Measure the configurations that are served by default, whose chunks are never too long. A chunk
        that takes much longer than the longest allowed is cut off from now on."""
        for config in configs:
            with _said_if_slow(config, self._admission.config.longest_chunk_s):
                self._measure(config)
            people = self._expected(config)
            self._prepare(config, people)
            self._measure_shared(config, people)
            self._admission.allow_chunks_of(geometry(self._engine.spec, config))
            first = Geometry.of_first(self._engine.spec, config)
            if first is not None:
                self._admission.allow_chunks_of(first)
            self._quick_s = max(self._quick_s, self._estimate_s(config))
        self._engine.brake.limit_s = CUT_AFTER * self._admission.longest_chunk_s

    def are_due(self, config: StreamConfig) -> bool:
        """Return whether to measure again: a refusal may have relied on an old measurement and the device is
        idle, where the chunk may be quicker now."""
        is_stale = self._admission.times.age_s(geometry(self._engine.spec, config)) > STALE_S
        return (
            is_stale and self._estimate_s(config) <= self._quick_s and not self._admission.metrics().admitted
        )

    def again(self, config: StreamConfig) -> None:
        if not self.are_due(config):  # a session was let in, or it was asked for twice
            return
        try:
            self._measure(config)
        except (
            Exception
        ) as error:  # no client's session: the next request for this geometry is told what is wrong
            log.warning("%sx%s could not be measured: %s", config.height, config.width, error)

    def _estimate_s(self, config: StreamConfig) -> float:
        estimate = self._admission.times.estimate(geometry(self._engine.spec, config))
        return math.inf if estimate is None else estimate.seconds

    def _measure(self, config: StreamConfig) -> None:
        """Measure chunk times of a configuration with its window full, after everything that only first
        chunks pay for."""
        engine = self._engine
        one_offs = 0

        def shown(pending: PendingChunk, chunk: Chunk) -> None:
            if engine.one_offs == one_offs:
                self._admission.times.add(geometry(engine.spec, config), pending.chunk_s, is_trial=True)

        pipeline = self._pipeline(shown=shown)
        with engine.session("warm up", config=config) as session:
            engine.warm_up(session)
            for _ in range(MEASURED_CHUNKS):
                one_offs = engine.one_offs
                self._turn(pipeline, [session])
                pipeline.show()

    def _expected(self, config: StreamConfig) -> int:
        """Return how many sessions keep the device busy at this one's rate, as far as there is memory and
        their calls can be recorded."""
        room = self._admission.config.memory_bytes // max(1, self._session_bytes(config))
        busy = pixel_frames(1, config.frames_per_chunk) / config.fps / self._estimate_s(config)
        return int(min(PREPARED, room, busy, self._engine.recorded_places(config)))

    def _prepare(self, config: StreamConfig, people: int) -> None:
        """Record the calls of so many sessions side by side: later sessions use the same places in memory."""
        pipeline = self._pipeline()
        with ExitStack() as open_sessions:
            for _ in range(people):
                session = open_sessions.enter_context(self._engine.session("warm up", config=config))
                for _ in range(config.chunks_to_fill + 2):  # a commit may come a chunk later
                    self._turn(pipeline, [session])
            pipeline.show()

    def _measure_shared(self, config: StreamConfig, people: int) -> None:
        """Measure how long shared calls of each size take, as long as larger sizes pay, before any session is
        promised anything."""
        most = self._admission.config.memory_bytes // max(1, self._session_bytes(config))
        sizes = self._shared.sizes(most) if self._shared.policy.max_size > 1 else []
        with ExitStack() as open_sessions:
            sessions = list[Session]()
            paying = list[int]()

            def seat(count: int) -> None:
                for _ in range(count - len(sessions)):
                    sessions.append(
                        open_sessions.enter_context(self._engine.session("warm up", config=config))
                    )
                    for _ in sessions[-1].stream(config.chunks_to_fill):
                        pass

            for size in sizes:
                seat(size)
                if not self._learn_size(sessions):
                    break
                paying.append(size)
            if paying:
                seat(people)
            for size in paying:
                self._record_rows(sessions[:people], size)

    def _record_rows(self, sessions: Sequence[Session], size: int) -> None:
        """Record the calls of further groups. The first group is recorded; sessions that share their calls
        sit in rows of `size`, as in `serving/scheduler.py`."""
        pipeline = self._pipeline()
        for first in range(size, len(sessions) - size + 1, size):
            for _ in range(2):  # a commit may come a chunk later
                self._turn(pipeline, sessions[first : first + size])
        pipeline.show()

    def _learn_size(self, sessions: Sequence[Session]) -> bool:
        """Measure shared calls of these sessions. Return whether more chunks are made so in a second than
        with fewer sessions."""
        landed = list[PendingChunk]()
        turns = list[float]()
        steady = list[float]()
        pipeline = self._pipeline(landed=landed.append)
        size = len(sessions)
        first = self._engine.chunks_until_recorded(sessions[0].config)
        for turn in range(
            first + self._shared.policy.trials
        ):  # kernels are built and calls recorded in the first
            one_offs = self._engine.one_offs
            self._turn(pipeline, sessions)
            assert len(landed) == size, "nothing stops sessions that no client steers"
            turns.append(max(chunk.turn_s or 0.0 for chunk in landed))
            if (
                all(chunk.batch_size == size for chunk in landed)
                and self._engine.one_offs == one_offs
                and turn >= first
            ):
                steady.append(turns[-1])
            landed.clear()
        pipeline.show()
        key = batch_key(sessions[0].config, sessions[0].timeline)
        for seconds in steady:
            self._shared.add(key, size, seconds)
        if steady:
            self._shared.one_off_s = max(self._shared.one_off_s, max(turns) - statistics.median(steady))
        return self._shared.pays(key, size)

    @staticmethod
    def _turn(pipeline: ChunkPipeline, sessions: Sequence[Session]) -> None:
        chunks = [
            PendingChunk(session, plan) for session in sessions if (plan := session.decide()) is not None
        ]
        assert len(chunks) == len(sessions), "a session that has no controls never stops"
        pipeline.turn(chunks)

    def _pipeline(
        self,
        *,
        landed: Callable[[PendingChunk], None] = lambda pending: None,
        shown: Callable[[PendingChunk, Chunk], None] = lambda pending, chunk: None,
    ) -> ChunkPipeline:
        engine = self._engine
        return ChunkPipeline(
            engine.transport.post,
            engine.depths,
            engine.parts.stopwatch,
            landed=landed,
            shown=shown,
            failed=raise_failure,
        )
