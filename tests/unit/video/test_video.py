"""Video files: what is written comes back, at the size and turn asked for, without growing in memory."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from millstream.video.encoders import FileFormat, available_codecs, find_encoder
from millstream.video.reader import VideoReader
from millstream.video.writer import VideoWriter
from tests.unit.video_files import (
    ALL_KINDS,
    FILE_KINDS,
    FPS,
    HEIGHT,
    WIDTH,
    after_other_bytes,
    contents,
    mean_colours,
    moving_frames,
    noise_frames,
    read_all,
    soft_frames,
    write_video,
)

pytestmark = pytest.mark.slow

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


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_same_frames_make_the_same_file(tmp_path: Path, kind: str) -> None:
    first, second = (
        write_video(tmp_path / f"{name}{kind}", moving_frames(20)) for name in ("first", "second")
    )
    assert contents(first) == contents(second)


@pytest.mark.parametrize("kind", [".mp4", ".webm"])
def test_what_lay_in_memory_before_is_not_in_the_file(kind: str) -> None:
    """libx264's macroblock tree reads what it never wrote: of forty encodings of these frames, some came out
    different."""
    frames = soft_frames(60, height=32, width=48)
    rng = np.random.default_rng(0)
    encoder = find_encoder(kind, frames.shape[1:3])
    assert encoder is not None
    pictures = (av.VideoFrame.from_ndarray(frame, format="rgb24") for frame in frames)
    planes = [picture.reformat(format=encoder.pixel_format).to_ndarray() for picture in pictures]
    tries = [encode(encoder, after_other_bytes(planes, rng), frames.shape[1:3]) for _ in range(40)]
    assert len({b"".join(map(bytes, packets)) for packets in tries}) == 1


def encode(encoder: FileFormat, planes: Iterable[np.ndarray], size: tuple[int, int]) -> list[av.Packet]:
    """Return all packets. Libraries allocate most of their memory when the first picture comes."""
    context = av.CodecContext.create(encoder.name, "w")
    context.height, context.width = size
    context.pix_fmt = encoder.pixel_format
    context.time_base = Fraction(1, 24)
    context.options = dict(encoder.options)
    packets = list[av.Packet]()
    for number, plane in enumerate(planes):
        picture = av.VideoFrame.from_ndarray(plane, format=encoder.pixel_format)
        picture.pts = number
        packets += context.encode(picture)
    return [*packets, *context.encode(None)]


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


def test_a_name_with_a_colon_or_in_capitals_is_a_file_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_video(Path("12:30.MP4"), moving_frames(3))
    assert len(read_all(path)) == 3


def test_doctor_learns_what_can_be_written() -> None:
    found = {label.replace(" by the GPU", ""): there for label, there in available_codecs().items()}
    assert found == {"mp4 (h264)": True, "webm (vp9)": True, "gif": True, "png": True}


# Sizes and turns


@pytest.mark.parametrize("size", [(64, 64), (32, 96), (128, 192), (64, 96), (48, 16)])
def test_frames_are_cut_around_the_centre_and_scaled_to_the_size_asked_for(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    frames = np.zeros((2, HEIGHT, WIDTH, 3), np.uint8)
    frames[:, :, WIDTH // 2 :] = 200  # the edge in the middle stays in the middle
    with VideoReader(write_video(tmp_path / "clip.mp4", frames), size=size) as reader:
        assert (reader.size, reader.source_size) == (size, (HEIGHT, WIDTH))
        back = np.stack(list(reader.frames()))
    assert back.shape == (2, *size, 3)
    left = back[:, :, : size[1] // 2 - 2]
    right = back[:, :, size[1] // 2 + 2 :]
    assert left.mean() < 10
    assert right.mean() > 190


def test_a_video_stored_on_its_side_is_turned_upright(tmp_path: Path) -> None:
    path = tmp_path / "phone.mp4"
    frame = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    frame[:, WIDTH // 2 :] = 200
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=16)
        stream.height = HEIGHT
        stream.width = WIDTH
        stream.pix_fmt = "yuv420p"
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
    modules = "millstream.video.reader, millstream.video.writer"
    code = f"import sys, {modules}; print({{'torch', 'fastapi', 'starlette', 'PIL'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
