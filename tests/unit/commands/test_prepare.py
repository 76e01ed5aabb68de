"""From videos to shards: what is read, at which rate, what is left out, and that it goes on where it was
left."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from millstream.commands.train import prepare as module
from millstream.commands.train.prepare import SHEET, SKIPPED, PrepareRequest, run_prepare
from millstream.commands.train.world import PreviewRequest, preview
from millstream.core.config import ActionsConfig
from millstream.core.errors import ConfigError, NotKept, WeightsError
from millstream.train.data.render import FPS
from millstream.train.data.walk.actions import random_tracks
from millstream.train.finetune.dataset import ClipSet, shard_path
from millstream.train.pool_rendering import walk_vectors
from millstream.video.writer import VideoWriter

FRAMES = 3
"""Latent: 9 pictures."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three that can be used, one that is too short, one that is no video, one of which nothing is said."""
    folder = tmp_path_factory.mktemp("videos")
    for name, fps, pictures in (
        ("a", 16.0, 20),
        ("b", 32.0, 40),
        ("c", 8.0, 10),
        ("short", 16.0, 4),
        ("silent", 16.0, 20),
    ):
        brightness = np.linspace(20, 230, pictures).astype(np.uint8)
        with VideoWriter(folder / f"{name}.mp4", fps=fps, overwrite=True) as writer:
            writer.write(np.broadcast_to(brightness[:, None, None, None], (pictures, 48, 64, 3)).copy())
        if name != "silent":
            (folder / f"{name}.txt").write_text(f"a red boat, {name}")
    (folder / "damaged.mp4").write_bytes(b"no video")
    (folder / "damaged.txt").write_text("a red boat")
    return folder


@pytest.fixture
def videos(written: Path, tmp_path: Path) -> Path:
    """The same for one test, which may change them."""
    return shutil.copytree(written, tmp_path / "videos")


def request(videos: Path, **changed: object) -> PrepareRequest:
    given: dict[str, object] = {
        "source": videos,
        "out": videos.parent / "clips",
        "sizes": "32x32",
        "latent_frames": FRAMES,
    }
    return PrepareRequest(**{**given, "device": "cpu", **changed})  # type: ignore[arg-type]


def prepared(videos: Path, **changed: object) -> ClipSet:
    done = module.prepare(request(videos, **changed))
    assert done is not None
    return done.clips


