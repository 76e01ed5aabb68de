"""Reading a video file, an animated gif or a still picture one RGB frame at a time.

Frames come in the order they are shown, each once: timestamps of a variable frame rate, the shape of
non-square pixels, transparency and sound are ignored. Nothing here knows what the frames are for.
Shapes: T frames, H height, W width, 3 is RGB.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import av
import numpy as np
from av.stream import Disposition

from millstream.core.errors import VideoError
from millstream.core.undo import undone_by

# Playlists are not in it: a text file named clip.mp4 could make FFmpeg open other files, or addresses.
FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,gif,avi,mpegts,mpeg,flv,ogg,asf,png_pipe,jpeg_pipe,webp_pipe,bmp_pipe"
NOT_A_VIDEO = "is not a video we can read, or its beginning or end is missing"
USE_THESE = "use a whole mp4, webm, mov, avi, gif, png or jpg file"
DEFAULT_FPS = 25.0
"""For a file that does not say."""
ADDRESS = re.compile(r"[a-z]{2,}:/")
"""As a path writes it: one slash is left."""
LENIENT = {"metadata_errors": "replace"} if hasattr(av.container.InputContainer, "metadata_errors") else {}
"""Titles that are not UTF-8 are common. PyAV before 19 refuses them unless asked not to; newer ones never
do."""
GIF_TRAILER, GIF_IMAGE, GIF_EXTENSION = b";,!"


class VideoReader:
    """One pass over the frames of `path`: `with VideoReader(path) as reader: for frame_HW3 in
    reader.frames(): ...`.

    With `size`, (height, width), each frame is cut to that shape around its centre and scaled to fill it. The
    constructor decodes the first frame, so a file that is no video is refused at once; one that breaks off in
    the middle is refused after its last good frame, never silently shortened.
    """

    def __init__(self, path: Path | str, *, size: tuple[int, int] | None = None) -> None:
        self.path = Path(path)
        self.num_frames = 0
        self._started = False
        self._container = open_container(self.path)
        with undone_by(self.close):
            self._stream = video_stream(self._container, self.path)
            self.fps = frame_rate(self._stream)
            self._pictures = self._decode()
            self._first_HW3 = next(self._pictures)
        self.source_size: tuple[int, int] = self._first_HW3.shape[:2]
        self.size: tuple[int, int] = size or self.source_size

    def __enter__(self) -> VideoReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._container.close()

    def frames(self) -> Iterator[np.ndarray]:
        """All frames as uint8 [H, W, 3], once; the file is closed after the last."""
        assert not self._started, f"{self.path}: frames() was called before; open the file again"
        self._started = True
        try:
            yield fit(self._first_HW3, self.size)
            for picture_HW3 in self._pictures:
                yield fit(picture_HW3, self.size)
        finally:
            self.close()

    def _decode(self) -> Iterator[np.ndarray]:
        """Upright pictures in the source's size, then a check that these were all of them."""
        shown_until_s = 0.0
        try:
            for frame in self._container.decode(self._stream):
                self.num_frames += 1
                shown_until_s = end_of(frame)
                yield upright(frame)
            whole = self.num_frames and not is_cut_short(self._container, self._stream, shown_until_s)
        except (OSError, av.FFmpegError) as error:
            raise broken_off(self.path, self.num_frames) from error
        if not whole:
            raise broken_off(self.path, self.num_frames)


def upright(frame: av.VideoFrame) -> np.ndarray:
    """FFmpeg says how far to turn the picture counter-clockwise: phones store it lying on its side."""
    return np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90))


def check_source(path: Path) -> None:
    if path.is_dir():
        raise VideoError(f"{path} is a folder, not a video; name one file in it")
    if not path.exists():
        if ADDRESS.match(str(path)):
            raise VideoError(
                f"{path} is an address, and this takes a file: download it first, or name it to serve "
                "--source"
            )
        raise VideoError(f"{path} is not there; check the path of the input video")
    if not path.is_file():
        raise VideoError(f"{path} is not a plain file; save the video to one first")


def open_input(source: object, **arguments: Any) -> av.container.InputContainer:
    """Open a path, an address or a file object for reading, as `av.open` does, with any PyAV that is
    allowed."""
    return av.open(source, **arguments, **LENIENT)


def open_container(path: Path) -> av.container.InputContainer:
    try:
        check_source(path)
        # An absolute path: FFmpeg takes what precedes a colon in a relative one for a protocol.
        return open_input(
            str(path.absolute()), options={"format_whitelist": FORMATS, "protocol_whitelist": "file"}
        )
    except OSError as error:
        raise VideoError(
            f"{path}: {os.strerror(error.errno or 0)}; make it readable or choose another input"
        ) from error
    except av.FFmpegError as error:
        raise VideoError(
            f"{path} {NOT_A_VIDEO if path.stat().st_size else 'is empty'}; {USE_THESE}"
        ) from error


