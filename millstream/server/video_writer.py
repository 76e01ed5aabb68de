"""Writing frames to a video file or a folder of PNGs that appears whole or not at all.

Frames go to a temporary sibling as they arrive, so memory does not grow with the length, and one rename at the end
makes the target appear. The same frames make the same file, so a replay's can be compared with the first.
Nothing here knows where the frames come from, about sound, or about sending them anywhere.
In order: the writer, its checks, the rename; then the formats and the encoders, which know nothing of temporaries.
Shapes: T frames, H height, W width, 3 is RGB.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import MappingProxyType, TracebackType

import av
import av.filter
import numpy as np

from millstream.core.errors import VideoError

MIN_FPS, MAX_FPS = 0.1, 1000
MAX_GIF_FPS = 50
"""A gif counts time in hundredths of a second, and browsers slow down a frame shorter than two of them."""
MAX_NAME_BYTES = 200
"""File systems allow 255; the temporary sibling's name is longer than the target's."""
MAX_RATE_DENOMINATOR = 1001
"""Enough for 24000/1001 and its relatives."""


class VideoWriter:
    """`with VideoWriter(path, fps=16) as writer: writer.write(frames)`, as often as there are frames.

    The suffix picks the kind: `.mp4`, `.webm`, `.gif`; no suffix, or a trailing slash, is a folder of PNGs.
    The constructor refuses what cannot work and touches nothing; the first `write` makes the parent folder.
    """

    def __init__(self, path: Path | str, *, fps: float, overwrite: bool = False) -> None:
        self.path = Path(path)
        self.kind = "" if str(path).endswith("/") else self.path.suffix.lower()
        self.fps = fps
        self.overwrite = overwrite
        check_target_name(self.path)
        check_kind(self.path, self.kind, fps)
        check_may_replace(self.path, self.kind, overwrite)
        check_parent_writable(self.path)
        # A pid alone comes back: two writers of one process, or pid 1 of every container on a shared disk.
        self._partial = self.path.with_name(f".{self.path.name}.partial-{os.getpid()}-{secrets.token_hex(3)}")
        self._encoder: FileEncoder | FolderEncoder | None = None
        self._failed = False
        self.num_frames = 0

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            if kind is None and not self._failed:
                self._finish()
        finally:
            self._discard()

    def write(self, frames: np.ndarray) -> None:
        assert frames.dtype == np.uint8, f"frames must be uint8, got {frames.dtype}"
        assert frames.ndim == 4, f"frames must be [T, H, W, 3], got {frames.shape}"
        assert frames.shape[3] == 3, f"frames must be [T, H, W, 3], got {frames.shape}"
        assert not self._failed, f"{self.path}: a write failed before this one"
        if not len(frames):
            return
        self._failed = True  # until this write is through: whatever stops it, the file must not appear
        with system_errors_named(self.path):
            encoder = self._encoder_for(frames.shape[1:3])
            for frame_HW3 in frames:
                encoder.add(frame_HW3)
                self.num_frames += 1
        self._failed = False

    def _encoder_for(self, size: tuple[int, int]) -> FileEncoder | FolderEncoder:
        if self._encoder is None:
            rate = Fraction(self.fps).limit_denominator(MAX_RATE_DENOMINATOR)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._encoder = (
                FileEncoder(self._partial, self.kind, rate, size) if self.kind else FolderEncoder(self._partial, size)
            )
        if size != self._encoder.size:
            (height, width), (old_height, old_width) = size, self._encoder.size
            change = f"from {old_width}x{old_height} to {width}x{height}"
            raise VideoError(f"{self.path}: frames changed {change}; write each size to a file of its own")
        return self._encoder

    def _finish(self) -> None:
        if self._encoder is None:
            raise VideoError(f"{self.path}: not written, there was no frame to write; ask for at least one chunk")
        with system_errors_named(self.path):
            self._encoder.finish()
            publish(self._partial, self.path, self.overwrite)

    def _discard(self) -> None:
        """Drops the temporary, if it is still there. Never raises: the error that led here is the one to show."""
        shutil.rmtree(self._partial, ignore_errors=True)  # a folder; else the next line's business
        with suppress(OSError):
            self._partial.unlink(missing_ok=True)
        if self._encoder is not None:  # last: closing an mp4 that still has its name would rewrite all of it
            self._encoder.abandon()


def check_target_name(path: Path) -> None:
    if path.name in ("", ".."):
        raise VideoError(f"{str(path)!r} does not name a video; try --out clip.mp4")
    if len(os.fsencode(path.name)) > MAX_NAME_BYTES:
        raise VideoError(f"{path}: the name is longer than {MAX_NAME_BYTES} bytes; choose a shorter --out")


def check_kind(path: Path, kind: str, fps: float) -> None:
    """Refuses a suffix we do not write, one this build of PyAV cannot encode, and a rate it cannot show."""
    if kind not in ENCODERS:
        raise VideoError(f"{path}: cannot write {kind!r}; use .mp4, .webm, .gif, or a folder name ending in / for PNGs")
    if find_encoder(kind) is None:
        working = ", ".join(other or "folder/" for other in ENCODERS if find_encoder(other))
        raise VideoError(f"{path}: this build of PyAV has no encoder for {kind or 'png'}; it can write: {working}")
    if not MIN_FPS <= fps <= MAX_FPS:
        raise VideoError(f"{path}: fps must be from {MIN_FPS} to {MAX_FPS}, got {fps:g}")
    if kind == ".gif" and fps > MAX_GIF_FPS:
        raise VideoError(f"{path}: a gif plays at most {MAX_GIF_FPS} fps, got {fps:g}; use .mp4 or a lower --fps")


def check_may_replace(path: Path, kind: str, overwrite: bool) -> None:
    """A target that exists needs --overwrite, and a folder is only replaced when all it holds is our own frames."""
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise VideoError(f"{path} exists; pass --overwrite to replace it")
    if kind and path.is_dir():
        raise VideoError(f"{path} is a folder; choose another --out")
    if not kind and not path.is_dir():
        raise VideoError(f"{path} is a file, but without a suffix --out is a folder of PNGs; choose another --out")
    if not kind and not holds_only_frames(path):
        raise VideoError(f"{path} holds more than frame_*.png, so it is not overwritten; choose another --out")


def holds_only_frames(folder: Path) -> bool:
    with system_errors_named(folder):
        return not folder.is_symlink() and all(Path(name).match("frame_*.png") for name in os.listdir(folder))


def check_parent_writable(path: Path) -> None:
    """Asks the nearest folder that exists: the ones below it are made by the first write."""
    parent = path.absolute().parent
    while not os.path.lexists(parent):
        parent = parent.parent
    if not parent.is_dir():
        raise VideoError(f"{path}: {parent} is not a folder; choose another --out")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise VideoError(f"{path}: cannot write in {parent} (permissions, or a read-only disk); choose another --out")


def publish(partial: Path, target: Path, overwrite: bool) -> None:
    """One rename. A target that someone else made meanwhile is left alone, and what was written is kept beside it."""
    if not overwrite and os.path.lexists(target):
        spare = target.with_name(f"{target.stem}-{secrets.token_hex(3)}{target.suffix}")
        os.replace(partial, spare)
        raise VideoError(f"{target} appeared while it was being written and was left as it is; this video is {spare}")
    if not (partial.is_dir() and target.is_dir()):
        os.replace(partial, target)
        return
    # A folder cannot be renamed over one that is not empty, so the old one steps aside first.
    aside = partial.with_name(partial.name.replace(".partial-", ".replaced-"))
    os.replace(target, aside)
    try:
        os.replace(partial, target)
    except BaseException:
        os.replace(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def system_errors_named(path: Path) -> Iterator[None]:
    """Turns what the system or the encoder refused into one line with the path, the reason and the fix."""
    try:
        yield
    except (OSError, av.FFmpegError) as error:
        code = error.errno or 0
        reason = os.strerror(code) if code in errno.errorcode else error.strerror  # the rest are FFmpeg's own
        raise VideoError(f"{path}: {reason}; free some space or choose another --out") from error


BT709 = {"colorspace": "bt709", "color_primaries": "bt709", "color_trc": "bt709", "color_range": "tv"}
"""Said in the file, and used for the conversion: without it players guess the matrix from the picture's size."""


