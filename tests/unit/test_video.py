"""Video files: what is written comes back, appears whole or not at all, and what is broken is refused in one line."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from millstream.core.errors import VideoError
from millstream.server import video_writer
from millstream.server.video_reader import VideoReader
from millstream.server.video_writer import VideoWriter, available_codecs

HEIGHT, WIDTH, FPS = 64, 96, 16.0
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


# Writing and reading back


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_video_comes_back_with_its_frames_size_rate_and_colours(tmp_path: Path, kind: str) -> None:
    frames = moving_frames(20)
    path = write_video(tmp_path / f"clip{kind}", frames)
    with VideoReader(path) as reader:
        assert reader.fps == pytest.approx(FPS, rel=0.02)
        assert reader.size == reader.source_size == (HEIGHT, WIDTH)
        back = np.stack(list(reader.frames()))
    assert back.shape == frames.shape
    assert back.dtype == np.uint8
    np.testing.assert_allclose(mean_colours(back), mean_colours(frames), atol=5)


def test_a_folder_of_pngs_holds_every_frame_exactly(tmp_path: Path) -> None:
    frames = noise_frames(3)
    folder = write_video(tmp_path / "frames", frames)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["frame_00000.png", "frame_00001.png", "frame_00002.png"]
    for name, frame in zip(names, frames, strict=True):
        np.testing.assert_array_equal(read_all(folder / name), frame[None])


def test_a_trailing_slash_makes_a_folder_whatever_the_suffix(tmp_path: Path) -> None:
    with VideoWriter(f"{tmp_path}/run.5/", fps=FPS) as writer:
        writer.write(moving_frames(1))
    assert (tmp_path / "run.5" / "frame_00000.png").is_file()


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_frames_may_come_in_many_writes_and_one_frame_is_enough(tmp_path: Path, kind: str) -> None:
    with VideoWriter(tmp_path / f"many{kind}", fps=FPS) as writer:
        for frame in moving_frames(5):
            writer.write(frame[None])
        writer.write(moving_frames(0))
    write_video(tmp_path / f"one{kind}", moving_frames(1))
    if kind:
        assert len(read_all(tmp_path / f"many{kind}")) == 5
        assert len(read_all(tmp_path / f"one{kind}")) == 1
    else:
        assert len(list((tmp_path / "many").iterdir())) == 5
        assert len(list((tmp_path / "one").iterdir())) == 1


@pytest.mark.parametrize("kind", [".mp4", ".webm"])
def test_a_saturated_colour_survives_and_the_file_names_its_matrix(tmp_path: Path, kind: str) -> None:
    frames = np.empty((4, HEIGHT, WIDTH, 3), np.uint8)
    frames[...] = (220, 30, 60)
    path = write_video(tmp_path / f"red{kind}", frames)
    np.testing.assert_allclose(mean_colours(read_all(path)), mean_colours(frames), atol=4)
    with av.open(str(path)) as container:
        assert next(container.decode(video=0)).colorspace == 1  # BT.709


@pytest.mark.parametrize("fps", [8.0, 23.976, 24.0, 30.0])
def test_an_mp4_keeps_its_frame_rate(tmp_path: Path, fps: float) -> None:
    with VideoReader(write_video(tmp_path / "clip.mp4", moving_frames(12), fps)) as reader:
        assert reader.fps == pytest.approx(fps, abs=0.01)


def test_an_mp4_plays_in_browsers_before_it_is_all_there(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", moving_frames(20))
    data = path.read_bytes()
    assert 0 < data.index(b"moov") < data.index(b"mdat")
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")


def test_a_gif_loops_for_ever(tmp_path: Path) -> None:
    data = write_video(tmp_path / "clip.gif", moving_frames(3)).read_bytes()
    assert data[data.index(b"NETSCAPE2.0") + 11 :][:5] == b"\x03\x01\x00\x00\x00"


def test_a_name_with_a_colon_or_in_capitals_is_a_file_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_video(Path("12:30.MP4"), moving_frames(3))
    assert len(read_all(path)) == 3


def test_doctor_learns_what_can_be_written() -> None:
    found = {label.replace(" by the GPU", ""): there for label, there in available_codecs().items()}
    assert found == {"mp4 (h264)": True, "webm (vp9)": True, "gif": True, "png": True}


# Appearing whole or not at all


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
    with VideoWriter(target, fps=FPS, overwrite=True) as first, VideoWriter(target, fps=FPS, overwrite=True) as second:
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


# Refusing what cannot be written, before anything is done


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


def test_a_build_without_an_encoder_says_what_it_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_writer, "is_available", lambda encoder: encoder.name in ("libvpx", "png"))
    assert available_codecs() == {"mp4 (h264)": False, "webm (vp8)": True, "gif": False, "png": True}
    with pytest.raises(VideoError) as error:
        VideoWriter(tmp_path / "clip.mp4", fps=FPS)
    one_line(error, "clip.mp4", ".webm", "folder/")
    assert len(read_all(write_video(tmp_path / "clip.webm", moving_frames(4)))) == 4


def test_a_gpus_encoder_is_taken_where_it_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_writer, "is_available", lambda encoder: True)
    assert video_writer.find_encoder(".mp4").name == "h264_nvenc"
    assert video_writer.find_encoder(".mp4", (480, 128)).name == "libx264", "too small for a device"
    monkeypatch.undo()
    assert not video_writer._opens("h264_of_nobody", "yuv420p"), "what a build lacks is no error"
    assert video_writer.find_encoder(".mp4").name in ("h264_nvenc", "libx264"), "one that opens here"


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


# Running out of space

WRITE_UNDER_A_LIMIT = """
import resource, signal, sys
import numpy as np
from millstream.core.errors import VideoError
from millstream.server.video_reader import VideoReader
from millstream.server.video_writer import VideoWriter

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


