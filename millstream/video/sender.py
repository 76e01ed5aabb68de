"""A program that sends pictures to an address: frames at its standard input, H.264 for live out by RTMP or
SRT, or the frames as they are to a virtual camera of this machine or by NDI.

Started by a server as `python -m millstream.video.sender`. A process of its own: FFmpeg holds Python's lock
while it connects, and whoever waits for a receiver that hangs must be able to end that. Standard input is one
line of JSON (`Sending`), then the frames, each after the moment it is shown at; it ends with that. Whatever
is written to standard output says that the receiver takes pictures; the first line of standard error, why it
does not. SRT is spoken by the program ffmpeg, because PyAV's own FFmpeg is built without it; NDI by the
package cyndilib.
Shapes: H height, W width, 3 is RGB.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import av
import numpy as np
from av.video.frame import PictureType

from millstream.video.encoders import BT709

PATIENCE_S = 10
"""After so long without a frame sent the program ends, wherever it waits."""
KEY_FRAMES_S = 2.0
"""From one key frame to the next: what live services ask for, and how long somebody who joins there waits at
most."""
CLOCK_HZ = 1000
"""As RTMP counts."""
FRAME_HEADER = struct.Struct("<d")
"""Seconds."""
LIVE = {
    "preset": "veryfast",
    "tune": "zerolatency",
    "bf": "0",
    "threads": "2",
    "forced-idr": "1",
    "sc_threshold": "0",
    **BT709,
}
FLV = {"flvflags": "no_duration_filesize", "flush_packets": "1"}
QUIET = ("-hide_banner", "-loglevel", "error", "-progress", "pipe:1", "-stats_period", "0.5")
AS_IT_IS = ("-probesize", "32", "-analyzeduration", "1", "-f", "data", "-raw_packet_size", "1316")
"""Bytes in, bytes out, in packets of seven of MPEG-TS's: nothing is looked into, so nothing is waited for."""
NO_PICTURE = b"\x47\x1f\xff\x10" + 184 * b"\xff"
"""A packet of MPEG-TS that every receiver passes over."""
CAMERA_FORMAT = "v4l2"
DEVICES = Path("/dev")
NOT_A_CAMERA = "; it must be a device of v4l2loopback that this user may write to, and nobody else does"
FFMPEG_SETTING = "MILLSTREAM_FFMPEG"
NO_FFMPEG = (
    "SRT needs the program ffmpeg: pip install 'millstream[srt]', or have one on the PATH or in "
    "MILLSTREAM_FFMPEG"
)
NO_NDI = "NDI needs its library: pip install 'millstream[ndi]'"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sending:
    url: str
    height: int
    width: int
    fps: float
    """About: what is shown when is said frame by frame."""
    kbps: int


def ffmpeg_program() -> str | None:
    """Find the program: what MILLSTREAM_FFMPEG names, that of imageio-ffmpeg, which is tested, or one on the
    PATH."""
    if named := os.environ.get(FFMPEG_SETTING):
        return shutil.which(named)
    try:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (
        ModuleNotFoundError,
        RuntimeError,
    ):  # not installed, or without a program for this kind of machine
        return shutil.which("ffmpeg")


def missing(url: str) -> str:
    """Return what this machine lacks for such an address, and how to get it; empty where nothing."""
    scheme, _, name = url.partition("://")
    if scheme == "srt" and ffmpeg_program() is None:
        return NO_FFMPEG
    if scheme == "ndi" and find_spec("cyndilib") is None:
        return NO_NDI
    if scheme == "v4l2" and not (DEVICES / name).exists():
        number = name.removeprefix("video")
        return (
            f"there is no {DEVICES / name}; with v4l2loopback: sudo modprobe v4l2loopback "
            f"video_nr={number} exclusive_caps=1"
        )
    return ""


def send(asked: Sending, pipe: IO[bytes]) -> None:
    """Send until there are no more frames. Raises the error of the receiver or of the way there."""
    frames = _frames(pipe, (asked.height, asked.width))
    if asked.url.startswith("ndi:"):
        _send_by_ndi(asked, frames)
    else:
        _send_encoded(asked, frames)


