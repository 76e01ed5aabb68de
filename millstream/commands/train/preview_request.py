"""Request for a look at a painted world: `millstream train data world`, parsed and checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from millstream.core.errors import ConfigError
from millstream.train.data.render import FPS

MAX_COUNT = 64
MAX_VIDEOS = 10_000
MAX_SECONDS = 600.0
SHEET = "sheet.png"
CLIP = "clip.mp4"
CAPTIONS = "captions.txt"


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewRequest:
    """The command line, parsed and checked."""

    out: Path
    seed: int = 0
    count: int = 8
    seconds: float = 4.0
    size: tuple[int, int] = (256, 256)
    held_out: bool = False
    overwrite: bool = False
    videos: bool = False
    """Each scene by itself, with its caption beside it, in place of a sheet and a clip of all."""
    walk: bool = False
    """Walks through the world in three dimensions, in place of scenes that pan past."""

    def __post_init__(self) -> None:
        most = MAX_VIDEOS if self.videos else MAX_COUNT
        if not 1 <= self.count <= most:
            raise ConfigError(f"--count must be from 1 to {most}, got {self.count}")
        if not 1 / FPS <= self.seconds <= MAX_SECONDS:
            raise ConfigError(f"--seconds must be from {1 / FPS:g} to {MAX_SECONDS:g}, got {self.seconds:g}")
        if self.seed < 0:
            raise ConfigError(f"--seed must be 0 or more, got {self.seed}")
        if any(side % 16 or not 16 <= side <= 2048 for side in self.size):
            raise ConfigError(f"--size must be multiples of 16 up to 2048, got {self.size[0]}x{self.size[1]}")