@pytest.mark.parametrize("kind", [*FILE_KINDS, "/"])
def test_a_full_disk_is_one_clear_line_and_leaves_nothing(tmp_path: Path, kind: str) -> None:
    """The limit is put at many places of the file: its start, between frames, in the trailer."""
    whole = write_video(tmp_path / f"whole{kind}", noise_frames(6))
    size_bytes = max(path.stat().st_size for path in ([whole] if kind != "/" else whole.iterdir()))
    target = tmp_path / "out" / f"clip{kind}"
    well_below = [10, *(int(part * size_bytes) for part in (0.01, 0.1, 0.3, 0.5, 0.8, 0.95))]
    near = [size_bytes - 100, size_bytes - 20, size_bytes - 1]  # x264 does not always give the same number of bytes
    path_argument = f"{target}/" if kind == "/" else str(target)
    command = [sys.executable, "-c", WRITE_UNDER_A_LIMIT, path_argument, *map(str, [*well_below, *near])]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    refused = f"{target}: {os.strerror(errno.EFBIG)}; free some space or choose another --out"
    assert lines[: len(well_below)] == [refused] * len(well_below)
    assert set(lines[len(well_below) :]) <= {refused, "whole"}
    assert set(target.parent.iterdir()) <= {target}


# Refusing what cannot be read


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.mp4", b"", "is empty"),
        ("text.mp4", b"once upon a time\n" * 100, "not a video"),
        ("garbage.mp4", np.random.default_rng(1).bytes(20_000), "not a video"),
        ("playlist.mp4", b"ffconcat version 1.0\nfile other.mp4\n", "not a video"),
        ("subtitles.mp4", b"1\n00:00:01,000 --> 00:00:02,000\nhello\n", "not a video"),
    ],
)
def test_a_file_that_is_no_video_is_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    write_video(tmp_path / "other.mp4", moving_frames(2))  # what the playlist points at
    with pytest.raises(VideoError) as error:
        VideoReader(tmp_path / name)
    one_line(error, tmp_path / name, words, "use a whole mp4")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(VideoError) as error:
        VideoReader(tmp_path / "nothing.mp4")
    one_line(error, tmp_path / "nothing.mp4", "is not there")
    with pytest.raises(VideoError) as error:
        VideoReader(tmp_path)
    one_line(error, tmp_path, "is a folder")


