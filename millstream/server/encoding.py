"""Frames to bytes for a screen: single pictures, or fragments of one endless H.264 film.

Knows frames and nothing of sessions, viewers or sending. Stills have no memory. A `Film` only counts: every fragment begins
with a keyframe, so the opening and any fragment play by themselves, and all of them in order are one fragmented MP4.
Shapes: T frames, H height, W width, 3 is RGB.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from fractions import Fraction
from typing import Literal, cast, get_args

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from millstream.server.video_writer import BT709, MAX_RATE_DENOMINATOR

Format = Literal["mp4", "webp", "jpeg", "raw"]
FORMATS = cast(tuple[Format, ...], get_args(Format))
Frames = NDArray[np.uint8]

JPEG_QUALITY = 88
WEBP_QUALITY = 80
H264 = {"preset": "ultrafast", "tune": "zerolatency", "crf": "21", "threads": "1", "forced-idr": "1", **BT709}
MP4 = {"movflags": "+frag_custom+empty_moov+default_base_moof+skip_trailer", "use_editlist": "0"}


class Stills:
    """One part a frame."""

    opening: bytes | None = None

    def __init__(self, format: Format) -> None:
        self.format = format

    def encode(self, frames_THW3: Frames) -> tuple[bytes, ...]:
        return tuple(still(frame, self.format) for frame in frames_THW3)


class Film:
    """One part a chunk: a fragment that starts where the last one ended."""

    def __init__(self, fps: float) -> None:
        self.opening: bytes | None = None
        """What a decoder needs before any fragment; known after the first one."""
        self._rate = max(Fraction(fps).limit_denominator(MAX_RATE_DENOMINATOR), Fraction(1, MAX_RATE_DENOMINATOR))
        self._num_frames = 0
        self._num_fragments = 0

    def encode(self, frames_THW3: Frames) -> tuple[bytes, ...]:
        self._num_fragments += 1
        whole = self._one_fragment_file(frames_THW3)
        parts = list(_boxes(whole))
        opening = b"".join(box for kind, box in parts if kind in (b"ftyp", b"moov"))
        assert self.opening in (None, opening), "fragments of one film must share their opening"
        self.opening = opening
        fragment = bytearray(b"".join(box for kind, box in parts if kind in (b"moof", b"mdat")))
        _set_start(fragment, round(self._num_frames * _timescale(opening) / self._rate))
        self._num_frames += len(frames_THW3)
        return (bytes(fragment),)

    def _one_fragment_file(self, frames_THW3: Frames) -> bytes:
        file = io.BytesIO()
        options = MP4 | {"fragment_index": str(self._num_fragments)}
        with av.open(file, "w", format="mp4", options=options) as container:
            stream = container.add_stream("libx264", rate=self._rate, options=H264)
            stream.height, stream.width = frames_THW3.shape[1:3]
            stream.pix_fmt, stream.time_base = "yuv420p", 1 / self._rate
            for number, frame_HW3 in enumerate(frames_THW3):
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame_HW3), format="rgb24")
                frame = frame.reformat(format="yuv420p", dst_colorspace="ITU709")
                frame.pts, frame.time_base = number, 1 / self._rate
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        return file.getvalue()


Encoder = Stills | Film


def encoder_for(format: Format, fps: float) -> Encoder:
    return Film(fps) if format == "mp4" else Stills(format)


def still(frame_HW3: Frames, format: Format) -> bytes:
    if format == "raw":
        return frame_HW3.tobytes()
    picture, file = Image.fromarray(frame_HW3), io.BytesIO()
    if format == "jpeg":
        picture.save(file, "JPEG", quality=JPEG_QUALITY)
    else:
        picture.save(file, "WEBP", quality=WEBP_QUALITY, method=0)
    return file.getvalue()


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The top level of an MP4."""
    at = 0
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        yield kind, data[at : at + size]
        at += size


def _timescale(opening: bytes) -> int:
    """Units a second of the only track, from its media header."""
    at = opening.index(b"mdhd")
    version = opening[at + 4]
    return int(struct.unpack_from(">I", opening, at + (24 if version else 16))[0])


def _set_start(fragment: bytearray, units: int) -> None:
    """Where in the film a fragment lies; a file of its own begins at 0."""
    at = fragment.index(b"tfdt")
    assert fragment[at + 4] == 1, "the start of a fragment should have 64 bits"
    struct.pack_into(">Q", fragment, at + 8, units)
