"""One long session and three quick ones: in turn, some of them stall; earliest deadline first, nobody
does."""

from __future__ import annotations

from course.chapters.video_promises.paper_device import EngineRule, InTurn, Watched, played
from course.reader import Reader
from millstream.core.errors import CourseError


def run(reader: Reader, quick: int = 3, seconds: float = 120.0) -> None:
    """`quick` sessions beside the long one."""
    one = Watched(fps=4, chunk_s=0.5)
    other = Watched(fps=16, chunk_s=0.12)
    sessions = {"long": one, **{f"quick {number}": other for number in range(quick)}}
    load = sum(each.chunk_s / each.pace.media_s for each in sessions.values())
    if not 0 < load < 0.9:
        raise CourseError(
            f"--quick {quick} asks for {load:.0%} of the device; this is about sessions that fit, take fewer"
        )
    guess = reader.predict(
        f"a long session needs {one.chunk_s} s for {one.pace.media_s:g} s of video, {quick} quick ones "
        f"{other.chunk_s} s for "
        f"{other.pace.media_s:g} s. What load is that, in %?"
    )
    reader.reveal(guess, 100 * load, by="the sum of what chunks take over what they play", tolerance=0.02)
    for name, rule in (("in turn", InTurn(sessions)), ("the engine's", EngineRule(sessions))):
        viewers = played(rule, sessions, seconds)
        seen = ", ".join(f"{who} {viewer.continuity:.0%}" for who, viewer in viewers.items())
        reader.say(f"{name:13} of the time pictures move: {seen}")
        stalls = [viewer.stalled_s for viewer in viewers.values()]
        assert (max(stalls) < 0.2) == (name == "the engine's"), f"{name}: stalls of {stalls} s"
    reader.say(
        "in turn, the long one runs far ahead of its viewer while the others starve; a deadline is the "
        "moment a viewer runs dry"
    )
