"""A video appears whole or not at all, whoever interrupts, overwrites or runs out of space."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.core.errors import VideoError
from millstream.video.writer import VideoWriter
from tests.unit.video_files import (
    ALL_KINDS,
    FILE_KINDS,
    FPS,
    moving_frames,
    noise_frames,
    one_line,
    read_all,
    write_video,
)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_target_appears_only_at_the_end_and_alone(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "deep" / f"clip{kind}"
    with VideoWriter(target, fps=FPS) as writer:
        assert not target.parent.exists()
        writer.write(moving_frames(3))
        assert not target.exists()
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_nothing_behind(tmp_path: Path, kind: str, error: type[BaseException]) -> None:
    with pytest.raises(error), VideoWriter(tmp_path / f"clip{kind}", fps=FPS) as writer:  # noqa: PT012
        writer.write(moving_frames(3))
        raise error
    assert list(tmp_path.iterdir()) == []


def test_an_exception_leaves_an_existing_video_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "clip.mp4"
    target.write_bytes(b"precious")
    with pytest.raises(RuntimeError), VideoWriter(target, fps=FPS, overwrite=True) as writer:  # noqa: PT012
        writer.write(moving_frames(3))
        raise RuntimeError
    assert target.read_bytes() == b"precious"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_overwrite_replaces_what_was_there(tmp_path: Path, kind: str) -> None:
    target = write_video(tmp_path / f"clip{kind}", moving_frames(5))
    with VideoWriter(target, fps=FPS, overwrite=True) as writer:
        writer.write(moving_frames(2))
    assert (len(read_all(target)) if kind else len(list(target.iterdir()))) == 2
    assert list(tmp_path.iterdir()) == [target]


def test_a_video_that_appears_meanwhile_is_kept_and_so_is_ours(tmp_path: Path) -> None:
    target = tmp_path / "clip.mp4"
    with pytest.raises(VideoError) as error, VideoWriter(target, fps=FPS) as writer:  # noqa: PT012
        writer.write(moving_frames(3))
        target.write_bytes(b"theirs")
    assert target.read_bytes() == b"theirs"
    (ours,) = set(tmp_path.iterdir()) - {target}
    assert len(read_all(ours)) == 3
    one_line(error, target, ours)


def test_two_writers_of_one_process_do_not_share_a_temporary(tmp_path: Path) -> None:
    target = tmp_path / "clip.mp4"
    with (
        VideoWriter(target, fps=FPS, overwrite=True) as first,
        VideoWriter(target, fps=FPS, overwrite=True) as second,
    ):
        first.write(moving_frames(3))
        second.write(moving_frames(5))
    assert len(read_all(target)) == 3  # the outer one leaves last


def test_a_failed_write_never_becomes_a_file_even_if_its_error_is_swallowed(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "clip.mp4", fps=FPS) as writer:
        writer.write(moving_frames(3))
        with pytest.raises(VideoError) as error:
            writer.write(moving_frames(3, 32, 32))
    one_line(error, tmp_path / "clip.mp4", "96x64", "32x32")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_no_frames_is_an_error_and_leaves_nothing(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "deep" / f"clip{kind}"
    with pytest.raises(VideoError, match="no frame") as error, VideoWriter(target, fps=FPS):
        pass
    one_line(error, target)
    assert list(tmp_path.iterdir()) == []


WRITE_UNDER_A_LIMIT = """
import resource, signal, sys
import numpy as np
from millstream.core.errors import VideoError
from millstream.video.reader import VideoReader
from millstream.video.writer import VideoWriter

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path, limits = sys.argv[1], map(int, sys.argv[2:])
frames = np.random.default_rng(0).integers(0, 256, (6, 64, 96, 3), dtype=np.uint8)
for limit_bytes in limits:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))
    try:
        with VideoWriter(path, fps=16, overwrite=True) as writer:
            writer.write(frames)
        print("whole" if path.endswith("/") or len(list(VideoReader(path).frames())) == 6 else "short")
    except VideoError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*FILE_KINDS, "/"])
def test_a_full_disk_is_one_clear_line_and_leaves_nothing(tmp_path: Path, kind: str) -> None:
    """The limit is put at many places of the file: its start, between frames, in the trailer."""
    whole = write_video(tmp_path / f"whole{kind}", noise_frames(6))
    size_bytes = max(path.stat().st_size for path in ([whole] if kind != "/" else whole.iterdir()))
    target = tmp_path / "out" / f"clip{kind}"
    well_below = [10, *(int(part * size_bytes) for part in (0.01, 0.1, 0.3, 0.5, 0.8, 0.95))]
    near = [
        size_bytes - 100,
        size_bytes - 20,
        size_bytes - 1,
    ]  # x264 does not always give the same number of bytes
    path_argument = f"{target}/" if kind == "/" else str(target)
    command = [sys.executable, "-c", WRITE_UNDER_A_LIMIT, path_argument, *map(str, [*well_below, *near])]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    refused = f"{target}: {os.strerror(errno.EFBIG)}; free some space or choose another --out"
    assert lines[: len(well_below)] == [refused] * len(well_below)
    assert set(lines[len(well_below) :]) <= {refused, "whole"}
    assert set(target.parent.iterdir()) <= {target}
