"""Frames in: how they are taken, and how motion sets the noise."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from millstream.session.feed import FrameFeed
from millstream.session.video_input import HIGHEST, LOWEST, MotionNoise


@given(st.integers(0, 60), st.lists(st.integers(1, 13), min_size=1, max_size=8))
def test_a_feed_gives_every_frame_once_and_fills_only_the_last_chunk(total: int, counts: list[int]) -> None:
    feed = FrameFeed(np.full((2, 2, 3), number, np.uint8) for number in range(total))
    seen: list[int] = []
    for count in counts:
        taken = feed.read(count)
        if taken is None:
            assert len(seen) == total
            break
        frames, real = taken
        assert frames.shape == (count, 2, 2, 3)
        seen.extend(frames[:real, 0, 0, 0].tolist())
        assert (frames[real:] == frames[real - 1]).all()
    assert seen == list(range(len(seen)))


def test_a_feed_takes_no_more_than_it_was_asked_for() -> None:
    """A live source would otherwise run behind by what was taken too early."""
    source = iter(range(30))
    FrameFeed(np.full((2, 2, 3), number, np.uint8) for number in source).read(9)
    assert next(source) == 9


def shaking(amount: int, count: int = 12) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (128 + rng.integers(-amount, amount + 1, (count, 32, 32, 3))).astype(np.uint8)


def test_more_motion_gives_more_noise() -> None:
    scales = [MotionNoise(0.3).scale(shaking(amount), 0.5) for amount in (0, 10, 40, 100)]
    assert scales == sorted(scales)
    assert scales[0] == 0.5
    assert scales[-1] > 0.7


def test_noise_follows_motion_smoothly() -> None:
    motion = MotionNoise(0.3)
    calm = [motion.scale(shaking(0), 0.5) for _ in range(3)]
    stirred = [motion.scale(shaking(100), 0.5) for _ in range(30)]
    assert calm == [0.5] * 3
    assert stirred == sorted(stirred)
    assert stirred[0] < 0.6 < stirred[-1]


def test_the_controller_can_be_off_reversed_and_never_leaves_its_range() -> None:
    assert MotionNoise(0.0).scale(shaking(100), 0.5) == 0.5
    assert MotionNoise(-0.3).scale(shaking(100), 0.5) < 0.5
    assert MotionNoise(1.0).scale(shaking(120), 0.9) == HIGHEST
    assert MotionNoise(-1.0).scale(shaking(120), 0.1) == LOWEST
