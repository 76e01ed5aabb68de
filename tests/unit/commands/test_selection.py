"""Which parts of a video become clips: no cut within one, nothing still, nothing dark, as far apart as
asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from millstream.commands.train.selection import FoundClip, LeftOut, cell_means, motion_of, select
from millstream.commands.train.sizes import nearest, parse_sizes
from millstream.core.errors import ConfigError
from millstream.train.finetune.dataset import DatasetCard

FPS = 10.0
LENGTH = 9
"""Pictures a second, and of a clip of three latent frames."""


def card(**changed: object) -> DatasetCard:
    given: dict[str, object] = dict(
        model="", fingerprint="", sizes=((32, 32),), fps=FPS, latent_frames=3, clips_per_video=9
    )
    return DatasetCard(**{**given, **changed}, videos_per_shard=1, videos=1)  # type: ignore[arg-type]


def shot(pictures: int, *, seed: int, speed: int = 1) -> Iterator[np.ndarray]:
    """A textured wall that passes by, each shot with a wall of its own."""
    generator = np.random.default_rng(seed)
    wall = np.kron(generator.integers(0, 256, (4, 32, 3), dtype=np.uint8), np.ones((8, 8, 1), dtype=np.uint8))
    grain = generator.integers(0, 6, (pictures, 32, 32, 3), dtype=np.uint8)
    for number in range(pictures):
        yield np.minimum(wall[:, number * speed : number * speed + 32], 249) + grain[number]


def selected(pictures: Iterable[np.ndarray], **changed: object) -> tuple[list[FoundClip], list[LeftOut]]:
    found = list(select(pictures, card(**changed)))
    clips = [each for each in found if isinstance(each, FoundClip)]
    return clips, [each for each in found if isinstance(each, LeftOut)]


def starts(pictures: list[np.ndarray], **changed: object) -> list[int]:
    return [round(clip.start_s * FPS) for clip in selected(pictures, **changed)[0]]


def test_no_clip_has_a_cut_in_it() -> None:
    pictures = [*shot(14, seed=1), *shot(20, seed=2), *shot(4, seed=3), *shot(9, seed=4)]
    clips, left_out = selected(pictures)
    assert [round(clip.start_s * FPS) for clip in clips] == [0, 14, 23, 38]
    assert [(round(each.start_s * FPS), each.why) for each in left_out] == [
        (9, "cut at 1.40 s"),
        (32, "cut at 3.40 s"),
        (34, "cut at 3.80 s"),
    ]
    assert starts(pictures, across_cuts=True) == [0, 9, 18, 27, 36]


@pytest.mark.parametrize("speed", [1, 3, 6])
def test_what_moves_fast_is_no_cut(speed: int) -> None:
    assert starts(list(shot(27, seed=5, speed=speed))) == [0, 9, 18]


def test_a_video_that_is_shown_at_twice_its_rate_has_no_cuts_for_it() -> None:
    assert starts([picture for picture in shot(9, seed=6, speed=4) for _ in range(2)]) == [0, 9]


@pytest.mark.parametrize(
    ("stride", "expected"), [(0.0, [0, 9, 18]), (0.3, [*range(0, 21, 3)]), (1.5, [0, 15])]
)
def test_clips_are_as_far_apart_as_asked(stride: float, expected: list[int]) -> None:
    assert starts(list(shot(29, seed=7)), stride_s=stride) == expected


def test_what_stands_still_or_is_dark_is_left_out_and_grain_is_no_motion() -> None:
    pictures = [*shot(9, seed=8), *shot(9, seed=8, speed=0), *(picture // 16 for picture in shot(9, seed=9))]
    moving, still = (
        motion_of(np.stack([cell_means(p) for p in part]), FPS) for part in (pictures[:9], pictures[9:18])
    )
    assert still < 10 < moving
    clips, left_out = selected(pictures, least_motion=10.0, least_brightness=20.0, across_cuts=True)
    assert [clip.start_s for clip in clips] == [0.0]
    assert [each.why.partition(":")[0] for each in left_out] == ["still", "dark"]
    assert np.array_equal(clips[0].pixels_THW3, np.stack(pictures[:LENGTH]))


def test_no_more_clips_than_asked_and_no_picture_is_read_after_them() -> None:
    pictures = shot(40, seed=10)
    assert len(selected(pictures, clips_per_video=2)[0]) == 2
    assert len(list(pictures)) == 40 - 2 * LENGTH


def test_a_video_takes_the_size_nearest_to_its_shape() -> None:
    sizes = parse_sizes("480x832,832x480,640x640", (480, 832))
    assert [nearest(sizes, size) for size in ((1080, 1920), (1920, 1080), (500, 600), (100, 1000))] == [
        (480, 832), (832, 480), (640, 640), (480, 832),
    ]  # fmt: skip


@pytest.mark.parametrize("own", [(480, 832), (256, 256), (320, 576)])
def test_auto_has_the_models_own_size_first_and_others_about_as_large(own: tuple[int, int]) -> None:
    sizes = parse_sizes("auto", own)
    assert sizes[0] == own
    assert len(sizes) == 5
    for height, width in sizes:
        assert height * width == pytest.approx(own[0] * own[1], rel=0.06)


@pytest.mark.parametrize(
    ("text", "said"), [("480x832,480x832", "twice"), ("480x830", "try 480x832"), ("480", "HEIGHTxWIDTH")]
)
def test_sizes_that_cannot_be_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_sizes(text, (480, 832))
