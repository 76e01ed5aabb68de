"""Cost of deciding: the tiny engine's own turns, and the scheduler of the engine that streams."""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor

from course.reader import Reader
from course.tinylm.engine import TextRequest, TinyEngine
from course.tinylm.model import TinyLM
from course.tinylm.training import trained
from millstream.core.errors import CourseError
from millstream.serving.scheduler import Scheduler
from millstream.serving.turns import Run, Terms
from millstream.session.pacing import Pace

CHUNK_S = 0.25
"""Seconds that a chunk is assumed to take: those of a Wan model on a large GPU, as an example."""


class TimedModel(TinyLM):
    """Reads the clock around its own calls."""

    seconds = 0.0

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        begun = time.perf_counter()
        out = super().forward(*args, **kwargs)
        self.seconds += time.perf_counter() - begun
        return out


def run(reader: Reader, requests: int = 8, sessions: int = 64) -> None:
    if not (1 <= requests <= 32 and 1 <= sessions <= 1000):
        raise CourseError(
            f"--requests must be 1 to 32 and --sessions 1 to 1000, got {requests} and {sessions}"
        )
    lm = TimedModel(trained().config)
    lm.load_state_dict(trained().state_dict())
    engine = TinyEngine(lm, pages=8 * requests, most_running=requests)
    for seed in range(requests):
        engine.add(TextRequest(prompt="\ntwo red ", most_letters=40, seed=seed))
    begun = time.perf_counter()
    engine.run()
    whole = time.perf_counter() - begun
    reader.measured(
        f"tiny engine: {1 - lm.seconds / whole:.0%} of the time is queues, tables and drawing letters, not "
        "the model"
    )
    for count in sorted({1, 8, sessions}):
        took = turn_us(count)
        reader.measured(
            f"our scheduler, {count:4} sessions: {took:7.1f} us a turn, {took / 1e6 / CHUNK_S:.3%} of a "
            f"chunk of {CHUNK_S:g} s"
        )
        assert took < 1e6 * CHUNK_S, f"a turn takes {took} us"
    reader.say(
        "a letter is short and a chunk is long: what is too slow for letters does not matter for chunks"
    )


def turn_us(sessions: int, turns: int = 200) -> float:
    """Return the microseconds it takes to choose whose turn it is and to note that it is over."""
    scheduler = Scheduler()
    now = 0.0
    for number in range(sessions):
        scheduler.add(str(number), Terms(pace=Pace(fps=0.01, chunk_frames=12)), now)
    spent = 0.0
    for _ in range(turns):
        begun = time.perf_counter()
        turn = scheduler.next(now)
        if isinstance(turn, Run):
            scheduler.finished(turn.session_ids[0], now, frames=12, seconds=CHUNK_S)
        spent += time.perf_counter() - begun
        now += 1200.0 / sessions
    return 1e6 * spent / turns
