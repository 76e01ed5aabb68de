"""A video that plays, decoded on a thread: a file in a loop, or an address to be read or sent to. The newest
frame counts.

A file plays at its own rate, over and over; so does a video at a web address. What is live is shown as it
comes. One that ends, breaks or is not there is tried again, with longer and longer pauses; its last frame
stays meanwhile, and trouble is told once until it has been well for a while. Of an address nothing is told
but its name: there may be a password in it. SRT is read by the program ffmpeg (`srt_source.py`), everything
else by PyAV.
Shapes: H height, W width, 3 is RGB.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import av
import numpy as np

from millstream.core.errors import ConfigError, VideoError
from millstream.video.reader import (
    FORMATS,
    VideoReader,
    end_of,
    fit,
    open_container,
    open_input,
    upright,
    video_stream,
)
from millstream.video.sender import is_srt, missing
from millstream.video.srt_source import open_srt

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
PLAYED_SCHEMES = ("http", "https")
"""Schemes of what may be a whole video, which then plays at its own rate."""
LIVE_SCHEMES = ("rtmp", "rtmps", "rtsp", "srt", "tcp", "udp")
SRT = re.compile(r"srt://[^/?]*:[0-9]{1,5}(\?.*)?")
LISTEN = "?listen=1"
"""Behind an RTMP address: wait there for somebody to stream to it."""
LIVE_FORMATS = f"{FORMATS},hls,mpjpeg,rtsp,sdp,rtp"
PROTOCOLS = "http,https,tcp,tls,udp,rtp,rtmp,rtmps,crypto,httpproxy"
"""No files: a playlist cannot name one."""
AT_ONCE = {"analyzeduration": "1000000", "probesize": "500000"}
"""FFmpeg options that probe a live source for a second at most before it is shown."""
MAX_PIXELS = 4096 * 4096
OPEN_S = READ_S = 5.0
"""Seconds for an address to answer, and for its next frame."""
SHORTEST_PASS_S = 0.5
"""A still picture is not opened again a hundred times a second."""
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
LONGEST_FRAME_S = 10.0
"""Most seconds to wait until a frame is due, for clocks that jump."""
STEADY_S = 10.0
"""Seconds of playing after which a source counts as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceAddress:
    name: str
    place: str
    """A path or an address."""

    @property
    def is_file(self) -> bool:
        return "://" not in self.place

    @property
    def scheme(self) -> str:
        return urlsplit(self.place).scheme

    @property
    def is_paced(self) -> bool:
        """True if it may come faster than it is to be shown."""
        return self.is_file or self.scheme in PLAYED_SCHEMES

    @property
    def longest_wait_s(self) -> float:
        """Most seconds between two attempts; few where a sender calls us, as we must be there to answer."""
        is_awaited = self.place.endswith(LISTEN) or "mode=listener" in self.place
        return FIRST_WAIT_S if is_awaited else LONGEST_WAIT_S

    def open(self) -> Any:
        """A container, for as long as `with` lasts."""
        if self.is_file:
            return open_container(Path(self.place))
        if is_srt(self.place):
            return open_srt(self.place, options=AT_ONCE, open_s=OPEN_S, read_s=READ_S)
        options = {"format_whitelist": LIVE_FORMATS, "protocol_whitelist": PROTOCOLS} | (
            {} if self.is_paced else AT_ONCE
        )
        if self.place.endswith(LISTEN):
            options["listen"] = "1"
        return open_input(self.place.removesuffix(LISTEN), options=options, timeout=(OPEN_S, READ_S))


