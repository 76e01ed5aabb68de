"""Real receivers of what a session sends: RTMP by PyAV on a thread, SRT by the program ffmpeg where there is
one with it."""

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
class ReceivedVideo:
    frames: list[tuple[float, float, Any]] = field(default_factory=list)
    """Frames as (arrival time, time in the stream, what `look_at` kept of it)."""
    look_at: Callable[[np.ndarray], Any] = lambda pixels_HW3: pixels_HW3
    """Function that turns a frame (H, W, 3) into what is kept of it."""
    key_frames: list[float] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def read_film(source: object, received: ReceivedVideo, *, frames: int | None, **options: object) -> None:
    """Until so many have come, or it ends."""
    try:
        with av.open(source, **options) as container:
            for frame in container.decode(video=0):
                came = time.monotonic()
                pixels = frame.to_ndarray(format="rgb24")
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
    port: int, received: ReceivedVideo | None = None, *, frames: int | None = None, wait_s: float = 30.0
) -> Iterator[ReceivedVideo]:
    """Takes one stream, whatever it is called; hangs up after so many frames."""
    received = received or ReceivedVideo()
    source = f"rtmp://127.0.0.1:{port}/live/key"
    options = AT_ONCE | {"listen": "1"}

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
    return (
        "srt\n"
        in subprocess.run([program, "-hide_banner", "-protocols"], capture_output=True, text=True).stdout
    )


@contextmanager
def srt_receiver(
    port: int, received: ReceivedVideo | None = None, *, frames: int | None = None
) -> Iterator[ReceivedVideo]:
    program = ffmpeg_program()
    assert program is not None, "there is no ffmpeg"
    listen = [program, "-loglevel", "error", "-f", "data", "-i", f"srt://127.0.0.1:{port}?mode=listener"]
    process = subprocess.Popen(
        [*listen, "-map", "0", "-c", "copy", "-flush_packets", "1", "-f", "data", "pipe:1"],
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    received = received or ReceivedVideo()
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
