"""A control for every chunk: none can be planned before the one before it is here, and all overlap is
gone."""

from __future__ import annotations

from itertools import cycle

from course.chapters.video_overlap.small_stream import (
    BOAT,
    LEFT_OUT,
    OTHER,
    brook_on,
    said,
    session_on,
    streamed,
)
from course.reader import Reader
from millstream.core.controls import SetPrompt
from millstream.core.overlap import overlap_of


def run(reader: Reader, chunks: int = 6) -> None:
    with brook_on("front+1") as engine:
        _, calm = streamed(engine, chunks, None)
        session = session_on(engine)
        prompts = cycle((OTHER, BOAT))

        def change() -> None:
            session.control(SetPrompt(prompt=next(prompts)))

        stream = engine.stream(session, before_plan=change)
        made = list(stream.stream(chunks))
        found = overlap_of(list(stream.paces), left_out=LEFT_OUT)
    assert len(made) == chunks, f"{len(made)} chunks"
    for name, each in (("left alone", calm), ("a prompt a chunk", found)):
        reader.measured(said(name, each))
    assert found.signature == "serialised", f"{found}"
    assert found.idle_ms > 2 * calm.idle_ms, f"the mesh idles {found.idle_ms} ms and {calm.idle_ms} ms"
    reader.say("symptom: chunks come later than the slower side takes, and both sides idle")
    reader.say(f"tool: core.overlap looks who waits for whom, and says {found.signature!r}")
    reader.say("fix: send prompts when people change them, not with every chunk")
