"""A request for a stream, in the engine that serves them: let in, given turns by deadline, told of each chunk
that is shown."""

from __future__ import annotations

import queue
import time
from dataclasses import replace
from typing import Any

from course.reader import Reader
from millstream.core.config import pixel_frames
from millstream.core.controls import SetPrompt, WeightedPrompt
from millstream.core.errors import CourseError
from millstream.engine.engine import Engine
from millstream.serving.admission_types import AdmissionConfig
from millstream.serving.notices import Ended, Live, Notice
from millstream.serving.service import Service
from millstream.serving.session_entry import OpenRequest
from millstream.session.chunk import Chunk

SIZE = 64
WAIT_S = 60.0


def run(reader: Reader, chunks: int = 4) -> None:
    if not 3 <= chunks <= 20:
        raise CourseError(f"--chunks must be 3 to 20, got {chunks}")
    engine = Engine("brook", weights="bundled", device="cpu")
    config = replace(engine.spec.stream, height=SIZE, width=SIZE, fps=4.0)
    frames = pixel_frames(config.frames_per_chunk, config.frames_per_chunk)
    guess = reader.predict(
        f"a chunk is {config.frames_per_chunk} latent frames, {frames} pictures. At {config.fps:g} pictures "
        "a second, how many "
        "seconds may the next chunk take before the viewer runs dry?"
    )
    reader.reveal(guess, frames / config.fps, by="the chunk's pictures over the frame rate: its deadline")
    service = Service(
        engine, admission=AdmissionConfig(memory_bytes=2, max_waiting=0), session_bytes=lambda config: 1
    )
    service.start(warm_up=[config])
    try:
        heard = watched(service, config, chunks)
    finally:
        service.close()
    shown = [(at, notice) for at, notice in heard if isinstance(notice, Chunk)]
    assert len(shown) == chunks, f"{len(shown)} chunks were shown"
    live_at = next(at for at, notice in heard if isinstance(notice, Live))
    reader.measured(f"let in after {1e3 * live_at:.0f} ms")
    for at, notice in shown:
        pictures = len(notice.frames)
        made_ms = notice.timing.total_ms
        reader.measured(
            f"chunk {notice.index} shown after {at:.2f} s, {pictures} pictures, made in {made_ms:.0f} ms"
        )
    steered = [notice.index for _, notice in shown if notice.receipts]
    assert len(steered) == 1, f"the new prompt first shows in chunks {steered}"
    reader.measured(f"another prompt, sent when chunk 0 was seen, shows from chunk {steered[0]} on")
    assert isinstance(heard[-1][1], Ended), "everybody has the last word"
    reader.say(f"ended: {heard[-1][1].reason}")
    reader.say("a request for text ends, and the sooner the better; a stream goes on, and has to be in time")


def watched(service: Service, config: Any, chunks: int) -> list[tuple[float, Notice]]:
    """All that the session's owner was told, and when. The prompt is changed when the first chunk is seen."""
    told: queue.Queue[tuple[float, Notice]] = queue.Queue()
    service.ready.wait(WAIT_S)
    begun = time.monotonic()
    heard = list[tuple[float, Notice]]()
    request = OpenRequest(
        session_id="mine",
        prompts=(WeightedPrompt("a red boat on the sea at dawn"),),
        config=config,
        unattended="run",
        max_chunks=chunks,
    )
    service.open(request, lambda notice: told.put((time.monotonic() - begun, notice)))
    while not heard or not isinstance(heard[-1][1], Ended):
        heard.append(told.get(timeout=WAIT_S))
        notice = heard[-1][1]
        if isinstance(notice, Chunk) and notice.index == 0:
            service.control("mine", SetPrompt(prompt="a white boat on a lake at night"))
    return heard
