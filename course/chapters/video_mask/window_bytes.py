"""Cost of a window, by the planner: bytes of keys and values of one session, for models that exist."""

from __future__ import annotations

from dataclasses import replace

from course.reader import Reader
from millstream.core.chunk_work import tokens_per_frame
from millstream.core.config import GIB
from millstream.core.errors import CourseError
from millstream.core.presets import find_model
from millstream.planner.memory import window_bytes

MODELS = ("brook", "wan2.1-t2v-1.3b", "wan2.1-t2v-14b")
FRAMES = (3, 9, 21, 81)


def run(reader: Reader, window: int = 21) -> None:
    if window < 1:
        raise CourseError(f"--window must be 1 or more frames, got {window}")
    spec = find_model("wan2.1-t2v-1.3b")
    tokens = window * tokens_per_frame(spec.dit, spec.stream)
    guess = reader.predict(
        f"{spec.dit.layers} layers of width {spec.dit.width}, {window} frames, {tokens} tokens, bf16. "
        "How many GiB are keys and values?"
    )
    reader.reveal(
        guess,
        window_gib(spec.name, window),
        by="planner.memory.window_bytes: 2 * tokens * layers * width * 2",
        tolerance=0.05,
    )
    for name in MODELS:
        sizes = [window_gib(name, frames) for frames in FRAMES]
        reader.say(
            f"{name:16} GiB at {', '.join(map(str, FRAMES))} frames: "
            f"{' '.join(f'{size:8.3f}' for size in sizes)}"
        )
        assert abs(sizes[-1] / sizes[0] - FRAMES[-1] / FRAMES[0]) < 0.1, (
            f"{name}: bytes are in proportion to the window, {sizes}"
        )


def window_gib(name: str, window: int) -> float:
    spec = find_model(name)
    return window_bytes(spec.dit, replace(spec.stream, window=window), value_bytes=2) / GIB
