"""What cannot be written is refused in one line, before anything is done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millstream.core.errors import VideoError
from millstream.video import encoders as video_encoders
from millstream.video.encoders import available_codecs
from millstream.video.writer import VideoWriter
from tests.unit.video_files import ALL_KINDS, FPS, moving_frames, one_line, read_all, write_video


@pytest.mark.parametrize("name", ["clip.avi", "clip.txt", "clip.mp4.bak"])
def test_an_unknown_suffix_is_refused_with_the_ones_that_work(tmp_path: Path, name: str) -> None:
    with pytest.raises(VideoError) as error:
        VideoWriter(tmp_path / name, fps=FPS)
    one_line(error, name, ".mp4", ".webm", ".gif", "PNG")


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_an_existing_target_needs_overwrite(tmp_path: Path, kind: str) -> None:
    target = write_video(tmp_path / f"clip{kind}", moving_frames(1))
    with pytest.raises(VideoError) as error:
        VideoWriter(target, fps=FPS)
    one_line(error, target, "--overwrite")


def test_overwrite_never_deletes_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years")
    with pytest.raises(VideoError) as error:
        VideoWriter(tmp_path / "home", fps=FPS, overwrite=True)
    one_line(error, tmp_path / "home", "choose another --out")


@pytest.mark.parametrize(("name", "is_folder"), [("clip.mp4", True), ("frames", False)])
def test_overwrite_never_swaps_a_file_and_a_folder(tmp_path: Path, name: str, is_folder: bool) -> None:
    target = tmp_path / name
    _ = target.mkdir() if is_folder else target.write_bytes(b"")
    with pytest.raises(VideoError) as error:
        VideoWriter(target, fps=FPS, overwrite=True)
    one_line(error, target, "choose another --out")


@pytest.mark.parametrize("path", ["", ".", "..", "/"])
def test_a_path_without_a_name_is_refused(path: str) -> None:
    with pytest.raises(VideoError, match=r"clip\.mp4"):
        VideoWriter(path, fps=FPS, overwrite=True)


@pytest.mark.parametrize("fps", [0.0, -1.0, 1e-6, 1e9, float("nan"), float("inf")])
def test_a_rate_nothing_plays_at_is_refused(tmp_path: Path, fps: float) -> None:
    with pytest.raises(VideoError, match="fps"):
        VideoWriter(tmp_path / "clip.mp4", fps=fps)


def test_a_gif_faster_than_gifs_go_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VideoError, match="at most 50 fps"):
        VideoWriter(tmp_path / "clip.gif", fps=60)


def test_a_name_too_long_for_the_disk_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(VideoError, match="shorter"):
        VideoWriter(tmp_path / f"{'x' * 250}.mp4", fps=FPS)


def test_a_build_without_an_encoder_says_what_it_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video_encoders, "is_available", lambda encoder: encoder.name in ("libvpx", "png"))
    assert available_codecs() == {"mp4 (h264)": False, "webm (vp8)": True, "gif": False, "png": True}
    with pytest.raises(VideoError) as error:
        VideoWriter(tmp_path / "clip.mp4", fps=FPS)
    one_line(error, "clip.mp4", ".webm", "folder/")
    assert len(read_all(write_video(tmp_path / "clip.webm", moving_frames(4)))) == 4


def test_a_gpus_encoder_is_taken_where_it_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_encoders, "is_available", lambda encoder: True)
    assert video_encoders.find_encoder(".mp4").name == "h264_nvenc"
    assert video_encoders.find_encoder(".mp4", (480, 128)).name == "libx264", "too small for a device"
    monkeypatch.undo()
    assert not video_encoders._opens("h264_of_nobody", "yuv420p"), "what a build lacks is no error"
    assert video_encoders.find_encoder(".mp4").name in ("h264_nvenc", "libx264"), "one that opens here"


def test_a_parent_that_is_a_file_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("")
    with pytest.raises(VideoError) as error:
        VideoWriter(tmp_path / "notes" / "deep" / "clip.mp4", fps=FPS)
    one_line(error, tmp_path / "notes", "is not a folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not stop root")
def test_a_folder_we_may_not_write_in_is_refused_at_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(VideoError) as error:
            VideoWriter(tmp_path / "clip.mp4", fps=FPS)
    finally:
        tmp_path.chmod(0o700)
    one_line(error, tmp_path, "cannot write")