PROBED = 256
"""Pixels high and wide of what an encoder is tried with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoder:
    """One way to encode a kind of file."""

    label: str
    name: str
    """What FFmpeg calls the encoder."""
    container: str
    pixel_format: str
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    container_options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    smallest: int = 1
    """Pixels high and wide that it is trusted with: devices refuse pictures below some size."""


ENCODERS: Mapping[str, tuple[Encoder, ...]] = {
    ".mp4": (
        Encoder(
            label="mp4 (h264 by the GPU)",
            name="h264_nvenc",
            container="mp4",
            pixel_format="yuv420p",
            options={"preset": "p5", "rc": "vbr", "cq": "19", "b": "0", **BT709},
            smallest=PROBED,
            container_options={"movflags": "+faststart"},
        ),
        Encoder(
            label="mp4 (h264)",
            name="libx264",
            container="mp4",
            pixel_format="yuv420p",
            options={"crf": "20", "mbtree": "0", **BT709},  # its macroblock tree reads memory that it never wrote
            container_options={"movflags": "+faststart"},
        ),
    ),
    ".webm": (
        Encoder(
            label="webm (vp9)",
            name="libvpx-vp9",
            container="webm",
            pixel_format="yuv420p",
            options={"crf": "24", "b": "0", "deadline": "good", "cpu-used": "4", "row-mt": "1", **BT709},
            container_options={"fflags": "+bitexact"},  # no random name of the segment
        ),
        Encoder(
            label="webm (vp8)",
            name="libvpx",
            container="webm",
            pixel_format="yuv420p",
            options={"crf": "10", "b": "8M", "deadline": "good", "cpu-used": "4", **BT709},
            container_options={"fflags": "+bitexact"},
        ),
    ),
    ".gif": (
        Encoder(label="gif", name="gif", container="gif", pixel_format="pal8", container_options={"loop": "0"}),  # 0: for ever
    ),
    "": (Encoder(label="png", name="png", container="", pixel_format="rgb24"),),
}
"""By suffix; where there are several, the first one that opens here is taken."""


def find_encoder(kind: str, size: tuple[int, int] = (PROBED, PROBED)) -> Encoder | None:
    """The first that can, for pictures of this size."""
    return next((encoder for encoder in ENCODERS[kind] if min(size) >= encoder.smallest and is_available(encoder)), None)


def is_available(encoder: Encoder) -> bool:
    """Whether this build of PyAV has it and, where it needs a device, that is here: a build may have more than a machine."""
    return _opens(encoder.name, encoder.pixel_format)


@cache
def _opens(name: str, pixel_format: str) -> bool:
    try:
        context = av.CodecContext.create(name, "w")
        context.height = context.width = PROBED
        context.pix_fmt, context.time_base = pixel_format, Fraction(1, 24)
        context.open()
    except (av.codec.codec.UnknownCodecError, av.error.FFmpegError, OSError):
        return False
    return True


def available_codecs() -> dict[str, bool]:
    """What this build of PyAV can write, by kind: `{"mp4 (h264)": True, ...}`."""
    return {(find_encoder(kind) or choices[-1]).label: find_encoder(kind) is not None for kind, choices in ENCODERS.items()}


class FileEncoder:
    """One video file. Memory holds the encoder's look-ahead, a few dozen frames, however long the video."""

    def __init__(self, path: Path, kind: str, rate: Fraction, size: tuple[int, int]) -> None:
        encoder = find_encoder(kind, size)
        assert encoder is not None, f"no encoder for {kind}"
        self.size = size
        self._path = path
        self._time_base = 1 / rate
        self._num_frames = 0
        self._palette = PaletteGraph(size, self._time_base) if encoder.pixel_format == "pal8" else None
        # An absolute path: FFmpeg takes what precedes a colon in a relative one for a protocol.
        self._container = av.open(
            str(path.absolute()), "w", format=encoder.container, container_options=dict(encoder.container_options)
        )
        self._stream = self._container.add_stream(encoder.name, rate=rate, options=dict(encoder.options))
        self._stream.height, self._stream.width = size
        self._stream.pix_fmt = encoder.pixel_format
        self._stream.time_base = self._time_base

    def add(self, frame_HW3: np.ndarray) -> None:
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame_HW3), format="rgb24")
        if self._palette is None:
            frame = frame.reformat(format=self._stream.pix_fmt, dst_colorspace="ITU709")
        frame.pts, frame.time_base = self._num_frames, self._time_base
        self._num_frames += 1
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
        """Lets go of the file, whatever state it is in; closing writes a trailer, which may fail once more."""
        with suppress(OSError, av.FFmpegError):
            self._container.close()


class PaletteGraph:
    """Maps RGB frames to 256 colours each.

    Every frame gets a palette of its own, computed from that frame alone: one palette for the whole video would need
    all frames in memory first, and a fixed one bands every gradient. Ordered dither keeps still parts still.
    """

    def __init__(self, size: tuple[int, int], time_base: Fraction) -> None:
        height, width = size
        graph = av.filter.Graph()
        source = graph.add_buffer(width=width, height=height, format=av.VideoFormat("rgb24"), time_base=time_base)
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
