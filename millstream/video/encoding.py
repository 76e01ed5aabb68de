"""Frames to bytes for a screen: single pictures, or fragments of one endless H.264 film.

Knows frames and nothing of sessions, viewers or sending. Stills have no memory. A `Film` only counts: every fragment begins
with a keyframe, so the opening and any fragment play by themselves, and all of them in order are one fragmented MP4.
Shapes: T frames, H height, W width, 3 is RGB.
"""

from __future__ import annotations

import io
import itertools
import struct
from collections.abc import Iterator
from fractions import Fraction

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from millstream.core.messages import Format
from millstream.video.encoders import BT709, FILM_HZ
from millstream.video.writer import MAX_RATE_DENOMINATOR

Frames = NDArray[np.uint8]

NOMINAL_FPS = 16
"""Told to the encoder, which plans bits by it; what is shown when is said frame by frame."""
JPEG_QUALITY = 88
WEBP_QUALITY = 80
H264 = {"preset": "ultrafast", "tune": "zerolatency", "crf": "21", "threads": "1", "forced-idr": "1", **BT709}
MP4 = {"movflags": "+frag_custom+empty_moov+default_base_moof+skip_trailer", "use_editlist": "0"}


class Stills:
    """One part a frame."""

    opening: bytes | None = None

    def __init__(self, format: Format) -> None:
        self.format = format

    def encode(self, frames_THW3: Frames, *, fps: float) -> tuple[bytes, ...]:
        return tuple(still(frame, self.format) for frame in frames_THW3)


class Film:
    """One part a chunk: a fragment that starts where the last one ended, at a frame rate of its own."""

    def __init__(self) -> None:
        self.opening: bytes | None = None
        """What a decoder needs before any fragment; known after the first one."""
        self._at = Fraction(0)
        """Where the next fragment begins, in units of the film's clock."""
        self._num_fragments = 0

    def encode(self, frames_THW3: Frames, *, fps: float) -> tuple[bytes, ...]:
        assert len(frames_THW3), "a fragment has pictures"
        self._num_fragments += 1
        frame_units = FILM_HZ / Fraction(fps).limit_denominator(MAX_RATE_DENOMINATOR)
        parts = list(_boxes(self._one_fragment_file(frames_THW3, frame_units)))
        opening = b"".join(box for kind, box in parts if kind in (b"ftyp", b"moov"))
        assert self.opening in (None, opening), "fragments of one film must share their opening"
        self.opening = opening
        fragment = bytearray(b"".join(box for kind, box in parts if kind in (b"moof", b"mdat")))
        _set_start(fragment, round(self._at))
        self._at += len(frames_THW3) * frame_units
        return (bytes(fragment),)

    def _one_fragment_file(self, frames_THW3: Frames, frame_units: Fraction) -> bytes:
        file = io.BytesIO()
        options = MP4 | {"fragment_index": str(self._num_fragments)}
        starts = [round(number * frame_units) for number in range(len(frames_THW3) + 1)]
        with av.open(file, "w", format="mp4", options=options) as container:
            stream = container.add_stream("libx264", rate=NOMINAL_FPS, options=H264)
            stream.height, stream.width = frames_THW3.shape[1:3]
            stream.pix_fmt, stream.codec_context.time_base = "yuv420p", Fraction(1, FILM_HZ)
            packets = list[av.Packet]()
            for start, frame_HW3 in zip(starts, frames_THW3, strict=False):
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame_HW3), format="rgb24")
                frame = frame.reformat(format="yuv420p", dst_colorspace="ITU709")
                frame.pts, frame.time_base = start, Fraction(1, FILM_HZ)
                packets += stream.encode(frame)
            for packet, (start, end) in zip([*packets, *stream.encode(None)], itertools.pairwise(starts), strict=True):
                packet.duration = end - start
                container.mux(packet)
        return file.getvalue()


Encoder = Stills | Film


def encoder_for(format: Format) -> Encoder:
    return Film() if format == "mp4" else Stills(format)


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
        assert size >= 8, f"a box of {size} bytes at {at}"
        yield kind, data[at : at + size]
        at += size


def _set_start(fragment: bytearray, units: int) -> None:
    """Where in the film a fragment lies; a file of its own begins at 0."""
    at = fragment.index(b"tfdt")
    assert fragment[at + 4] == 1, "the start of a fragment should have 64 bits"
    struct.pack_into(">Q", fragment, at + 8, units)
