"""Formats and encoders: frames to the bytes of a video file, or to a folder of PNGs, at the place they are
given.

Knows nothing of names, of temporaries, or of what happens when a file is not finished. The same frames make
the same file.
Shapes: H height, W width, 3 is RGB.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import MappingProxyType

import av
import av.filter
import numpy as np

BT709 = {"colorspace": "bt709", "color_primaries": "bt709", "color_trc": "bt709", "color_range": "tv"}
"""Said in the file, and used for the conversion: without it players guess the matrix from the picture's
size."""


FILM_HZ = 90_000
"""Units a second of a film's clock whose frame rate may change."""
PROBED = 256
"""Pixels high and wide of what an encoder is tried with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileFormat:
    """One way to encode a kind of file."""

    label: str
    name: str
    """FFmpeg's name of the encoder."""
    container: str
    pixel_format: str
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    container_options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    smallest: int = 1
    """Smallest height and width in pixels that it is used for: devices refuse pictures below some size."""
    growing_options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Options of a container that can be played while it is written; none where it cannot."""


GROWING_MP4 = {"movflags": "+hybrid_fragmented", "frag_duration": "1000000", "flush_packets": "1"}
"""A fragment a second, written out at once; when it is finished, an ordinary mp4."""

ENCODERS: Mapping[str, tuple[FileFormat, ...]] = {
    ".mp4": (
        FileFormat(
            label="mp4 (h264 by the GPU)",
            name="h264_nvenc",
            container="mp4",
            pixel_format="yuv420p",
            options={"preset": "p5", "rc": "vbr", "cq": "19", "b": "0", **BT709},
            smallest=PROBED,
            container_options={"movflags": "+faststart"},
            growing_options=GROWING_MP4,
        ),
        FileFormat(
            label="mp4 (h264)",
            name="libx264",
            container="mp4",
            pixel_format="yuv420p",
            options={
                "crf": "20",
                "mbtree": "0",
                **BT709,
            },  # its macroblock tree reads memory that it never wrote
            container_options={"movflags": "+faststart"},
            growing_options=GROWING_MP4,
        ),
    ),
    ".webm": (
        FileFormat(
            label="webm (vp9)",
            name="libvpx-vp9",
            container="webm",
            pixel_format="yuv420p",
            options={"crf": "24", "b": "0", "deadline": "good", "cpu-used": "4", "row-mt": "1", **BT709},
            container_options={"fflags": "+bitexact"},  # no random name of the segment
        ),
        FileFormat(
            label="webm (vp8)",
            name="libvpx",
            container="webm",
            pixel_format="yuv420p",
            options={"crf": "10", "b": "8M", "deadline": "good", "cpu-used": "4", **BT709},
            container_options={"fflags": "+bitexact"},
        ),
    ),
    ".gif": (
        FileFormat(
            label="gif", name="gif", container="gif", pixel_format="pal8", container_options={"loop": "0"}
        ),  # 0: for ever
    ),
    "": (FileFormat(label="png", name="png", container="", pixel_format="rgb24"),),
}
"""By suffix; where there are several, the first one that opens here is taken."""


def find_encoder(kind: str, size: tuple[int, int] = (PROBED, PROBED)) -> FileFormat | None:
    """The first that can, for pictures of this size."""
    return next(
        (encoder for encoder in ENCODERS[kind] if min(size) >= encoder.smallest and is_available(encoder)),
        None,
    )


def is_available(encoder: FileFormat) -> bool:
    """Return whether this build of PyAV has the encoder and this machine the device that it may need: a build
    may have more than a machine."""
    return _opens(encoder.name, encoder.pixel_format)


@cache
def _opens(name: str, pixel_format: str) -> bool:
    try:
        context = av.CodecContext.create(name, "w")
        context.height = context.width = PROBED
        context.pix_fmt = pixel_format
        context.time_base = Fraction(1, 24)
        context.open()
    except (av.codec.codec.UnknownCodecError, av.error.FFmpegError, OSError):
        return False
    return True


def available_codecs() -> dict[str, bool]:
    """Return which kinds of file this build of PyAV can write: `{"mp4 (h264)": True, ...}`."""
    return {
        (find_encoder(kind) or choices[-1]).label: find_encoder(kind) is not None
        for kind, choices in ENCODERS.items()
    }


class FileEncoder:
    """One video file. Memory holds the encoder's look-ahead, a few dozen frames, however long the video."""

    def __init__(
        self, path: Path, kind: str, rate: Fraction, size: tuple[int, int], *, growing: bool = False
    ) -> None:
        encoder = find_encoder(kind, size)
        assert encoder is not None, f"no encoder for {kind}"
        options = encoder.growing_options if growing else encoder.container_options
        self.size = size
        self._path = path
        self._time_base = Fraction(1, FILM_HZ) if growing else 1 / rate
        self._frame_s = 1 / rate
        self._at_s = Fraction(0)
        self._palette = PaletteGraph(size, self._time_base) if encoder.pixel_format == "pal8" else None
        # An absolute path: FFmpeg takes what precedes a colon in a relative one for a protocol.
        self._container = av.open(
            str(path.absolute()), "w", format=encoder.container, container_options=dict(options)
        )
        in_order = (
            {"bf": "0"} if growing else {}
        )  # a frame that refers ahead would delay the whole film by its distance
        self._stream = self._container.add_stream(
            encoder.name, rate=rate, options=dict(encoder.options) | in_order
        )
        self._stream.height, self._stream.width = size
        self._stream.pix_fmt = encoder.pixel_format
        self._stream.codec_context.time_base = self._time_base

    def set_rate(self, rate: Fraction) -> None:
        """Frames from the next one on play at another rate. Only of a file that grows: it has a clock that is
        fine enough."""
        assert rate > 0, f"{self._path} at {rate} frames a second"
        self._frame_s = 1 / rate

    def add(self, frame_HW3: np.ndarray) -> None:
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame_HW3), format="rgb24")
        if self._palette is None:
            frame = frame.reformat(format=self._stream.pix_fmt, dst_colorspace="ITU709")
        frame.pts = round(self._at_s / self._time_base)
        frame.time_base = self._time_base
        self._at_s += self._frame_s
        for ready in [frame] if self._palette is None else self._palette.apply(frame):
            self._container.mux(self._stream.encode(ready))

    def finish(self) -> None:
        for ready in [] if self._palette is None else self._palette.apply(None):
            self._container.mux(self._stream.encode(ready))
        self._container.mux(self._stream.encode(None))
        self._container.close()
        with self._path.open("rb") as file:  # a full network disk may say so only now
            os.fsync(file.fileno())

    def abandon(self) -> None:
        """Lets go of the file, whatever state it is in; closing writes a trailer, which may fail once
        more."""
        with suppress(OSError, av.FFmpegError):
            self._container.close()


