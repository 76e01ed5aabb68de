"""The front makes pictures while the mesh, a process of its own, makes the next latents: measured, and the
same bits."""

from __future__ import annotations

from course.chapters.video_overlap.small_stream import LEFT_OUT, brook_on, said, streamed
from course.reader import Reader
from millstream.core.errors import CourseError
from millstream.engine.depths import ONE_AT_A_TIME


def run(reader: Reader, chunks: int = 7) -> None:
    if chunks <= LEFT_OUT:
        raise CourseError(f"--chunks must be more than {LEFT_OUT}, which only fill the window; got {chunks}")
    with brook_on("front+1") as engine:
        waited, one = streamed(engine, chunks, ONE_AT_A_TIME)
        ahead, two = streamed(engine, chunks, None)
    for name, found in (("one at a time", one), ("planned ahead", two)):
        reader.measured(said(name, found))
    assert waited == ahead, "the latents differ"
    reader.say(f"all {chunks} chunks have the same latents, bit for bit: overlap changes when, not what")
    assert one.signature == "serialised", f"{one}"
    assert two.idle_ms < 0.5 * one.idle_ms, f"the mesh idles {two.idle_ms} ms and {one.idle_ms} ms"
    reader.say(
        "one at a time nothing is with the mesh while pictures are made; planned ahead, the next chunk is"
    )
