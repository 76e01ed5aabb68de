"""Front and mesh, one after the other or at the same time: what a chunk takes, and how much of the shorter
one is hidden."""

from __future__ import annotations

from course.reader import Reader
from millstream.core.errors import CourseError
from millstream.core.overlap import ChunkPace


def run(reader: Reader, front: float = 80.0, mesh: float = 200.0, pictures: int = 12) -> None:
    """Milliseconds of a chunk."""
    if min(front, mesh) <= 0 or pictures < 1:
        raise CourseError(f"--front and --mesh must be positive, got {front:g} and {mesh:g}")
    guess = reader.predict(
        f"pictures take the front {front:g} ms, latents the mesh {mesh:g} ms. At the same time: a chunk "
        "every how many ms?"
    )
    reader.reveal(guess, max(front, mesh), by="the longer of both")
    for name, period in (("one after the other", front + mesh), ("at the same time", max(front, mesh))):
        pace = ChunkPace(stage0_ms=front, stage1_ms=mesh, period_ms=period)
        rate = f"{1e3 * pictures / period:5.1f} pictures a second"
        reader.say(f"{name:20} every {period:4.0f} ms, {rate}; {pace.score:.0%} of the shorter one is hidden")
        assert pace.score == (1.0 if period == max(front, mesh) else 0.0), f"{pace}"
    reader.say("a control waits longer: up to two chunks are under way in front of it")
