"""Pictures survive the way to a screen, and any fragment of a film plays by itself."""

from __future__ import annotations

import io
import threading

import av
import numpy as np
import pytest
from PIL import Image

from millstream.core.client_messages import FORMATS
from millstream.video.encoding import STILL_OPTIONS, FragmentedMP4, encoder_for


def frames(count: int, height: int = 64, width: int = 96, shift: int = 0) -> np.ndarray:
    rows, columns = np.mgrid[:height, :width]
    moving = [
        np.stack([rows * 3, columns * 2, (rows + columns + 4 * (t + shift))], -1) % 256 for t in range(count)
    ]
    return np.stack(moving).astype(np.uint8)


def decoded(data: bytes) -> list[av.VideoFrame]:
    with av.open(io.BytesIO(data)) as container:
        return list(container.decode(video=0))


@pytest.mark.parametrize("format", ["jpeg", "webp"])
def test_a_still_looks_like_its_frame(format: str) -> None:
    smooth = np.broadcast_to(np.linspace(0, 255, 96, dtype=np.uint8)[None, :, None], (64, 96, 3)).copy()
    (data,) = encoder_for(format).encode(smooth[None], fps=16.0)
    seen = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    assert np.abs(seen - smooth).mean() < 4


@pytest.mark.parametrize("format", ["jpeg", "webp"])
@pytest.mark.parametrize("size", [(64, 96), (1, 1), (5, 3)])
def test_stills_have_the_bytes_that_pillow_gives_each_frame_alone(format: str, size: tuple[int, int]) -> None:
    pictures = frames(3, *size)

    def alone(frame: np.ndarray) -> bytes:
        file = io.BytesIO()
        Image.fromarray(frame).save(file, format, **STILL_OPTIONS[format])
        return file.getvalue()

    assert encoder_for(format).encode(pictures, fps=16.0) == tuple(map(alone, pictures))
    assert encoder_for(format).encode(pictures[:, :, ::-1], fps=16.0) == tuple(
        map(alone, pictures[:, :, ::-1])
    )


def test_other_threads_run_while_a_still_is_compressed() -> None:
    """Through Pillow's other way, which holds Python's lock, another thread has about ten turns, all before
    it."""
    pictures = frames(1, 1024, 1536)

    def turns_meanwhile() -> int:
        turns = 0
        over = threading.Event()
        thread = threading.Thread(target=lambda: (encoder_for("jpeg").encode(pictures, fps=16.0), over.set()))
        thread.start()
        while not over.wait(1e-4):
            turns += 1
        thread.join()
        return turns

    assert any(turns_meanwhile() > 20 for _ in range(10))


def test_raw_is_the_bytes_themselves() -> None:
    picture = frames(1)[0]
    (data,) = encoder_for("raw").encode(picture[None], fps=16.0)
    assert np.array_equal(np.frombuffer(data, np.uint8).reshape(picture.shape), picture)


@pytest.mark.parametrize("format", FORMATS)
def test_stills_are_one_part_a_frame_and_a_film_one_a_chunk(format: str) -> None:
    assert len(encoder_for(format).encode(frames(5), fps=16.0)) == (1 if format == "mp4" else 5)


@pytest.mark.parametrize("fps", [8.0, 16.0, 24000 / 1001, 7.5])
def test_fragments_in_order_are_one_film(fps: float) -> None:
    film = FragmentedMP4()
    parts = []
    for number, count in enumerate((9, 12, 12)):
        parts += film.encode(frames(count, shift=12 * number), fps=fps)
    seen = decoded(film.opening + b"".join(parts))
    assert len(seen) == 33
    times = [float(frame.pts * frame.time_base) for frame in seen]
    assert times == pytest.approx([number / fps for number in range(33)], abs=2e-3)
    assert [number for number, frame in enumerate(seen) if frame.key_frame] == [0, 9, 21]


def test_a_film_whose_rate_changes_plays_each_fragment_at_its_own_and_leaves_no_gap() -> None:
    film = FragmentedMP4()
    parts = []
    rates = (16.0, 9.5, 4.0)
    for number, fps in enumerate(rates):
        parts += film.encode(frames(4, shift=4 * number), fps=fps)
    seen = decoded(film.opening + b"".join(parts))
    times = list[float]()
    at = 0.0
    for fps in rates:
        times += [at + number / fps for number in range(4)]
        at += 4 / fps
    assert [float(frame.pts * frame.time_base) for frame in seen] == pytest.approx(times, abs=1e-4)
    with av.open(io.BytesIO(film.opening + b"".join(parts))) as container:
        lasts = [
            float(packet.duration * packet.time_base) for packet in container.demux(video=0) if packet.size
        ]
    assert lasts == pytest.approx([1 / fps for fps in rates for _ in range(4)], abs=1e-4)


def test_somebody_who_joins_late_can_decode_from_any_fragment() -> None:
    film = FragmentedMP4()
    parts = [
        film.encode(frames(count, shift=12 * number), fps=16.0)[0] for number, count in enumerate((9, 12, 12))
    ]
    seen = decoded(film.opening + parts[2])
    assert len(seen) == 12
    whole = decoded(film.opening + b"".join(parts))[21:]
    assert np.array_equal(seen[5].to_ndarray(format="rgb24"), whole[5].to_ndarray(format="rgb24"))


def test_a_film_shows_what_it_was_given() -> None:
    film = FragmentedMP4()
    given = np.full((4, 64, 64, 3), (200, 40, 90), np.uint8)
    (part,) = film.encode(given, fps=16.0)
    seen = decoded(film.opening + part)[2].reformat(format="rgb24", src_colorspace="ITU709").to_ndarray()
    assert np.abs(seen.astype(int) - given[2]).max() < 12
