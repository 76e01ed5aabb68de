"""Speculation for streams: the engine makes the chunk that is likely to be asked for, while it is idle."""

from __future__ import annotations

import queue
import time
from dataclasses import replace
from typing import Any

from course.reader import Reader
from millstream.core.controls import SetPrompt, WeightedPrompt
from millstream.core.errors import CourseError
from millstream.engine.engine import Engine
from millstream.serving.admission_types import AdmissionConfig
from millstream.serving.notices import Ended, Notice
from millstream.serving.service import Service
from millstream.serving.session_entry import OpenRequest
from millstream.session.chunk import Chunk

BEGUN = "a green boat on a river"
SIZE = 64
FPS = 1.0
WAIT_S = 60.0
STEERED = 2
"""The chunk that the new prompt shows in."""
TYPED = SetPrompt(prompt="a white boat on a lake at night")
OTHER = SetPrompt(prompt="a red boat on the sea at dawn")


def run(reader: Reader, hits: float = 0.7) -> None:
    """`hits`: how often a draft is what is then asked for."""
    if not 0 <= hits <= 1:
        raise CourseError(f"--hits must be 0 to 1, got {hits:g}")
    chunk_ms = 200
    guess = reader.predict(
        f"a chunk takes {chunk_ms} ms, a draft is right {hits:.0%} of the time and then costs nothing. Mean "
        "ms a chunk?"
    )
    reader.reveal(
        guess,
        chunk_ms * (1 - hits),
        by="misses take as long as ever: a guess begins only where nobody waits",
        tolerance=0.05,
    )
    engine = Engine("brook", weights="bundled", device="cpu")
    with engine.session(BEGUN, height=SIZE, width=SIZE, fps=FPS) as session:
        session.control(TYPED, at_chunk=STEERED)
        plain = list(session.stream(chunks=STEERED + 1))
    right, hit = streamed(engine, TYPED)
    wrong, missed = streamed(engine, OTHER)
    assert (
        [each.digest for each in right] == [each.digest for each in plain] == [each.digest for each in wrong]
    ), "bits differ"
    assert hit[1] == 1, f"made and taken: {hit}"
    reader.measured(f"made when asked for, the steered chunk takes {plain[STEERED].timing.total_ms:.0f} ms")
    for name, (made, taken) in (("a right draft", hit), ("a wrong draft", missed)):
        reader.measured(f"{name}: {made} made while the device was idle, {taken} taken")
    reader.say("the same bits in all three: a guess is taken if its plan is equal, and dropped otherwise")
    reader.say(
        "after a wrong draft the control itself is known before its turn, and is made ahead if there is "
        "still time"
    )


def streamed(engine: Engine, draft: SetPrompt) -> tuple[list[Chunk], tuple[int, int]]:
    """The chunks of a session that is steered once, after a draft of that, and how many were made ahead and
    taken."""
    service = Service(
        engine,
        admission=AdmissionConfig(memory_bytes=4, max_waiting=0),
        session_bytes=lambda config: 1,
        look_ahead=True,
    )
    config = replace(engine.spec.stream, height=SIZE, width=SIZE, fps=FPS)
    service.start(warm_up=[config])
    try:
        service.ready.wait(WAIT_S)
        chunks = _watched(service, config, draft)
        ahead = service.metrics().look_ahead
        return chunks, (ahead.made, ahead.taken)
    finally:
        service.close()


def _watched(service: Service, config: Any, draft: SetPrompt) -> list[Chunk]:
    told: queue.Queue[Notice] = queue.Queue()
    prompts = (WeightedPrompt(BEGUN),)
    request = OpenRequest(
        session_id="mine", prompts=prompts, config=config, unattended="run", max_chunks=STEERED + 1
    )
    service.open(request, told.put)
    chunks = list[Chunk]()
    while not isinstance(notice := told.get(timeout=WAIT_S), Ended):
        if not isinstance(notice, Chunk):
            continue
        chunks.append(notice)
        if notice.index == STEERED - 1:
            service.draft("mine", draft)
            _wait_for_guess(service)
            service.control("mine", TYPED, at_chunk=STEERED)
    return chunks


def _wait_for_guess(service: Service) -> None:
    until = time.monotonic() + 4.0
    while not service.metrics().look_ahead.made:
        assert time.monotonic() < until, "nothing was made ahead: this machine is too busy, try again"
        time.sleep(0.01)