def test_a_name_no_disk_allows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VideoError) as error:
        VideoReader(tmp_path / ("x" * 300))
    one_line(error, "x" * 300, "File name too long")


def test_a_file_deleted_while_it_is_read_is_no_crash(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.gif", moving_frames(3))
    with pytest.raises(VideoError, match="cut short"), VideoReader(path) as reader:  # noqa: PT012
        path.unlink()
        list(reader.frames())


def test_a_named_pipe_is_refused_rather_than_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    with pytest.raises(VideoError, match="not a plain file"):
        VideoReader(tmp_path / "pipe.mp4")


def test_sound_alone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sound.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=48_000)
        sound = av.AudioFrame.from_ndarray(np.zeros((2, 1024), np.float32), format="fltp", layout="stereo")
        sound.sample_rate = 48_000
        container.mux(stream.encode(sound))
        container.mux(stream.encode(None))
    with pytest.raises(VideoError) as error:
        VideoReader(path)
    one_line(error, path, "no video", "audio")


def readable_frames_of_a_broken(path: Path) -> tuple[int, str]:
    """How many frames came before the refusal, and what it said; fails when nothing was refused."""
    count = 0
    with pytest.raises(VideoError) as error, VideoReader(path) as reader:  # noqa: PT012
        for _ in reader.frames():
            count += 1
    one_line(error, path)
    return count, str(error.value)


@pytest.mark.parametrize("kind", FILE_KINDS)
@pytest.mark.parametrize("part", [0.5, 0.7, 0.9])
def test_a_file_cut_in_the_middle_is_refused_after_its_last_good_frame(tmp_path: Path, kind: str, part: float) -> None:
    data = write_video(tmp_path / f"whole{kind}", noise_frames(30)).read_bytes()
    cut = tmp_path / f"cut{kind}"
    cut.write_bytes(data[: int(part * len(data))])
    count, message = readable_frames_of_a_broken(cut)
    assert 0 < count < 30
    assert f"only the first {count} frames" in message


