"""Chunks that nobody sees, made to learn what they take.

Of the server's own stream when it starts, of several sessions together where they may share their calls, and later of what
somebody was refused. Where calls are recorded, so are those of the first to come: a recording takes as long as a chunk or two,
and all who are there wait for it. On the engine's thread, between turns.
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
from millstream.engine.flights import Landing, Planned
from millstream.engine.pipeline import ChunkPipeline, raise_failure
from millstream.serving.admission import Admission
from millstream.serving.batching import BatchTimes
from millstream.serving.session_entry import batch_key, geometry
from millstream.session.chunk import Chunk
from millstream.session.session import Session

log = logging.getLogger(__name__)

MEASURED_CHUNKS = 2
"""Once a session costs what it always will."""
STALE_S = 20.0
"""What was measured so long ago is measured again when somebody was refused by it."""
QUICK_S = 1.0
"""What is thought to take longer is not tried, unless the server's own stream does: nobody's question holds up the device."""
PREPARED = 8
"""Sessions at most whose calls are recorded before anybody comes; of more, when they come."""
CUT_AFTER = 2.0
"""Times the longest chunk that is let in: one that takes longer is cut off."""


@contextmanager
def _said_if_slow(config: StreamConfig, limit_s: float) -> Iterator[None]:
    """While nobody has a picture: who serves may have asked for more than the device can do."""
    said = (
        f"still warming up after {limit_s:g} s, and nobody has a picture before that ends; if it goes on, serve a smaller "
        f"--size than {config.height}x{config.width}, or fewer --steps"
    )
    timer = threading.Timer(limit_s, log.warning, [said])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Trials:
    def __init__(
        self, engine: Engine, admission: Admission, shared: BatchTimes, session_bytes: Callable[[StreamConfig], int]
    ) -> None:
        self._engine, self._admission, self._shared, self._session_bytes = engine, admission, shared, session_bytes
        self._quick_s = QUICK_S

    def warm_up(self, configs: Sequence[StreamConfig]) -> None:
        """What is served by default is never too long; what takes much longer is cut off from now on."""
        for config in configs:
            with _said_if_slow(config, self._admission.config.longest_chunk_s):
                self._measure(config)
            people = self._expected(config)
            self._prepare(config, people)
            self._measure_shared(config, people)
            self._admission.allow_chunks_of(geometry(self._engine.spec, config))
            self._quick_s = max(self._quick_s, self._estimate_s(config))
        self._engine.brake.limit_s = CUT_AFTER * self._admission.longest_chunk_s

    def are_due(self, config: StreamConfig) -> bool:
        """Whether a refusal went by what was measured a while ago, on a device that stands idle: it may be quicker now."""
        is_stale = self._admission.times.age_s(geometry(self._engine.spec, config)) > STALE_S
        return is_stale and self._estimate_s(config) <= self._quick_s and not self._admission.metrics().admitted

    def again(self, config: StreamConfig) -> None:
        if not self.are_due(config):  # somebody was let in, or it was asked for twice
            return
        try:
            self._measure(config)
        except Exception as error:  # nobody's session: whoever asks for this next is told what is wrong with it
            log.warning("%sx%s could not be measured: %s", config.height, config.width, error)

    def _estimate_s(self, config: StreamConfig) -> float:
        estimate = self._admission.times.estimate(geometry(self._engine.spec, config))
        return math.inf if estimate is None else estimate.seconds

    def _measure(self, config: StreamConfig) -> None:
        """Chunk times of a configuration with its window full, and everything that only first chunks pay for."""
        engine, one_offs = self._engine, 0

        def shown(landing: Landing, chunk: Chunk) -> None:
            if engine.one_offs == one_offs:
                self._admission.times.add(geometry(engine.spec, config), landing.chunk_s, is_trial=True)

        pipeline = self._pipeline(shown=shown)
        with engine.session("warm up", config=config) as session:
            engine.warm_up(session)
            for _ in range(MEASURED_CHUNKS):
                one_offs = engine.one_offs
                self._turn(pipeline, [session])
                pipeline.show()

    def _expected(self, config: StreamConfig) -> int:
        """Sessions that keep the device busy at this one's rate, as far as there is memory and their calls can be recorded."""
        room = self._admission.config.memory_bytes // max(1, self._session_bytes(config))
        busy = pixel_frames(1, config.frames_per_chunk) / config.fps / self._estimate_s(config)
        return int(min(PREPARED, room, busy, self._engine.recorded_places(config)))

    def _prepare(self, config: StreamConfig, people: int) -> None:
        """So many side by side, each with its calls recorded: who comes next lies where they did."""
        pipeline = self._pipeline()
        with ExitStack() as open_sessions:
            for _ in range(people):
                session = open_sessions.enter_context(self._engine.session("warm up", config=config))
                for _ in range(config.chunks_to_fill + 2):  # a commit may come a chunk later
                    self._turn(pipeline, [session])
            pipeline.show()

    def _measure_shared(self, config: StreamConfig, people: int) -> None:
        """What sizes of shared calls take, as long as more of them pay: before anybody is promised anything."""
        most = self._admission.config.memory_bytes // max(1, self._session_bytes(config))
        sizes = self._shared.sizes(most) if self._shared.policy.max_size > 1 else []
        with ExitStack() as open_sessions:
            sessions, paying = list[Session](), list[int]()

            def seat(count: int) -> None:
                for _ in range(count - len(sessions)):
                    sessions.append(open_sessions.enter_context(self._engine.session("warm up", config=config)))
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
        """The first are recorded. Others who share their calls sit in rows of so many, as in `serving/scheduler.py`."""
        pipeline = self._pipeline()
        for first in range(size, len(sessions) - size + 1, size):
            for _ in range(2):  # a commit may come a chunk later
                self._turn(pipeline, sessions[first : first + size])
        pipeline.show()

    def _learn_size(self, sessions: Sequence[Session]) -> bool:
        """Whether chunks of these share their calls, and more are made so in a second than of fewer sessions."""
        landings, turns, steady = list[Landing](), list[float](), list[float]()
        pipeline, size = self._pipeline(landed=landings.append), len(sessions)
        first = self._engine.chunks_until_recorded(sessions[0].config)
        for turn in range(first + self._shared.policy.trials):  # kernels are built and calls recorded in the first
            one_offs = self._engine.one_offs
            self._turn(pipeline, sessions)
            assert len(landings) == size, "nothing stops sessions that nobody steers"
            turns.append(max(landing.turn_s or 0.0 for landing in landings))
            if all(landing.together == size for landing in landings) and self._engine.one_offs == one_offs and turn >= first:
                steady.append(turns[-1])
            landings.clear()
        pipeline.show()
        key = batch_key(sessions[0].config, sessions[0].timeline)
        for seconds in steady:
            self._shared.add(key, size, seconds)
        if steady:
            self._shared.one_off_s = max(self._shared.one_off_s, max(turns) - statistics.median(steady))
        return self._shared.pays(key, size)

    @staticmethod
    def _turn(pipeline: ChunkPipeline, sessions: Sequence[Session]) -> None:
        decisions = [session.decide() for session in sessions]
        assert None not in decisions, "nothing stops a session that nobody steers"
        pipeline.turn([Planned(session, decision) for session, decision in zip(sessions, decisions, strict=True) if decision])

    def _pipeline(
        self,
        *,
        landed: Callable[[Landing], None] = lambda landing: None,
        shown: Callable[[Landing, Chunk], None] = lambda landing, chunk: None,
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
