"""Real receivers of what a session sends: RTMP by PyAV on a thread, SRT by the program ffmpeg where there is one with it."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import av
import numpy as np

from millstream.video.sender import ffmpeg_program

AT_ONCE = {"fflags": "nobuffer", "probesize": "32", "analyzeduration": "1"}
"""Without them a receiver looks at seconds of a stream before it shows any."""


@dataclass
class Received:
    frames: list[tuple[float, float, Any]] = field(default_factory=list)
    """When each came, its time in the stream, and what was looked at."""
    look_at: Callable[[np.ndarray], Any] = lambda pixels_HW3: pixels_HW3
    """What is kept of each."""
    key_frames: list[float] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def read_film(source: object, received: Received, *, frames: int | None, **options: object) -> None:
    """Until so many have come, or it ends."""
    try:
        with av.open(source, **options) as container:  # type: ignore[call-overload]
            for frame in container.decode(video=0):
                came, pixels = time.monotonic(), frame.to_ndarray(format="rgb24")
                received.frames.append((came, float(frame.time or 0.0), received.look_at(pixels)))
                if frame.key_frame:
                    received.key_frames.append(float(frame.time or 0.0))
                if frames is not None and len(received.frames) >= frames:
                    return
    except (OSError, av.FFmpegError):
        return  # a live stream ends when its sender hangs up
    finally:
        received.done.set()


@contextmanager
def rtmp_receiver(
    port: int, received: Received | None = None, *, frames: int | None = None, wait_s: float = 30.0
) -> Iterator[Received]:
    """Takes one stream, whatever it is called; hangs up after so many frames."""
    received = received or Received()
    source, options = f"rtmp://127.0.0.1:{port}/live/key", AT_ONCE | {"listen": "1"}

    def run() -> None:
        read_film(source, received, frames=frames, options=options, timeout=(wait_s, wait_s), format="flv")

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield received
    finally:
        thread.join(2 * wait_s)
        assert not thread.is_alive(), "the receiver still waits"


@cache
def can_srt() -> bool:
    program = ffmpeg_program()
    if program is None:
        return False
    return "srt\n" in subprocess.run([program, "-hide_banner", "-protocols"], capture_output=True, text=True).stdout


@contextmanager
def srt_receiver(port: int, received: Received | None = None, *, frames: int | None = None) -> Iterator[Received]:
    program = ffmpeg_program()
    assert program is not None, "there is no ffmpeg"
    listen = [program, "-loglevel", "error", "-f", "data", "-i", f"srt://127.0.0.1:{port}?mode=listener"]
    process = subprocess.Popen(
        [*listen, "-map", "0", "-c", "copy", "-flush_packets", "1", "-f", "data", "pipe:1"], stdout=subprocess.PIPE, bufsize=0
    )
    received = received or Received()
    thread = threading.Thread(
        target=lambda: read_film(process.stdout, received, frames=frames, options=AT_ONCE, format="mpegts")
    )
    thread.start()
    try:
        yield received
    finally:
        process.kill()
        process.wait()
        thread.join(30.0)
        assert process.stdout is not None
        process.stdout.close()
        assert not thread.is_alive(), "the receiver still waits"


def ndi_pixels(name: str, wait_s: float = 60.0) -> np.ndarray:
    """[H, W, 4]: the first picture of the one who sends under that name by NDI."""
    from cyndilib.finder import Finder
    from cyndilib.receiver import Receiver
    from cyndilib.video_frame import VideoFrameSync
    from cyndilib.wrapper.ndi_recv import RecvColorFormat

    give_up, receiver, frame = time.monotonic() + wait_s, Receiver(color_format=RecvColorFormat.RGBX_RGBA), VideoFrameSync()
    receiver.frame_sync.set_video_frame(frame)
    with Finder() as finder:
        while time.monotonic() < give_up:
            finder.wait_for_sources(0.2)
            found = next((each for each in finder.iter_sources() if each.stream_name == name), None)
            if found is not None and not receiver.is_connected():
                receiver.set_source(found)
            receiver.frame_sync.capture_video()
            if frame.xres:
                pixels: np.ndarray = frame.get_array().reshape(frame.yres, frame.xres, 4)
                return pixels
            time.sleep(0.05)
    raise TimeoutError(f"nobody sends as {name} by NDI")
