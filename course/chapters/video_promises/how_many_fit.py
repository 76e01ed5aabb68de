"""Admission of sessions: the engine's admission is asked for one session after the other, and refuses before
any viewer stalls."""

from __future__ import annotations

from course.reader import Reader
from millstream.core.config import GIB, pixel_frames
from millstream.core.errors import CourseError
from millstream.core.presets import find_model
from millstream.serving.admission import Admission
from millstream.serving.admission_types import AdmissionConfig, Admitted, Queued, Request
from millstream.serving.chunk_times import Geometry
from millstream.session.pacing import Pace

SIZE = Geometry(model="brook", tokens=1000, calls=3, window=9, flops=1e9)
SESSION_BYTES = GIB
PICTURES = pixel_frames(1, find_model("brook").stream.frames_per_chunk)
"""Pictures of a chunk."""


def run(reader: Reader, chunk: float = 0.2, fps: float = 16.0, gib: float = 8.0) -> None:
    """`chunk`: seconds that twelve pictures take on the device; `gib`: memory for sessions, each of which
    takes one."""
    if min(chunk, fps) <= 0 or gib < 1:
        raise CourseError(
            f"--chunk and --fps must be positive and --gib 1 or more, got {chunk:g}, {fps:g}, {gib:g}"
        )
    config = AdmissionConfig(memory_bytes=int(gib * GIB))
    guess = reader.predict(
        f"{PICTURES} pictures take {chunk:g} s and play at {fps:g} a second; {gib:g} GiB, 1 for each. How "
        "many sessions fit?"
    )
    expected = min(int(config.share * PICTURES / fps / chunk + 1e-9), int(gib))
    admitted, said = ask_until_full(chunk, fps, config)
    reader.reveal(guess, admitted, by=f"min({config.share:g} * what a chunk plays / what it takes, memory)")
    assert admitted == max(1, expected), f"{admitted} were let in, {expected} fit"
    reader.say(f"the next one is told: {said}")
    reader.say(
        "chunk times are counted with the spread that was seen, so that a promise does not rest on luck"
    )


def ask_until_full(chunk: float, fps: float, config: AdmissionConfig) -> tuple[int, str]:
    """How many were let in at this rate, and what the first that was not is told."""
    door = Admission(config)
    door.times.add(SIZE, chunk)
    for number in range(10_000):
        pace = Pace(fps=fps, chunk_frames=PICTURES)
        asks = Request(
            session_id=str(number), geometry=SIZE, pace=pace, memory_bytes=SESSION_BYTES, rate="strict"
        )
        answer = door.ask(asks, 0.0)
        if not isinstance(answer, Admitted):
            return number, f"wait, place {answer.position}: {answer.reason}" if isinstance(
                answer, Queued
            ) else str(answer.reason)
    raise AssertionError("nobody was ever refused")
