"""WebRTC's two tracks: a session's pictures on their way out, and a camera's on their way in.

Knows frames and clocks; nothing of offers, channels or what is said. Bounded: of the chunks that wait to be
shown the newest few keep their frames (`server/sessions/outbox.py`), and of a camera's frames only as many
are taken as the session can use.
Shapes: H height, W width, 3 is RGB.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from fractions import Fraction
from typing import cast

import av
import numpy as np
from aiortc import MediaStreamTrack
from aiortc.mediastreams import MediaStreamError
from PIL import Image, ImageOps

from millstream.server.access.limits import ClientLimits, TokenBucket
from millstream.server.sessions.live_session import LiveSession
from millstream.server.sessions.outbox import EncodedChunk, Outbox
from millstream.server.sessions.paced_frames import PacedFrames
from millstream.video.encoding import Frames

CLOCK_HZ = 90_000
"""Ticks a second of RTP's video clock."""


class PictureTrack(MediaStreamTrack):
    """Raw pictures of one session, one frame at a time, when it is due."""

    kind = "video"

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self._shape = (*size, 3)
        self._pictures = Outbox()
        self._frames = PacedFrames(self._pictures)
        self._last_pts = -1

    def show(self, picture: EncodedChunk) -> None:
        assert picture.format == "raw", f"a track shows raw pictures, got {picture.format}"
        self._pictures.put(picture)

    def finish(self) -> None:
        """No more will come; what waits is still shown."""
        self._pictures.finish()

    async def recv(self) -> av.VideoFrame:
        """The next frame, when it is due."""
        shown = await self._frames.next()
        if shown is None:
            self.stop()
            raise MediaStreamError("the stream has ended")
        part, elapsed_s = shown
        frame = av.VideoFrame.from_ndarray(np.frombuffer(part, np.uint8).reshape(self._shape), format="rgb24")
        self._last_pts = max(self._last_pts + 1, round(elapsed_s * CLOCK_HZ))
        frame.pts = self._last_pts
        frame.time_base = Fraction(1, CLOCK_HZ)
        return frame


async def feed_camera(
    track: MediaStreamTrack, live_session: LiveSession, pool: Executor, limits: ClientLimits
) -> None:
    """Give a session what a camera sees, at the session's own rate, until either ends.

    A frame that comes while another is being fitted is let go: aiortc queues without end what is not taken at
    once.
    """
    feed = live_session.request.feed
    assert feed is not None, f"{live_session.session_id} was opened without input"
    loop = asyncio.get_running_loop()
    next_s = 0.0
    bucket = TokenBucket(limits.frames_per_s, limits.frames_per_s * limits.burst_s)
    fitting: asyncio.Future[None] | None = None

    async def fit(frame: av.VideoFrame, size: tuple[int, int]) -> None:
        live_session.push(await loop.run_in_executor(pool, fitted, frame, size))

    while not live_session.ended:
        try:
            frame = cast(av.VideoFrame, await track.recv())
        except MediaStreamError:
            return
        seen_s = float(frame.time or 0.0)
        busy = fitting is not None and not fitting.done()
        if (
            busy
            or seen_s < next_s
            or not bucket.try_spend()
            or frame.width * frame.height > limits.max_frame_pixels
        ):
            continue
        if fitting is not None:
            fitting.result()  # raises what went wrong with the last one
        next_s = max(next_s + 1 / live_session.fps, seen_s)
        fitting = asyncio.ensure_future(fit(frame, feed.size))


def fitted(frame: av.VideoFrame, size: tuple[int, int]) -> Frames:
    """[H, W, 3]: the frame's middle, scaled to fill."""
    height, width = size
    return np.asarray(ImageOps.fit(frame.to_image(), (width, height), Image.Resampling.BILINEAR))