def video_stream(container: av.container.InputContainer, path: Path | str) -> av.VideoStream:
    for stream in container.streams.video:
        if stream.disposition & Disposition.attached_pic:  # a song's cover
            continue
        if stream.codec_context is None:
            raise VideoError(
                f"{path}: no decoder for its video, or the file is damaged; convert it to an mp4 with H.264"
            )
        return stream
    if not container.streams:
        raise VideoError(f"{path} {NOT_A_VIDEO}; {USE_THESE}")
    raise VideoError(f"{path} has no video in it, only {kinds_of(container)}; use a file with pictures")


def kinds_of(container: av.container.InputContainer) -> str:
    return (
        ", ".join(sorted({stream.type for stream in container.streams if stream.type != "video"}))
        or "a cover picture"
    )


def frame_rate(stream: av.VideoStream) -> float:
    # A gif's frames last whole hundredths of a second, and its average comes from the first of them alone.
    rates = (stream.average_rate, stream.guessed_rate)
    rate = (rates[1] or rates[0]) if stream.codec_context.name == "gif" else (rates[0] or rates[1])
    return float(rate) if rate else DEFAULT_FPS


def broken_off(path: Path, num_frames: int) -> VideoError:
    if not num_frames:
        return VideoError(
            f"{path}: no frame of it can be decoded; the file is damaged, get a whole copy or convert it again"
        )
    readable = f"the first {num_frames} frames" if num_frames > 1 else "one frame"
    return VideoError(
        f"{path}: damaged or cut short, only {readable} can be read; get a whole copy or trim it to that"
    )


def end_of(frame: av.VideoFrame) -> float:
    """When the next frame is due, in seconds."""
    if frame.pts is None or frame.time_base is None:
        return 0.0
    return float((frame.pts + (frame.duration or 0)) * frame.time_base)


def is_cut_short(
    container: av.container.InputContainer, stream: av.VideoStream, shown_until_s: float
) -> bool:
    """Return whether the file promises more than it gave. FFmpeg ends quietly where a file stops between
    two frames."""
    path = Path(container.name)
    if container.format.name in WHOLE_CHECKS:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return not WHOLE_CHECKS[container.format.name](data)
    if promised_s := matroska_duration(stream):
        return promised_s - shown_until_s > 1 / frame_rate(stream)
    size_bytes = path.stat().st_size
    entries = getattr(stream, "index_entries", ())  # older PyAV has none, and then such a cut goes unseen
    return any(entry.pos + entry.size > size_bytes for entry in entries)


def is_whole_jpeg(data: mmap.mmap) -> bool:
    """The end of the picture comes after its last scan; neither marker can occur inside one."""
    return data.rfind(b"\xff\xd9") > data.rfind(b"\xff\xda")


def is_whole_gif(data: mmap.mmap) -> bool:
    """Walks from block to block up to the trailer. FFmpeg takes all that follows a broken block for the last
    frame."""
    position = 13 + colour_table_bytes(data[10])
    try:
        while data[position] != GIF_TRAILER:
            if data[position] == GIF_IMAGE:
                position += 11 + colour_table_bytes(data[position + 9])
            elif data[position] == GIF_EXTENSION:
                position += 2
            else:
                return False
            while data[position]:  # parts of up to 255 bytes, each after its length
                position += 1 + data[position]
            position += 1
    except IndexError:
        return False
    return True


def colour_table_bytes(flags: int) -> int:
    return 3 * 2 ** (1 + flags % 8) if flags & 0x80 else 0


WHOLE_CHECKS = {"gif": is_whole_gif, "jpeg_pipe": is_whole_jpeg}
"""For the formats whose damage FFmpeg passes over in silence."""


def matroska_duration(stream: av.VideoStream) -> float | None:
    """Seconds of this stream as a webm or mkv file states them, '00:01:02.500000000'; other formats do
    not."""
    try:
        hours, minutes, seconds = stream.metadata.get("DURATION", "").split(":")
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    except ValueError:
        return None


def fit(picture_HW3: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The largest centred part of the picture with the shape of `size`, scaled to it."""
    part_HW3 = np.ascontiguousarray(centre_crop(picture_HW3, size))
    if part_HW3.shape[:2] == size:
        return part_HW3
    height, width = size
    frame = av.VideoFrame.from_ndarray(part_HW3, format="rgb24")
    scaled_HW3: np.ndarray = frame.reformat(width=width, height=height, interpolation="BICUBIC").to_ndarray()
    assert scaled_HW3.shape[:2] == size, f"scaled to {scaled_HW3.shape[:2]} instead of {size}"
    return scaled_HW3


def centre_crop(picture_HW3: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Cut before scaling: scaling a very wide picture first would need memory far beyond either size."""
    height, width = picture_HW3.shape[:2]
    part_height = max(1, min(height, round(width * size[0] / size[1])))
    part_width = max(1, min(width, round(height * size[1] / size[0])))
    top = (height - part_height) // 2
    left = (width - part_width) // 2
    return picture_HW3[top : top + part_height, left : left + part_width]