def test_an_mp4_cut_exactly_between_two_frames_is_refused_too(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", noise_frames(10))
    with av.open(str(path)) as container:
        ends = sorted(packet.pos + packet.size for packet in container.demux(video=0) if packet.size)
    path.write_bytes(path.read_bytes()[: ends[-2]])
    assert readable_frames_of_a_broken(path)[0] == 9


def test_an_mp4_that_lost_its_index_is_refused_at_once(tmp_path: Path) -> None:
    data = write_video(tmp_path / "clip.mp4", moving_frames(10)).read_bytes()
    (tmp_path / "cut.mp4").write_bytes(data[: data.index(b"moov") + 20])
    with pytest.raises(VideoError) as error:
        VideoReader(tmp_path / "cut.mp4")
    one_line(error, tmp_path / "cut.mp4", "missing")


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_hole_in_the_middle_is_refused(tmp_path: Path, kind: str) -> None:
    path = write_video(tmp_path / f"clip{kind}", noise_frames(30))
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + len(data) // 10] = bytes(len(data) // 10)
    path.write_bytes(data)
    assert readable_frames_of_a_broken(path)[0] < 30


@pytest.mark.parametrize("name", ["still.png", "still.jpg"])
def test_a_still_picture_is_a_video_of_one_frame_and_half_of_it_is_refused(tmp_path: Path, name: str) -> None:
    frame = moving_frames(1)[0]
    data = encode_still(frame, name)
    (tmp_path / name).write_bytes(data)
    back = read_all(tmp_path / name)
    assert back.shape == (1, HEIGHT, WIDTH, 3)
    np.testing.assert_allclose(mean_colours(back)[0], frame.mean(axis=(0, 1)), atol=4)
    (tmp_path / f"half-{name}").write_bytes(data[: len(data) * 3 // 4])
    readable_frames_of_a_broken(tmp_path / f"half-{name}")


def encode_still(frame_HW3: np.ndarray, name: str) -> bytes:
    codec_name, pixel_format = ("png", "rgb24") if name.endswith("png") else ("mjpeg", "yuvj420p")
    codec = av.CodecContext.create(codec_name, "w")
    codec.height, codec.width, codec.pix_fmt, codec.time_base = *frame_HW3.shape[:2], pixel_format, Fraction(1, 1)
    frame = av.VideoFrame.from_ndarray(frame_HW3, format="rgb24").reformat(format=pixel_format)
    return b"".join(bytes(packet) for packet in [*codec.encode(frame), *codec.encode(None)])


def test_a_title_that_is_not_utf_8_does_not_matter(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", moving_frames(3))
    data = path.read_bytes()
    assert b"Lavf" in data
    path.write_bytes(data.replace(b"Lavf", b"L\xe9vf"))
    assert len(read_all(path)) == 3


def test_a_video_without_a_decoder_is_refused(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", moving_frames(3))
    path.write_bytes(path.read_bytes().replace(b"avc1", b"zzzz"))
    with pytest.raises(VideoError) as error:
        VideoReader(path)
    one_line(error, path, "decoder", "H.264")


# Sizes and turns


@pytest.mark.parametrize("size", [(64, 64), (32, 96), (128, 192), (64, 96), (48, 16)])
def test_frames_are_cut_around_the_centre_and_scaled_to_the_size_asked_for(tmp_path: Path, size: tuple[int, int]) -> None:
    frames = np.zeros((2, HEIGHT, WIDTH, 3), np.uint8)
    frames[:, :, WIDTH // 2 :] = 200  # the edge in the middle stays in the middle
    with VideoReader(write_video(tmp_path / "clip.mp4", frames), size=size) as reader:
        assert (reader.size, reader.source_size) == (size, (HEIGHT, WIDTH))
        back = np.stack(list(reader.frames()))
    assert back.shape == (2, *size, 3)
    left, right = back[:, :, : size[1] // 2 - 2], back[:, :, size[1] // 2 + 2 :]
    assert left.mean() < 10
    assert right.mean() > 190


def test_a_video_stored_on_its_side_is_turned_upright(tmp_path: Path) -> None:
    path = tmp_path / "phone.mp4"
    frame = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    frame[:, WIDTH // 2 :] = 200
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=16)
        stream.height, stream.width, stream.pix_fmt = HEIGHT, WIDTH, "yuv420p"
        stream.set_display_rotation(90)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    with VideoReader(path) as reader:
        assert reader.size == (WIDTH, HEIGHT)
        (upright,) = reader.frames()
    assert upright[: WIDTH // 2 - 4].mean() > 190  # counter-clockwise: the right half goes to the top
    assert upright[WIDTH // 2 + 4 :].mean() < 10


def test_reading_stops_early_without_complaint_and_only_runs_once(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", moving_frames(10))
    with VideoReader(path) as reader:
        for _ in reader.frames():
            break
        with pytest.raises(AssertionError, match="open the file again"):
            next(reader.frames())


# Bounds


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("kind", [".mp4", ".gif"])
def test_memory_does_not_grow_with_the_length(tmp_path: Path, kind: str) -> None:
    chunk = moving_frames(12, 256, 256)
    path = tmp_path / f"long{kind}"
    with VideoWriter(path, fps=FPS) as writer:
        for _ in range(10):
            writer.write(chunk)
        before_mib = resident_mib()
        for _ in range(25):
            writer.write(chunk)
        grown_mib = resident_mib() - before_mib
    assert grown_mib < 25, f"300 frames of 0.2 MiB added {grown_mib:.0f} MiB"
    with VideoReader(path) as reader:
        assert sum(1 for _ in reader.frames()) == 420
    assert resident_mib() - before_mib < 50


def test_video_imports_without_torch_and_without_a_web_server() -> None:
    modules = "millstream.server.video_reader, millstream.server.video_writer"
    code = f"import sys, {modules}; print({{'torch', 'fastapi', 'starlette', 'PIL'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
