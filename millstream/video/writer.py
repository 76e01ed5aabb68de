"""Writing frames to a video file or a folder of PNGs that appears whole or not at all.

Frames go to a draft beside the target as they arrive, so memory does not grow with the length, and one rename
at the end makes the target appear. The same frames make the same file, so a replay's can be compared with the
first. Nothing here knows where the frames come from, about sound, or about sending them anywhere; formats and
encoders are in `video/encoders.py`. In order: the writer, its checks, the rename.
Shapes: T frames, H height, W width, 3 is RGB.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from types import TracebackType

import av
import numpy as np

from millstream.core.errors import VideoError
from millstream.core.files import Draft, sweep
from millstream.core.undo import undone_by
from millstream.video.encoders import ENCODERS, FileEncoder, FolderEncoder, find_encoder
from millstream.video.salvage import cut_to_whole_film

MIN_FPS = 0.1
MAX_FPS = 1000
MAX_GIF_FPS = 50
"""A gif counts time in hundredths of a second, and browsers slow down a frame shorter than two of them."""
MAX_NAME_BYTES = 200
"""File systems allow 255; a folder that is replaced steps aside under a longer name."""
MAX_RATE_DENOMINATOR = 1001
"""Enough for 24000/1001 and its relatives."""


class VideoWriter:
    """`with VideoWriter(path, fps=16) as writer: writer.write(frames)`, as often as there are frames.

    The suffix picks the kind: `.mp4`, `.webm`, `.gif`; no suffix, or a trailing slash, is a folder of PNGs.
    The constructor refuses what cannot work and touches nothing; the first `write` makes the parent folder.
    One that is `growing` (mp4) can be played to its last second whenever its writing stops, by `rescue` or by
    whoever finds its draft.
    """

    def __init__(
        self, path: Path | str, *, fps: float, overwrite: bool = False, growing: bool = False
    ) -> None:
        self.path = Path(path)
        self.kind = "" if str(path).endswith("/") else self.path.suffix.lower()
        self.fps = fps
        self.overwrite = overwrite
        self.growing = growing
        check_target_name(self.path)
        check_kind(self.path, self.kind, fps)
        check_may_replace(self.path, self.kind, overwrite)
        check_parent_writable(self.path)
        self._draft: Draft | None = None
        self._encoder: FileEncoder | FolderEncoder | None = None
        self.failed = False
        self.num_frames = 0

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self.failed:
                self.finish()
        finally:
            self._discard()

    def write(self, frames: np.ndarray) -> None:
        assert frames.dtype == np.uint8, f"frames must be uint8, got {frames.dtype}"
        assert frames.ndim == 4, f"frames must be [T, H, W, 3], got {frames.shape}"
        assert frames.shape[3] == 3, f"frames must be [T, H, W, 3], got {frames.shape}"
        assert not self.failed, f"{self.path}: a write failed before this one"
        if not len(frames):
            return
        self.failed = True  # until this write is through: whatever stops it, the file must not appear
        with system_errors_named(self.path):
            encoder = self._encoder_for(frames.shape[1:3])
            if isinstance(encoder, FileEncoder):
                encoder.set_rate(_fraction(self.fps))
            for frame_HW3 in frames:
                encoder.add(frame_HW3)
                self.num_frames += 1
        self.failed = False

    def _encoder_for(self, size: tuple[int, int]) -> FileEncoder | FolderEncoder:
        if self._encoder is None:
            rate = _fraction(self.fps)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self.growing:  # what is left of one that grew is not for the next writer to remove
                sweep(self.path.parent)
            self._draft = Draft(self.path.parent)
            place = self._draft.path / self.path.name
            self._encoder = (
                FileEncoder(place, self.kind, rate, size, growing=self.growing)
                if self.kind
                else FolderEncoder(place, size)
            )
        if size != self._encoder.size:
            (height, width), (old_height, old_width) = size, self._encoder.size
            change = f"from {old_width}x{old_height} to {width}x{height}"
            raise VideoError(f"{self.path}: frames changed {change}; write each size to a file of its own")
        return self._encoder

    def finish(self) -> None:
        """All is written: the file appears."""
        if self._encoder is None or self._draft is None:
            raise VideoError(
                f"{self.path}: not written, there was no frame to write; ask for at least one chunk"
            )
        with system_errors_named(self.path):
            self._encoder.finish()
            publish(self._draft.path / self.path.name, self.path, self.overwrite)
        self._discard()

    def rescue(self) -> bool:
        """After a failure: what is whole of a growing file appears. Whether there is any."""
        try:
            if self._encoder is None or self._draft is None:
                return False
            self._encoder.abandon()
            place = self._draft.path / self.path.name
            with system_errors_named(self.path):
                if not place.is_file() or not cut_to_whole_film(place):
                    return False
                publish(place, self.path, self.overwrite)
            return True
        finally:
            self._discard()

    def _discard(self) -> None:
        """Drops the draft, if it is still there. Never raises: the error that led here is the one to show."""
        if self._draft is not None:
            self._draft.remove()
        if self._encoder is not None:  # last: closing an mp4 that still has its name would rewrite all of it
            self._encoder.abandon()


def _fraction(fps: float) -> Fraction:
    return Fraction(fps).limit_denominator(MAX_RATE_DENOMINATOR)


def check_target_name(path: Path) -> None:
    if path.name in ("", ".."):
        raise VideoError(f"{str(path)!r} does not name a video; try --out clip.mp4")
    if len(os.fsencode(path.name)) > MAX_NAME_BYTES:
        raise VideoError(f"{path}: the name is longer than {MAX_NAME_BYTES} bytes; choose a shorter --out")


def check_kind(path: Path, kind: str, fps: float) -> None:
    """Refuses a suffix we do not write, one this build of PyAV cannot encode, and a rate it cannot show."""
    if kind not in ENCODERS:
        raise VideoError(
            f"{path}: cannot write {kind!r}; use .mp4, .webm, .gif, or a folder name ending in / for PNGs"
        )
    if find_encoder(kind) is None:
        working = ", ".join(other or "folder/" for other in ENCODERS if find_encoder(other))
        raise VideoError(
            f"{path}: this build of PyAV has no encoder for {kind or 'png'}; it can write: {working}"
        )
    if not MIN_FPS <= fps <= MAX_FPS:
        raise VideoError(f"{path}: fps must be from {MIN_FPS} to {MAX_FPS}, got {fps:g}")
    if kind == ".gif" and fps > MAX_GIF_FPS:
        raise VideoError(
            f"{path}: a gif plays at most {MAX_GIF_FPS} fps, got {fps:g}; use .mp4 or a lower --fps"
        )


def check_may_replace(path: Path, kind: str, overwrite: bool) -> None:
    """A target that exists needs --overwrite, and a folder is only replaced when all it holds is our own
    frames."""
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise VideoError(f"{path} exists; pass --overwrite to replace it")
    if kind and path.is_dir():
        raise VideoError(f"{path} is a folder; choose another --out")
    if not kind and not path.is_dir():
        raise VideoError(
            f"{path} is a file, but without a suffix --out is a folder of PNGs; choose another --out"
        )
    if not kind and not holds_only_frames(path):
        raise VideoError(
            f"{path} holds more than frame_*.png, so it is not overwritten; choose another --out"
        )


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
        raise VideoError(
            f"{path}: cannot write in {parent} (permissions, or a read-only disk); choose another --out"
        )


def publish(partial: Path, target: Path, overwrite: bool) -> None:
    """One rename. A target that someone else made meanwhile is left alone, and what was written is kept
    beside it."""
    if not overwrite and os.path.lexists(target):
        spare = target.with_name(f"{target.stem}-{secrets.token_hex(3)}{target.suffix}")
        os.replace(partial, spare)
        raise VideoError(
            f"{target} appeared while it was being written and was left as it is; this video is {spare}"
        )
    if not (partial.is_dir() and target.is_dir()):
        os.replace(partial, target)
        return
    # A folder cannot be renamed over one that is not empty, so the old one steps aside first.
    aside = target.with_name(f".{target.name}.replaced-{secrets.token_hex(8)}")
    os.replace(target, aside)
    with undone_by(lambda: os.replace(aside, target)):
        os.replace(partial, target)
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