def _send_encoded(asked: Sending, frames: Iterator[tuple[float, np.ndarray]]) -> None:
    bits = {"b": f"{asked.kbps}k", "maxrate": f"{asked.kbps}k", "bufsize": f"{asked.kbps}k"}
    codec, options, colours = (
        ("rawvideo", {}, "ITU601") if is_camera(asked.url) else ("libx264", LIVE | bits, "ITU709")
    )
    first_s = None
    next_key_s = 0.0
    with _opened(asked.url) as container:
        stream = container.add_stream(codec, rate=_rate(asked), options=options)
        stream.height = asked.height
        stream.width = asked.width
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = Fraction(1, CLOCK_HZ)
        stream.codec_context.gop_size = 2**16  # key frames are counted in seconds, below
        container.start_encoding()
        if not is_srt(asked.url):
            print("open", flush=True)
        for shown_s, frame_HW3 in frames:
            first_s = shown_s if first_s is None else first_s
            at_s = shown_s - first_s
            frame = av.VideoFrame.from_ndarray(frame_HW3, format="rgb24").reformat(
                format="yuv420p", dst_colorspace=colours
            )
            frame.pts = round(at_s * CLOCK_HZ)
            frame.time_base = Fraction(1, CLOCK_HZ)
            if at_s >= next_key_s:
                frame.pict_type = PictureType.I
                next_key_s = at_s + KEY_FRAMES_S
            container.mux(stream.encode(frame))
            signal.alarm(PATIENCE_S)


def _send_by_ndi(asked: Sending, frames: Iterator[tuple[float, np.ndarray]]) -> None:
    """It is offered under its name to whoever is in the network; how many take it nobody need know."""
    from cyndilib.sender import Sender
    from cyndilib.video_frame import VideoSendFrame
    from cyndilib.wrapper.ndi_structs import FourCC

    shown = VideoSendFrame()
    pixels_HW4 = np.full((asked.height, asked.width, 4), 255, np.uint8)
    shown.set_resolution(asked.width, asked.height)
    shown.set_frame_rate(_rate(asked))
    shown.set_fourcc(FourCC.RGBX)
    sender = Sender(asked.url.partition("://")[2], clock_video=False)  # frames come when they are due
    sender.set_video_frame(shown)
    with sender:
        print("open", flush=True)
        for _, frame_HW3 in frames:
            pixels_HW4[..., :3] = frame_HW3
            sender.write_video(pixels_HW4.reshape(-1))
            signal.alarm(PATIENCE_S)


def is_srt(url: str) -> bool:
    return url.startswith("srt:")


def is_camera(url: str) -> bool:
    return url.startswith("v4l2:")


def _rate(asked: Sending) -> Fraction:
    return Fraction(asked.fps).limit_denominator(1001)


def _frames(pipe: IO[bytes], size: tuple[int, int]) -> Iterator[tuple[float, np.ndarray]]:
    """When each is shown, and its pixels."""
    shape = (*size, 3)
    whole = FRAME_HEADER.size + math.prod(shape)
    while len(data := pipe.read(whole)) == whole:
        yield (
            FRAME_HEADER.unpack_from(data)[0],
            np.frombuffer(data, np.uint8, offset=FRAME_HEADER.size).reshape(shape),
        )


@contextmanager
def _opened(url: str) -> Iterator[Any]:
    """A container whose bytes go there."""
    if is_srt(url):
        with (
            _srt(url) as pipe,
            av.open(pipe, "w", format="mpegts", container_options={"flush_packets": "1"}) as container,
        ):
            yield container
    elif is_camera(url):
        with av.open(str(DEVICES / url.partition("://")[2]), "w", format=CAMERA_FORMAT) as container:
            yield container
    else:
        with av.open(url, "w", format="flv", container_options=FLV) as container:
            yield container


@contextmanager
def _srt(url: str) -> Iterator[IO[bytes]]:
    """Yield a pipe to the address; ffmpeg reports on our own standard output that bytes go there."""
    program = ffmpeg_program()
    if program is None:
        sys.exit(NO_FFMPEG)
    copied = ("-i", "pipe:0", "-map", "0", "-c", "copy", "-flush_packets", "1", "-f", "data")
    process = subprocess.Popen([program, *QUIET, *AS_IT_IS, *copied, url], stdin=subprocess.PIPE, bufsize=0)
    assert process.stdin is not None
    try:
        process.stdin.write(NO_PICTURE)  # it connects once there is something to send
        yield process.stdin
    finally:
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(PATIENCE_S)


def main() -> None:
    signal.alarm(PATIENCE_S)
    pipe = sys.stdin.buffer
    asked = Sending(**json.loads(pipe.readline()))
    try:
        send(asked, pipe)
    except (OSError, av.FFmpegError) as error:
        hint = NOT_A_CAMERA if is_camera(asked.url) else ""
        sys.exit(f"{error.strerror or error}{hint}")


if __name__ == "__main__":
    main()