def parse_source(text: str) -> SourceAddress:
    """NAME=PLACE as it is written on a command line. Raises what is wrong with it, a file that is no video
    among that."""
    name, _, place = text.partition("=")
    source = SourceAddress(name=name, place=place)
    if not NAME.fullmatch(name) or not place:
        raise ConfigError(
            "--source takes NAME=FILE or NAME=ADDRESS; a name has up to 32 small letters, digits, - or _"
        )
    if source.is_file:
        try:
            with VideoReader(place):
                return source
        except VideoError as error:
            raise ConfigError(f"--source {name}: {error}") from None
    if source.scheme not in PLAYED_SCHEMES + LIVE_SCHEMES:
        raise ConfigError(
            f"--source {name}: an address begins with one of {', '.join(PLAYED_SCHEMES + LIVE_SCHEMES)}, "
            "then ://"
        )
    if trouble := missing(place):
        raise ConfigError(f"--source {name}: {trouble}")
    if is_srt(place) and not SRT.fullmatch(place):
        raise ConfigError(
            f"--source {name}: an SRT address names a port, as in srt://HOST:9000 or "
            "srt://0.0.0.0:9000?mode=listener"
        )
    return source


class LiveSource:
    """Plays from when it is made until it is closed. `tell` is called on its thread."""

    def __init__(self, address: SourceAddress, tell: Callable[[str], None]) -> None:
        self.latest: av.VideoFrame | None = None
        self.trouble = ""
        """Trouble that its viewers are told of; empty while it is well."""
        self._address = address
        self._tell = tell
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"millstream-source-{address.name}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Waits for its thread, which may wait for an address to answer."""
        self._over.set()
        self._thread.join(OPEN_S + READ_S)

    def _run(self) -> None:
        wait_s = FIRST_WAIT_S
        while not self._over.is_set():
            began = time.monotonic()
            why = ""
            try:
                self._play()
            except (OSError, ValueError, av.FFmpegError, VideoError) as error:
                why = _plain(error).replace(str(Path(self._address.place)), "its file")
            lasted_s = time.monotonic() - began
            if not why and self._address.is_paced:
                self._over.wait(SHORTEST_PASS_S - lasted_s)
                continue
            wait_s = FIRST_WAIT_S if lasted_s > STEADY_S else wait_s
            self._lose(why or "it has ended")
            self._over.wait(wait_s)
            wait_s = min(2 * wait_s, self._address.longest_wait_s)

    def _play(self) -> None:
        """Once, to its end. Raises what is wrong with it."""
        with self._address.open() as container:
            stream = video_stream(container, self._address.name)
            is_paced = self._address.is_paced and container.format.name != "mpjpeg"  # whose clock is made up
            start = time.monotonic()
            first_s: float | None = None
            for frame in container.decode(stream):
                if frame.width * frame.height > MAX_PIXELS:
                    raise VideoError(
                        f"its frames are {frame.width}x{frame.height}; at most {MAX_PIXELS} pixels are taken"
                    )
                shown_s = end_of(frame)
                if first_s is None:
                    upright(frame)  # pixels that nobody can convert are refused here
                    first_s = shown_s
                self.latest = frame
                ahead_s = shown_s - first_s - (time.monotonic() - start)
                if self._over.wait(min(ahead_s, LONGEST_FRAME_S) if is_paced and ahead_s > 0 else 0):
                    return
                if self.trouble and time.monotonic() - start > STEADY_S:
                    self._recover()
        if first_s is None:
            raise VideoError("there is no frame in it")

    def _lose(self, why: str) -> None:
        if not self.trouble and not self._over.is_set():
            shown = (
                "its last frame stays" if self.latest is not None else "the stream waits for its first frame"
            )
            self.trouble = f"the source {self._address.name} is gone: {why}; {shown} and it is tried again"
            self._tell(self.trouble)

    def _recover(self) -> None:
        self.trouble = ""
        self._tell(f"the source {self._address.name} is back")


def picture_of(frame: av.VideoFrame, size: tuple[int, int]) -> np.ndarray:
    """[H, W, 3]: the frame's middle, upright, scaled to fill."""
    return fit(upright(frame), size)


def _plain(error: Exception) -> str:
    """Without the address."""
    if isinstance(error, VideoError):
        return str(error)
    if isinstance(error, av.error.ExitError):
        return "it does not answer"
    return (getattr(error, "strerror", None) or os.strerror(5)).lower()
