"""Frames to write, what comes back of them, and what a refusal looks like."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from millstream.core.errors import VideoError
from millstream.video.reader import VideoReader
from millstream.video.writer import VideoWriter

HEIGHT = 64
WIDTH = 96
FPS = 16.0
FILE_KINDS = [".mp4", ".webm", ".gif"]
ALL_KINDS = [*FILE_KINDS, ""]


def moving_frames(num_frames: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """A gradient that brightens, so that frames differ and order shows."""
    level = np.linspace(0.2, 1.0, num_frames)[:, None, None, None]
    shade = np.linspace(0.5, 1.0, width)[None, None, :, None]
    colour = np.array([230, 120, 40])[None, None, None, :]
    return np.broadcast_to(level * shade * colour, (num_frames, height, width, 3)).astype(np.uint8)


def noise_frames(num_frames: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """Does not compress, so that files get large."""
    return np.random.default_rng(0).integers(0, 256, (num_frames, height, width, 3), dtype=np.uint8)


def soft_frames(num_frames: int, height: int = HEIGHT, width: int = WIDTH, grain: int = 5) -> np.ndarray:
    """Noise without its finest grain: like an untrained model's pictures, with something for an encoder to
    predict."""
    noise = np.random.default_rng(0).normal(size=(num_frames, height + grain - 1, width + grain - 1, 3))
    soft = sum(noise[:, y : y + height, x : x + width] for y in range(grain) for x in range(grain)) / grain
    return np.clip(128 + 50 * soft, 0, 255).astype(np.uint8)


def after_other_bytes(planes: list[np.ndarray], rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The same planes; before the first, blocks of many sizes are filled and freed. Who takes memory then
    finds those bytes."""
    blocks = [np.full(int(2**size), rng.integers(256), np.uint8) for size in rng.uniform(5, 17, 500)]
    del blocks  # all at once: freed one by one they would be one block used again and again
    yield from planes


def contents(path: Path) -> bytes:
    """Of a file, or of a folder's files in their order."""
    return (
        path.read_bytes()
        if path.is_file()
        else b"".join(file.read_bytes() for file in sorted(path.iterdir()))
    )


def write_video(path: Path, frames: np.ndarray, fps: float = FPS) -> Path:
    with VideoWriter(path, fps=fps) as writer:
        writer.write(frames)
    return path


def read_all(path: Path, size: tuple[int, int] | None = None) -> np.ndarray:
    with VideoReader(path, size=size) as reader:
        return np.stack(list(reader.frames()))


def one_line(error: pytest.ExceptionInfo[VideoError], *words: str | Path) -> None:
    message = str(error.value)
    assert "\n" not in message
    assert all(str(word) in message for word in words), message


def mean_colours(frames_THW3: np.ndarray) -> np.ndarray:
    return frames_THW3.mean(axis=(1, 2))