class PaletteGraph:
    """Maps RGB frames to 256 colours each.

    Every frame gets a palette of its own, computed from that frame alone: one palette for the whole video
    would need all frames in memory first, and a fixed one bands every gradient. Ordered dither keeps still
    parts still.
    """

    def __init__(self, size: tuple[int, int], time_base: Fraction) -> None:
        height, width = size
        graph = av.filter.Graph()
        source = graph.add_buffer(
            width=width, height=height, format=av.VideoFormat("rgb24"), time_base=time_base
        )
        split = graph.add("split")
        palette = graph.add("palettegen", "stats_mode=single")
        mapped = graph.add("paletteuse", "new=1:dither=bayer:bayer_scale=4")
        sink = graph.add("buffersink")
        source.link_to(split)
        split.link_to(mapped, 0, 0)
        split.link_to(palette, 1, 0)
        palette.link_to(mapped, 0, 1)
        mapped.link_to(sink)
        graph.configure()
        self._graph = graph

    def apply(self, frame: av.VideoFrame | None) -> Iterator[av.VideoFrame]:
        """The frames that are ready once this one is in; None is the end of the video."""
        self._graph.push(frame)
        while True:
            try:
                yield self._graph.pull()
            except (av.BlockingIOError, av.EOFError):  # wants another frame; has given its last one
                return


class FolderEncoder:
    """`frame_00000.png`, `frame_00001.png`, … in a folder of their own."""

    def __init__(self, folder: Path, size: tuple[int, int]) -> None:
        folder.mkdir()
        self.size = size
        self._folder = folder
        self._num_written = 0
        self._codec = av.CodecContext.create("png", "w")
        self._codec.height, self._codec.width = size
        self._codec.pix_fmt = "rgb24"
        self._codec.time_base = Fraction(1, 1)  # the encoder insists on one; a PNG has no time

    def add(self, frame_HW3: np.ndarray) -> None:
        self._write(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame_HW3), format="rgb24"))

    def finish(self) -> None:
        self._write(None)

    def abandon(self) -> None:
        """No file is open between frames."""

    def _write(self, frame: av.VideoFrame | None) -> None:
        for packet in self._codec.encode(frame):
            (self._folder / f"frame_{self._num_written:05d}.png").write_bytes(bytes(packet))
            self._num_written += 1
