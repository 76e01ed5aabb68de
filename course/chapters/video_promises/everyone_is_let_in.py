"""Twice as many viewers as fit. Without a door everybody stalls; with one, half of them never do, and the
others wait."""

from __future__ import annotations

from course.chapters.video_promises.how_many_fit import ask_until_full
from course.chapters.video_promises.paper_device import EngineRule, Watched, played
from course.reader import Reader
from millstream.core.config import GIB
from millstream.serving.admission_types import AdmissionConfig

CHUNK_S = 0.2
FPS = 16.0
SECONDS = 120.0


def run(reader: Reader) -> None:
    fits, _ = ask_until_full(CHUNK_S, FPS, AdmissionConfig(memory_bytes=64 * GIB))
    for count in (fits, 2 * fits):
        sessions = {str(number): Watched(fps=FPS, chunk_s=CHUNK_S) for number in range(count)}
        seen = [viewer.continuity for viewer in played(EngineRule(sessions), sessions, SECONDS).values()]
        reader.say(f"{count} viewers: pictures move {min(seen):.0%} to {max(seen):.0%} of the time")
        assert (min(seen) > 0.99) == (count == fits), f"{count} viewers: {seen}"
        assert max(seen) - min(seen) < 0.05, f"nobody is served at the cost of others: {seen}"
    reader.say("symptom: everybody's video stutters, and every single chunk was made as quickly as ever")
    reader.say(
        "tool: load, the sum of what chunks take over what they play: above 1 no order of chunks helps"
    )
    reader.say("fix: a door. Those who fit are served, others wait in line and are told their place")
