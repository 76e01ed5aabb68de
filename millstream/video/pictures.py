"""A picture file, or the end of a clip, to frames of exactly a stream's size: what it begins from.

Files come from strangers: a picture is asked for its size before it is decoded, a clip is decoded as far as
`MAX_CLIP_PIXELS`, and what cannot be read is refused in one line. Needs Pillow (extras client and serve),
which is imported when it is needed.
Shapes: T frames, H height, W width, 3 is RGB.
"""

from __future__ import annotations

import io
import struct
import tempfile
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from millstream.core.conditions import MAX_PICTURE_BYTES, Picture
from millstream.core.config import TEMPORAL_STRIDE
from millstream.core.errors import VideoError
from millstream.video.reader import VideoReader

if TYPE_CHECKING:
    from PIL.Image import Image

Fit = Literal["crop", "pad"]
Size = tuple[int, int]
"""Height and width."""

KINDS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MAX_PIXELS = 50_000_000
"""Most pixels of a picture; a phone's have 12 to 50 million."""
MAX_CLIP_PIXELS = 5_000_000_000
"""Most pixels of a clip, all frames together, before its end: 2,400 frames of 1080p."""
NOTICED = 0.1
"""Share of a picture that may be cut away without a word."""
BACKGROUND = (255, 255, 255)
"""Colour behind transparent parts."""
BORDER = (0, 0, 0)
EMPTY = "the picture's file is empty; choose another"
NOT_A_PICTURE = f"this is not a picture that can be read; use a {', '.join(KINDS[:-1])} or {KINDS[-1]} file"
DAMAGED = "the picture's file is damaged or cut short; get a whole copy of it"
SCALE_DOWN = "scale it down first"
HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"mif1", b"msf1", b"avif", b"avis")
"""Still pictures in a video's container."""
UNREADABLE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    struct.error,
)
"""Exceptions that Pillow's decoders raise for files that are damaged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedPicture:
    """Frames to begin from, and what became of the file on the way."""

    picture: Picture
    note: str = ""
    """Changes that a person may not expect, as one sentence; empty where there are none."""
    fps: float | None = None
    """Frames a second of a clip; None for a picture."""


def fit_picture(data: bytes, *, height: int, width: int, fit: Fit = "crop") -> FittedPicture:
    """Read a picture file and bring it to the stream's size: cut at the sides, or with black borders."""
    picture, notes = _decoded(data)
    notes += _cut_note(picture.size, (height, width), fit)
    with _refusing(DAMAGED):
        frame_HW3 = np.asarray(_over_background(_fitted(picture, (height, width), fit), notes))
    assert frame_HW3.shape == (height, width, 3), f"{frame_HW3.shape} is not {height}x{width}"
    packed = Picture.of(frame_HW3.tobytes(), height=height, width=width)
    return FittedPicture(picture=packed, note="; ".join(notes))


