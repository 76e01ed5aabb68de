"""Frames to bytes for a screen: single pictures, or fragments of one endless H.264 film.

Knows frames and nothing of sessions, viewers or sending. Stills have no memory. A `FragmentedMP4` only
counts: every fragment begins with a keyframe, so the opening and any fragment play by themselves, and all of
them in order are one fragmented MP4.
Shapes: T frames, H height, W width, 3 is RGB.
"""

from __future__ import annotations

import io
import itertools
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import BinaryIO

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from millstream.core.client_messages import Format
from millstream.video.encoders import BT709, FILM_HZ
from millstream.video.writer import MAX_RATE_DENOMINATOR

Frames = NDArray[np.uint8]

NOMINAL_FPS = 16
"""Told to the encoder, which plans bits by it; what is shown when is said frame by frame."""
STILL_OPTIONS: Mapping[Format, dict[str, int]] = {
    "jpeg": {"quality": 88},
    "webp": {"quality": 80, "method": 0},
}
"""As Pillow takes them."""
H264 = {"preset": "ultrafast", "tune": "zerolatency", "crf": "21", "threads": "1", "forced-idr": "1", **BT709}
MP4 = {"movflags": "+frag_custom+empty_moov+default_base_moof+skip_trailer", "use_editlist": "0"}


class ImageEncoder:
    """One part a frame."""

    opening: bytes | None = None

    def __init__(self, format: Format) -> None:
        self.format = format

    def encode(self, frames_THW3: Frames, *, fps: float) -> tuple[bytes, ...]:
        if self.format == "raw":
            return tuple(frame.tobytes() for frame in frames_THW3)
        try:
            with _scratch() as file:
                return self._written(frames_THW3, file)
        except OSError:  # files may not grow here, not even those in memory
            return self._written(frames_THW3, io.BytesIO())

    def _written(self, frames_THW3: Frames, file: BinaryIO) -> tuple[bytes, ...]:
        ends = [0]
        for picture in _pictures(frames_THW3):
            picture.save(file, self.format, **STILL_OPTIONS[self.format])
            ends.append(file.tell())
        file.seek(0)
        return tuple(file.read(end - start) for start, end in itertools.pairwise(ends))


class FragmentedMP4:
    """One part a chunk: a fragment that starts where the last one ended, at a frame rate of its own."""

    def __init__(self) -> None:
        self.opening: bytes | None = None
        """Bytes that a decoder needs before any fragment; known after the first one."""
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
            stream.pix_fmt = "yuv420p"
            stream.codec_context.time_base = Fraction(1, FILM_HZ)
            packets = list[av.Packet]()
            for start, frame_HW3 in zip(starts, frames_THW3, strict=False):
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame_HW3), format="rgb24")
                frame = frame.reformat(format="yuv420p", dst_colorspace="ITU709")
                frame.pts = start
                frame.time_base = Fraction(1, FILM_HZ)
                packets += stream.encode(frame)
            for packet, (start, end) in zip(
                [*packets, *stream.encode(None)], itertools.pairwise(starts), strict=True
            ):
                packet.duration = end - start
                container.mux(packet)
        return file.getvalue()


Encoder = ImageEncoder | FragmentedMP4


def encoder_for(format: Format) -> Encoder:
    return FragmentedMP4() if format == "mp4" else ImageEncoder(format)


def _scratch() -> BinaryIO:
    """A file in memory, where the system has such. Pillow writes a JPEG to a descriptor without holding
    Python's lock; to anything else it holds it, a picture at a time, and the engine's thread waits for that
    between any two operations."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("millstream-stills"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _pictures(frames_THW3: Frames) -> Iterator[Image.Image]:
    """Each frame as Pillow holds it, four bytes a pixel: spread out here, because NumPy lets other threads
    run meanwhile and Pillow does not. The fourth byte is not looked at: it is whatever comes next."""
    count, height, width, _ = frames_THW3.shape
    num_pixels = count * height * width
    frames_THW3 = np.ascontiguousarray(frames_THW3)
    spread = np.empty(num_pixels, np.uint32)
    spread[:-1] = np.ndarray((num_pixels - 1,), np.uint32, frames_THW3, strides=(3,))
    spread[-1:].view(np.uint8)[:3] = frames_THW3[-1, -1, -1]
    for pixels in spread.reshape(count, -1):
        yield Image.frombuffer("RGBX", (width, height), pixels, "raw", "RGBX", 0, 1)


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
