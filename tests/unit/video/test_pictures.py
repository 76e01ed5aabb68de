"""A picture file becomes frames of the stream's size; one that cannot is refused in one line."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from millstream.core.errors import VideoError
from millstream.video.pictures import Fit, FittedPicture, fit_clip, fit_file, fit_picture, whole_frames
from tests.unit.video_files import moving_frames, one_line, write_video

HEIGHT = 32
WIDTH = 48


def saved(picture: Image.Image, kind: str = "PNG", **settings: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **settings)
    return file.getvalue()


def quarters(height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """Red at the upper left, green at the upper right, blue at the lower left, grey at the lower right."""
    made = np.full((height, width, 3), 128, np.uint8)
    made[: height // 2, : width // 2] = (250, 0, 0)
    made[: height // 2, width // 2 :] = (0, 250, 0)
    made[height // 2 :, : width // 2] = (0, 0, 250)
    return made


def fitted(data: bytes, fit: Fit = "crop") -> tuple[np.ndarray, str]:
    return unpacked(found := fit_picture(data, height=HEIGHT, width=WIDTH, fit=fit))[0], found.note


def unpacked(found: FittedPicture) -> np.ndarray:
    picture = found.picture
    shape = (picture.num_frames, picture.height, picture.width, 3)
    return np.frombuffer(picture.pixels(), np.uint8).reshape(shape)


def refused(data: bytes, *words: str) -> None:
    with pytest.raises(VideoError) as error:
        fit_picture(data, height=HEIGHT, width=WIDTH)
    one_line(error, *words)


def header_of(width: int, height: int) -> bytes:
    """A PNG that says how large it is, and holds nothing."""
    ihdr = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + ihdr + struct.pack(">I", zlib.crc32(ihdr))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    )


def test_a_picture_of_the_streams_size_keeps_every_pixel() -> None:
    picture, note = fitted(saved(Image.fromarray(quarters())))
    assert np.array_equal(picture, quarters())
    assert note == ""


def test_a_wide_picture_is_cut_at_its_sides_or_framed() -> None:
    wide = np.zeros((HEIGHT, 4 * WIDTH, 3), np.uint8)
    wide[:, 1 * WIDTH : 3 * WIDTH] = 200
    cut, note = fitted(saved(Image.fromarray(wide)))
    assert cut.min() == 200
    assert note == "75% of its width is cut away; with borders (fit pad) all of it is shown"
    framed, note = fitted(saved(Image.fromarray(wide)), "pad")
    assert framed[0].max() == framed[-1].max() == 0, "the borders are black"
    assert framed[HEIGHT // 2, WIDTH // 2].min() == 200
    assert note == ""


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"once upon a time\n" * 100, "use a PNG, JPEG"),
        (np.random.default_rng(1).bytes(20_000), "use a PNG, JPEG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "use a PNG, JPEG"),
        (header_of(50_000, 50_000), "50 megapixels"),
        (header_of(10_000, 6_000), "10000x6000"),
        (header_of(0, 4), "use a PNG, JPEG"),
        (header_of(64, 64), "cut short"),
    ],
)
def test_what_is_no_picture_is_refused(data: bytes, words: str) -> None:
    refused(data, words)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_a_picture_cut_short_is_refused(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (200, 300, 3), dtype=np.uint8)
    whole = saved(Image.fromarray(noise), kind)
    fitted(whole)
    for share in (0.9, 0.5, 0.05):
        refused(whole[: int(len(whole) * share)], "")


def test_a_very_wide_picture_takes_no_more_memory_than_it_has() -> None:
    line = np.tile(np.arange(50_000, dtype=np.uint16) % 256, (2, 1)).astype(np.uint8)
    cut, note = fitted(saved(Image.fromarray(line)))
    assert cut.shape == (HEIGHT, WIDTH, 3)
    assert note.startswith("100% of its width")
    framed, _ = fitted(saved(Image.fromarray(line)), "pad")
    assert (framed.max(axis=(1, 2)) > 0).sum() == 1, "one row of the picture is left"


def test_an_animated_picture_gives_its_first_frame() -> None:
    first, second = (Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in ("red", "blue"))
    for kind in ("GIF", "PNG", "WEBP"):
        settings: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {}
        animated = saved(first, kind, save_all=True, append_images=[second], duration=100, **settings)
        picture, note = fitted(animated)
        assert picture[0, 0, 0] > 200 > 50 > picture[0, 0, 2]
        assert note == "it has several frames; the first is taken"


def test_a_picture_that_lies_on_its_side_is_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    on_its_side = Image.fromarray(np.rot90(quarters()).copy())
    picture, note = fitted(saved(on_its_side, exif=exif))
    assert np.array_equal(picture, quarters())
    assert note == "it is turned upright, as its EXIF data says"


def test_what_is_transparent_is_shown_over_white() -> None:
    half = np.dstack([quarters(), np.full((HEIGHT, WIDTH), 255, np.uint8)])
    assert fitted(saved(Image.fromarray(half)))[1] == "", "nothing of it is transparent"
    half[:, WIDTH // 2 :, 3] = 0
    for kind, mode in (("PNG", "RGBA"), ("GIF", "RGBA"), ("PNG", "LA")):
        picture, note = fitted(saved(Image.fromarray(half).convert(mode), kind))
        assert picture[0, -1].min() == 255, f"{kind} {mode}"
        assert picture[0, 0].min() < 200
        assert note == "its transparent parts are shown over white"


def test_cmyk_sixteen_bits_and_floats_keep_their_tones() -> None:
    grey = np.tile(np.linspace(0, 255, WIDTH).astype(np.uint8), (HEIGHT, 1))
    as_seen = np.dstack([grey] * 3).astype(int)
    deep = saved(Image.fromarray(grey.astype(np.uint16) * 257))
    floats = saved(Image.fromarray(grey.astype(np.float32) / 255), "TIFF")
    integers = saved(Image.fromarray(grey.astype(np.int32)), "TIFF")
    inks = saved(Image.fromarray(np.dstack([grey] * 3)).convert("CMYK"), "TIFF")
    for data in (deep, floats, integers, inks):
        assert abs(fitted(data)[0].astype(int) - as_seen).max() <= 1


def test_the_end_of_a_clip_is_taken_in_whole_latent_frames(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", moving_frames(20, 64, 96))
    found = fit_clip(path, height=HEIGHT, width=WIDTH, num_frames=12)
    assert found.picture.num_frames == 9
    assert found.fps == 16
    assert "of the clip's 20 frames the last" in found.note
    brightness = unpacked(found).mean(axis=(1, 2, 3))
    assert (np.diff(brightness) > 0).all(), "in their order"
    assert abs(brightness[-1] - moving_frames(20)[-1].mean()) < 4, "its last one is the clip's"
    same = fit_file(path.read_bytes(), height=HEIGHT, width=WIDTH, num_frames=12)
    assert same == found
    framed = fit_clip(path, height=HEIGHT, width=2 * WIDTH, num_frames=1, fit="pad")
    assert unpacked(framed)[0, :, 0].max() == 0


def test_a_file_is_a_picture_or_a_clip_by_what_is_in_it() -> None:
    still = fit_file(saved(Image.fromarray(quarters())), height=HEIGHT, width=WIDTH, num_frames=9)
    assert still.picture.num_frames == 1
    with pytest.raises(VideoError) as error:
        fit_file(b"\0\0\0\x20ftypisom" + bytes(100), height=HEIGHT, width=WIDTH, num_frames=9)
    one_line(error, "the clip")
    with pytest.raises(VideoError) as error:
        fit_file(b"\0\0\0\x20ftypheic" + bytes(100), height=HEIGHT, width=WIDTH, num_frames=9)
    one_line(error, "use a PNG, JPEG")


def test_a_clip_that_is_too_long_to_decode_is_refused(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", moving_frames(20, 64, 96))
    with pytest.raises(VideoError) as error:
        fit_clip(path, height=HEIGHT, width=WIDTH, num_frames=12, max_pixels=10 * 64 * 96)
    one_line(error, "more than 10 frames of 64x96", "trim it")


def test_whole_latent_frames_have_one_and_then_four() -> None:
    assert [whole_frames(count) for count in range(1, 11)] == [1, 1, 1, 1, 5, 5, 5, 5, 9, 9]