def fit_clip(
    source: Path | bytes,
    *,
    height: int,
    width: int,
    num_frames: int,
    fit: Fit = "crop",
    max_pixels: int = MAX_CLIP_PIXELS,
) -> FittedPicture:
    """Read the end of a clip: up to `num_frames` frames, as many as make whole latent frames. A clip of more
    than `max_pixels` in all is refused."""
    assert num_frames >= 1, f"a clip's end has 1 frame or more, got {num_frames}"
    if isinstance(source, bytes):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "clip"
            path.write_bytes(source)
            try:
                return fit_clip(
                    path, height=height, width=width, num_frames=num_frames, fit=fit, max_pixels=max_pixels
                )
            except VideoError as error:
                raise VideoError(str(error).replace(str(path), "the clip")) from None
    size = (height, width)
    kept = deque[np.ndarray](maxlen=num_frames)
    with VideoReader(source, size=size if fit == "crop" else None) as reader:
        source_height, source_width = reader.source_size
        longest = max(1, max_pixels // (source_height * source_width))
        for number, frame_HW3 in enumerate(reader.frames()):
            if number >= longest:
                raise VideoError(
                    f"{source} has more than {longest} frames of {source_height}x{source_width}; trim it to "
                    "its last seconds"
                )
            kept.append(frame_HW3 if fit == "crop" else _padded(frame_HW3, size))
        notes = _cut_note((source_width, source_height), size, fit)
    picture = _packed(list(kept), height, width)
    if reader.num_frames > picture.num_frames:
        notes.append(f"of the clip's {reader.num_frames} frames the last {picture.num_frames} are taken")
    return FittedPicture(picture=picture, note="; ".join(notes), fps=reader.fps)


def fit_file(
    data: bytes,
    *,
    height: int,
    width: int,
    num_frames: int,
    fit: Fit = "crop",
    max_pixels: int = MAX_CLIP_PIXELS,
) -> FittedPicture:
    """Read a file that may be a picture or a clip; `max_pixels` is as in `fit_clip`."""
    if _is_clip(data):
        return fit_clip(
            data, height=height, width=width, num_frames=num_frames, fit=fit, max_pixels=max_pixels
        )
    return fit_picture(data, height=height, width=width, fit=fit)


def whole_frames(num_frames: int) -> int:
    """Return how many of so many frames make whole latent frames: the first holds one, later ones four."""
    assert num_frames >= 1, "a clip has a frame"
    return num_frames - (num_frames - 1) % TEMPORAL_STRIDE


def _packed(frames: Sequence[np.ndarray], height: int, width: int) -> Picture:
    """The newest frames, as many as make whole latent frames and may wait in a session."""
    count = whole_frames(len(frames))
    while True:
        pixels = b"".join(frame.tobytes() for frame in frames[-count:])
        picture = Picture.of(pixels, height=height, width=width, num_frames=count)
        if len(picture.rgb) <= MAX_PICTURE_BYTES or count == 1:
            return picture
        count = whole_frames(max(1, min(count - 1, count * MAX_PICTURE_BYTES // len(picture.rgb))))


def _decoded(data: bytes) -> tuple[Image, list[str]]:
    """The whole picture, upright, in a mode that can be scaled, and what to say of it."""
    if not data:
        raise VideoError(EMPTY)
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise VideoError("pictures are read by Pillow: install millstream[client]") from None
    notes = list[str]()
    with _refusing(DAMAGED):
        try:
            picture: Image.Image = Image.open(io.BytesIO(data), formats=KINDS)
        except UnidentifiedImageError:
            raise VideoError(NOT_A_PICTURE) from None
        except Image.DecompressionBombError:
            raise VideoError(
                f"the picture is far above {MAX_PIXELS // 10**6} megapixels; {SCALE_DOWN}"
            ) from None
        if picture.width * picture.height > MAX_PIXELS:
            raise VideoError(
                f"the picture has {picture.width}x{picture.height} pixels, more than "
                f"{MAX_PIXELS // 10**6} megapixels; {SCALE_DOWN}"
            )
        if picture.format != "MPO" and getattr(picture, "is_animated", False):  # MPO: a photo and its preview
            notes.append("it has several frames; the first is taken")
        picture.load()
        upright = ImageOps.exif_transpose(picture)
        if upright.size != picture.size or _is_turned(picture):
            notes.append("it is turned upright, as its EXIF data says")
        return _scalable(upright), notes


def _is_turned(picture: Image) -> bool:
    return picture.getexif().get(0x0112, 1) in range(2, 9)


def _scalable(picture: Image) -> Image:
    """The picture in 8 bits a channel: RGB, RGBA or CMYK."""
    from PIL import Image

    if picture.mode.startswith(("I", "F")):
        values = np.asarray(picture)
        if picture.mode == "F":
            top = 1.0 if np.nanmax(values, initial=0.0) <= 1.0 else 255.0
            values = np.nan_to_num(values, posinf=top, neginf=0.0).clip(0, top) * (255.0 / top)
        elif picture.mode != "I" or values.max() > 255:
            values = values.clip(0, 65535) >> 8
        return Image.fromarray(values.clip(0, 255).astype(np.uint8)).convert("RGB")
    if picture.mode == "CMYK":
        return picture.convert("RGB")
    return picture.convert("RGBA" if picture.has_transparency_data else "RGB")


def _over_background(picture: Image, notes: list[str]) -> Image:
    """Lay transparent parts over the background."""
    from PIL import Image

    if picture.mode != "RGBA":
        return picture
    lowest, _ = picture.getchannel("A").getextrema()
    if lowest == 255:
        return picture.convert("RGB")
    notes.append("its transparent parts are shown over white")
    under = Image.new("RGBA", picture.size, (*BACKGROUND, 255))
    return Image.alpha_composite(under, picture).convert("RGB")


def _fitted(picture: Image, size: Size, fit: Fit) -> Image:
    """Cut or framed to the stream's shape, then scaled: never the other way round, which takes memory."""
    from PIL import Image, ImageOps

    height, width = size
    if fit == "crop":
        return ImageOps.fit(picture, (width, height), Image.Resampling.LANCZOS)
    scale = min(width / picture.width, height / picture.height)
    inner = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    framed = Image.new(picture.mode, (width, height), (*BORDER, 255)[: len(picture.getbands())])
    framed.paste(
        picture.resize(inner, Image.Resampling.LANCZOS), ((width - inner[0]) // 2, (height - inner[1]) // 2)
    )
    return framed


def _padded(frame_HW3: np.ndarray, size: Size) -> np.ndarray:
    from PIL import Image

    return np.asarray(_fitted(Image.fromarray(frame_HW3), size, "pad"))


def _cut_note(source: Size, size: Size, fit: Fit) -> list[str]:
    """Say how much a crop leaves outside; `source` is width and height, as Pillow says it."""
    if fit == "pad":
        return []
    width, height = source
    ratio = (width / height) / (size[1] / size[0])
    lost = 1 - min(ratio, 1 / ratio)
    if lost < NOTICED:
        return []
    side = "width" if ratio > 1 else "height"
    return [f"{round(100 * lost)}% of its {side} is cut away; with borders (fit pad) all of it is shown"]


def _is_clip(data: bytes) -> bool:
    """True for the containers of videos, by how they begin."""
    starts = (b"\x1a\x45\xdf\xa3", b"FLV", b"OggS", b"\x47\x40", b"\x00\x00\x01\xba")
    is_mp4 = data[4:8] in (b"ftyp", b"moov", b"mdat", b"free", b"wide") and data[8:12] not in HEIF_BRANDS
    return is_mp4 or data.startswith(starts) or (data[:4] == b"RIFF" and data[8:12] == b"AVI ")


@contextmanager
def _refusing(words: str) -> Iterator[None]:
    """Turn what a decoder says of a damaged file into one line; its warnings are not for people."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except UNREADABLE:
        raise VideoError(words) from None