@pytest.mark.parametrize("write", ["write_card", "write_shard", "_write_skipped"])
@pytest.mark.parametrize(
    "fault", [OSError(28, "No space left on device"), SafetensorError("No space left on device")]
)
def test_a_full_disk_is_one_line_and_the_same_command_goes_on(
    videos: Path, write: str, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise fault

    with monkeypatch.context() as patched:
        patched.setattr(module, write, full)
        with pytest.raises(NotKept, match=r"No space left on device; .*the same command goes on"):
            module.prepare(request(videos))
    assert len(prepared(videos)) == 3


def test_videos_become_clips_and_what_cannot_is_listed(videos: Path) -> None:
    clips = prepared(videos)
    assert [Path(clip.video).stem for clip in clips.clips] == ["a", "b", "c"]
    assert clips[0].latents_FCYX.shape == (FRAMES, 8, 4, 4)
    skipped = (videos.parent / "clips" / SKIPPED).read_text().splitlines()
    assert [line.split(": ")[0].rpartition("/")[2] for line in skipped] == [
        "damaged.mp4",
        "short.mp4",
        "silent.mp4",
    ]
    assert skipped[0].count("damaged.mp4") == 1
    assert "a clip takes 0.6 s" in skipped[1]
    assert "no caption" in skipped[2]
    assert (videos.parent / "clips" / SHEET).read_bytes().startswith(b"\x89PNG")


def test_actions_beside_a_video_are_kept_with_its_clips_and_videos_without_are_left_out(videos: Path) -> None:
    (videos / "a.actions.csv").write_text("keys,look_x,look_y\n" + "w,9,0\n" * 5 + "a+w,0,0\n" * 15)
    (videos / "b.actions.jsonl").write_text('{"keys":"d","look_x":4.5}\n' * 40)  # at 32 a second
    (videos / "c.actions.csv").write_text("keys\nw\nw\n")
    clips = prepared(videos, actions="a,d,w,look")
    assert [Path(clip.video).stem for clip in clips.clips] == ["a", "b"]
    first, second = (clips[number].actions_FA for number in range(2))
    assert first.tolist() == [
        pytest.approx(row, abs=1e-3) for row in ([0, 0, 1, 0.2, 0], [0, 0, 1, 0.8, 0], [1, 0, 1, 0, 0])
    ]
    assert second.tolist() == [
        pytest.approx(row, abs=1e-3) for row in ([0, 1, 0, 0.1, 0], [0, 1, 0, 0.8, 0], [0, 1, 0, 0.8, 0])
    ]
    skipped = (videos.parent / "clips" / SKIPPED).read_text()
    assert "its actions end after 0.25 s, before its pictures do" in skipped
    assert prepared(videos, out=videos.parent / "plain")[0].actions_FA is None
    (videos / "b.actions.jsonl").unlink()
    assert len(prepared(videos, out=videos.parent / "fewer", actions="w")) == 1
    assert (
        "there is no b.actions.csv or .actions.jsonl beside it"
        in (videos.parent / "fewer" / SKIPPED).read_text()
    )


@pytest.mark.parametrize("text", ["w,w", ",", "w" * 30])
def test_actions_that_name_no_keys_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--actions"):
        module.parse_actions(text)


def test_clips_that_are_no_whole_chunks_are_said_first(
    videos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(prepared(videos, latent_frames=2)) == 3
    said = "clips of 2 latent frames are not whole chunks of 3, as brook streams them"
    assert capsys.readouterr().err.startswith(
        f"{said}; give --frames 3, or set frames_per_chunk in the recipe"
    )
    assert len(prepared(videos, out=videos.parent / "whole")) == 3
    assert "chunks" not in capsys.readouterr().err


def test_a_caption_that_is_not_utf_8_leaves_its_video_out_until_it_is_saved_so(videos: Path) -> None:
    caption = videos / "b.txt"
    caption.write_bytes("a red boat, na\u00efve".encode("latin-1"))
    assert [Path(clip.video).stem for clip in prepared(videos).clips] == ["a", "c"]
    assert (
        "b.mp4: its caption is not text in UTF-8; save it as that"
        in (videos.parent / "clips" / SKIPPED).read_text()
    )
    caption.write_text("a red boat, na\u00efve", encoding="utf-8")
    assert "a red boat, na\u00efve" in [clip.caption for clip in prepared(videos).clips]


def test_a_caption_that_was_missing_is_read_once_it_is_there(videos: Path) -> None:
    assert len(prepared(videos)) == 3
    (videos / "silent.txt").write_text("a green boat")
    assert [clip.caption for clip in prepared(videos).clips][-1] == "a green boat"


def test_the_rate_of_a_video_does_not_matter(videos: Path) -> None:
    """The same brightening in 1.25 s, at 16, 32 and 8 pictures a second."""
    clips = prepared(videos)
    first = clips[0].latents_FCYX
    for number in (1, 2):
        distance = (clips[number].latents_FCYX - first).norm() / first.norm()
        assert distance < 0.25, f"video {number} was read at another rate"


def test_several_clips_of_a_video_follow_each_other(videos: Path) -> None:
    clips = prepared(videos, clips=2)
    assert [clip.start_s for clip in clips.clips] == [0.0, 0.5625] * 3
    with pytest.raises(ConfigError, match="was begun with clips_per_video = 2 and this is 1"):
        prepared(videos)


def test_parts_are_made_apart_and_what_is_there_is_not_made_again(
    videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "VIDEOS_PER_SHARD", 2)
    out = videos.parent / "clips"
    assert run_prepare(request(videos, part=(2, 2))) == "part 2 of 2 is done; the others are not"
    assert [shard_path(out, number).exists() for number in range(3)] == [False, True, False]
    made = shard_path(out, 1).stat().st_mtime_ns
    said = run_prepare(request(videos))
    assert said.startswith(f"{out}: 3 clips, 3 videos left out")
    assert said.endswith("brook has no word for: b, c"), "a is a word"
    assert shard_path(out, 1).stat().st_mtime_ns == made
    assert len(ClipSet(out)) == 3


def test_a_log_says_which_video_it_is_at_whatever_shards_are_there(
    videos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):  # made, then found
        prepared(videos)
        said = capsys.readouterr().err.splitlines()
        assert (said[0], said[-1]) == ("video 1 of 6", "video 6 of 6")


def test_latents_do_not_depend_on_how_many_frames_are_encoded_at_once(
    videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = prepared(videos, out=videos.parent / "few")
    monkeypatch.setattr(module, "ENCODED_AT_ONCE", FRAMES)
    all_at_once = prepared(videos, out=videos.parent / "all")
    for number in range(len(few)):
        torch.testing.assert_close(
            few[number].latents_FCYX, all_at_once[number].latents_FCYX, rtol=1e-2, atol=1e-2
        )


@pytest.mark.parametrize(
    "changed",
    [
        {"latent_frames": 0},
        {"clips": 0},
        {"part": (3, 2)},
        {"part": (0, 2)},
        {"stride_s": -1.0},
        {"least_motion": float("nan")},
    ],
)
def test_what_makes_no_sense_is_refused(videos: Path, changed: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="--"):
        request(videos, **changed)


def test_videos_of_several_shapes_become_buckets(tmp_path: Path) -> None:
    folder = tmp_path / "videos"
    folder.mkdir()
    for name, height, width in (("high", 96, 48), ("square", 64, 64), ("wide", 48, 96), ("wider", 48, 128)):
        with VideoWriter(folder / f"{name}.mp4", fps=16.0) as writer:
            writer.write(np.full((12, height, width, 3), 90, dtype=np.uint8))
        (folder / f"{name}.txt").write_text("a red boat")
    said = run_prepare(request(folder, sizes="32x64,64x32,32x32"))
    assert "4 clips (1 of 64x32, 1 of 32x32, 2 of 32x64)" in said
    clips = ClipSet(tmp_path / "clips")
    assert clips.buckets == {(64, 32): [0], (32, 32): [1], (32, 64): [2, 3]}
    assert [tuple(clips[number].latents_FCYX.shape[-2:]) for number in range(4)] == [
        (8, 4),
        (4, 4),
        (4, 8),
        (4, 8),
    ]
    assert clips.latent_sizes == [(8, 4), (4, 4), (4, 8)]
    with pytest.raises(ConfigError, match="clips of one size are needed and these are 64x32, 32x32, 32x64"):
        _ = clips.latent_size


def test_what_was_left_out_of_a_video_is_listed_with_its_time(videos: Path) -> None:
    """The first second of a is bright enough in its second half alone."""
    clips = prepared(videos, clips=2, least_brightness=100)
    assert [clip.start_s for clip in clips.clips] == [0.5625] * 3
    skipped = (videos.parent / "clips" / SKIPPED).read_text()
    assert skipped.count(".mp4, 0.00 s: dark: ") == 3
    assert "3 clips, 3 videos and 3 clips left out" in run_prepare(
        request(videos, clips=2, least_brightness=100)
    )


def test_nothing_is_taken_of_a_video_that_breaks_off(videos: Path) -> None:
    """Its first clip is whole; the file ends in the middle of its second."""
    with VideoWriter(videos / "broken.mp4", fps=16.0) as writer:
        writer.write(np.random.default_rng(0).integers(0, 255, (40, 48, 64, 3), dtype=np.uint8))
    (videos / "broken.txt").write_text("a red boat")
    whole = (videos / "broken.mp4").read_bytes()
    at = whole.rindex(b"mdat")
    (videos / "broken.mp4").write_bytes(whole[: at + 4 + (len(whole) - at) // 2])
    clips = prepared(videos, clips=9)
    assert "broken" not in {Path(clip.video).stem for clip in clips.clips}
    assert re.search(
        r"broken.mp4: .* only the first \d\d frames can be read",
        (videos.parent / "clips" / SKIPPED).read_text(),
    )


def test_a_video_that_was_mended_and_a_caption_that_was_changed_are_read_again(videos: Path) -> None:
    assert len(prepared(videos)) == 3
    shutil.copy(videos / "a.mp4", videos / "damaged.mp4")
    os.utime(videos / "damaged.mp4", (time.time() + 10,) * 2)
    assert len(prepared(videos)) == 4
    (videos / "b.txt").write_text("a green boat, b")
    assert "a green boat, b" in {clip.caption for clip in prepared(videos).clips}


def test_where_nothing_is_left_the_list_says_why(videos: Path) -> None:
    with pytest.raises(ConfigError, match=r"skipped\.txt in it says why"):
        prepared(videos, least_motion=2000.0)
    assert "a.mp4" in (videos.parent / "clips" / SKIPPED).read_text()


def test_a_model_that_comes_without_weights_asks_for_them(videos: Path) -> None:
    with pytest.raises(WeightsError, match=r"no weights for wan-tiny: give --weights"):
        prepared(videos, model="wan-tiny")


@pytest.mark.slow
def test_walks_that_were_written_are_prepared_with_what_was_held_and_looked(tmp_path: Path) -> None:
    walks = PreviewRequest(
        out=tmp_path / "videos", count=2, seconds=9 / 16, size=(32, 32), walk=True, videos=True, seed=5
    )
    preview(walks)
    takes = ActionsConfig(keys=("a", "d", "down", "left", "right", "s", "up", "w"), look=True)
    clips = prepared(tmp_path / "videos", actions=",".join((*takes.keys, "look")))
    tracks = random_tracks(2, frames=9, seed=5, fps=FPS)
    assert tracks.keys.any(), "somebody must do something"
    expected = walk_vectors(tracks, takes)
    for number in range(2):
        torch.testing.assert_close(clips[number].actions_FA.float(), expected[number], atol=1e-3, rtol=1e-3)
