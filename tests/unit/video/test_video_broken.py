"""A file that cannot be read is refused in one line, after its last good frame if it has any."""

from __future__ import annotations

import os
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from millstream.core.errors import VideoError
from millstream.video import reader
from millstream.video.live_source import SourceAddress
from millstream.video.reader import VideoReader
from millstream.video.receivers import free_port
from tests.unit.video_files import (
    FILE_KINDS,
    HEIGHT,
    WIDTH,
    mean_colours,
    moving_frames,
    noise_frames,
    one_line,
    read_all,
    write_video,
)

pytestmark = pytest.mark.slow


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


def test_an_address_is_called_one() -> None:
    with pytest.raises(VideoError, match="is an address, and this takes a file"):
        VideoReader("https://example.org/sea.mp4")


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
def test_a_file_cut_in_the_middle_is_refused_after_its_last_good_frame(
    tmp_path: Path, kind: str, part: float
) -> None:
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
    codec.height, codec.width, codec.pix_fmt, codec.time_base = (
        *frame_HW3.shape[:2],
        pixel_format,
        Fraction(1, 1),
    )
    frame = av.VideoFrame.from_ndarray(frame_HW3, format="rgb24").reformat(format=pixel_format)
    return b"".join(bytes(packet) for packet in [*codec.encode(frame), *codec.encode(None)])


def test_a_title_that_is_not_utf_8_does_not_matter(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", moving_frames(3))
    data = path.read_bytes()
    assert b"Lavf" in data
    path.write_bytes(data.replace(b"Lavf", b"L\xe9vf"))
    assert len(read_all(path)) == 3


PYAV_19_OPENS_WITH = {
    "format",
    "options",
    "container_options",
    "buffer_size",
    "timeout",
    "io_open",
    "hwaccel",
}


def test_files_and_addresses_are_opened_with_no_argument_that_a_newer_pyav_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyAV 19 took `metadata_errors` out; what stands for it is asked of the PyAV that is there."""
    path = write_video(tmp_path / "clip.mp4", moving_frames(3))
    open_it = av.open

    def open_as_pyav_19(file: object, mode: str = "r", **arguments: object) -> object:
        assert set(arguments) <= PYAV_19_OPENS_WITH
        return open_it(file, mode, **arguments)  # type: ignore[call-overload]

    monkeypatch.setattr(reader, "LENIENT", {}, raising=False)
    monkeypatch.setattr(av, "open", open_as_pyav_19)
    assert len(read_all(path)) == 3
    for place in (str(path), f"tcp://127.0.0.1:{free_port()}"):
        with suppress(OSError), SourceAddress(name="a", place=place).open() as container:
            assert container.streams.video


def test_a_video_without_a_decoder_is_refused(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", moving_frames(3))
    path.write_bytes(path.read_bytes().replace(b"avc1", b"zzzz"))
    with pytest.raises(VideoError) as error:
        VideoReader(path)
    one_line(error, path, "decoder", "H.264")
