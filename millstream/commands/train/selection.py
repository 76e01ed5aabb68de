"""Which parts of a video become clips: where one may begin, and what is not worth learning from.

Pictures are judged by the means of 16 x 16 cells, in levels from 0 to 255, so that grain does not count as
motion. A cut is a change that is large and many times the usual one of its shot; a slow fade is none. Knows
no video file and no model.
Shapes: T pixel frames, H height, W width, 3 is RGB.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from millstream.core.conditions import FrameActions
from millstream.core.config import pixel_frames
from millstream.core.errors import VideoError
from millstream.train.finetune.dataset import DatasetCard

CELLS = 16
CUT_LEVELS = 16.0
CUT_TIMES = 4.0
"""A cut changes a picture by at least so much, and so many times as much as the pictures before it
changed."""
REMEMBERED = 8
"""Changes of a shot that are called usual."""


class FoundClip(NamedTuple):
    start_s: float
    pixels_THW3: np.ndarray
    actions: Sequence[FrameActions] = ()
    """Actions of each of its pictures, of a model that takes any."""


class LeftOut(NamedTuple):
    start_s: float
    why: str


class Shot:
    """The pictures since the last cut, as far as the next needs them."""

    def __init__(self) -> None:
        self._last: np.ndarray | None = None
        self._changes: deque[float] = deque(maxlen=REMEMBERED)

    def begins_with(self, cells: np.ndarray) -> bool:
        """Return whether a cut comes before this picture."""
        change = 0.0 if self._last is None else float(np.abs(cells - self._last).mean())
        usual = statistics.median(self._changes) if self._changes else CUT_LEVELS
        self._last = cells
        is_cut = change > max(CUT_LEVELS, CUT_TIMES * usual)
        if is_cut:
            self._changes.clear()
        elif change:  # a picture that is shown twice says nothing
            self._changes.append(change)
        return is_cut


def select(pictures: Iterable[np.ndarray], card: DatasetCard) -> Iterator[FoundClip | LeftOut]:
    """Clips of the pictures, which come at the card's frame rate, one after the other: one is in memory at a
    time."""
    length = pixel_frames(0, card.latent_frames)
    number = -1
    found = 0
    stride = max(1, round(card.stride_s * card.fps)) if card.stride_s else length
    begins = 0
    shot = Shot()
    held = list[tuple[np.ndarray, np.ndarray]]()
    for number, picture_HW3 in enumerate(pictures):
        cells = cell_means(picture_HW3)
        if shot.begins_with(cells) and not card.across_cuts and number > begins:
            yield LeftOut(begins / card.fps, f"cut at {number / card.fps:.2f} s")
            held = []
            begins = number
        if number >= begins:
            held.append((picture_HW3, cells))
        if len(held) < length:
            continue
        why = unfit(np.stack([cells for _, cells in held]), card)
        if why is None:
            yield FoundClip(begins / card.fps, np.stack([picture for picture, _ in held]))
            found += 1
        else:
            yield LeftOut(begins / card.fps, why)
        held = held[stride:]
        begins = begins + stride
        if found == card.clips_per_video:
            break
    if (seconds := (number + 1) / card.fps) < (lasts_s := length / card.fps):
        raise VideoError(f"it is {seconds:.1f} s long, a clip takes {lasts_s:.1f} s; try fewer --frames")


def unfit(cells_TNN3: np.ndarray, card: DatasetCard) -> str | None:
    """Why a clip is not worth learning from."""
    brightness = float(cells_TNN3.mean())
    if brightness < card.least_brightness:
        return f"dark: {brightness:.1f} levels bright, --brightness asks for {card.least_brightness:g}"
    motion = motion_of(cells_TNN3, card.fps)
    if motion < card.least_motion:
        return f"still: it changes by {motion:.1f} levels a second, --motion asks for {card.least_motion:g}"
    return None


def motion_of(cells_TNN3: np.ndarray, fps: float) -> float:
    """How much pictures change in a second, in levels."""
    steps = np.abs(np.diff(cells_TNN3, axis=0)).mean(axis=(1, 2, 3))
    return float(steps.mean() * fps) if len(steps) else 0.0


def cell_means(picture_HW3: np.ndarray) -> np.ndarray:
    """[CELLS, CELLS, 3] in float32. Sides are multiples of CELLS."""
    height, width, _ = picture_HW3.shape
    assert height % CELLS == width % CELLS == 0, f"{height}x{width} is not whole cells"
    by_cell = picture_HW3.reshape(CELLS, height // CELLS, CELLS, width // CELLS, 3)
    means: np.ndarray = by_cell.mean(axis=(1, 3), dtype=np.float32)
    return means
