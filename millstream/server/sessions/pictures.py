"""Pictures that clients send to begin from, fitted to their stream's size on a thread of its own.

One at a time: a picture of 50 megapixels takes 150 MB while it is scaled, and a clip some seconds. Up to
`MAX_WAITING` wait, one more is refused. Knows no session.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from millstream.core.config import StreamConfig
from millstream.core.errors import Overloaded
from millstream.server.sessions.threads import start_threads
from millstream.video.pictures import Fit, FittedPicture, fit_file

MAX_WAITING = 16
MAX_CLIP_PIXELS = 500_000_000
"""Most pixels of a client's clip, all frames together: 240 frames of 1080p. All clients wait for one thread."""


class PictureFitter:
    """Make it on the event loop, and `close` it before the loop ends."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="millstream-picture")
        self._waiting = 0

    def start(self) -> None:
        """Have its thread there from the beginning, as those of other pools."""
        start_threads(self._thread, 1)

    async def fit(self, data: bytes, config: StreamConfig, fit: Fit) -> FittedPicture:
        """Read a picture, or the end of a clip, as large as a stream's frames. Raises what is wrong with it."""
        if self._waiting >= MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} pictures wait to be read already; send it again in a moment")
        work = partial(
            fit_file,
            data,
            height=config.height,
            width=config.width,
            num_frames=config.begin_frames,
            fit=fit,
            max_pixels=MAX_CLIP_PIXELS,
        )
        self._waiting += 1
        reading = asyncio.get_running_loop().run_in_executor(self._thread, work)
        reading.add_done_callback(self._done)
        return await asyncio.shield(reading)  # it runs to its end, and counts until then

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _done(self, reading: asyncio.Future[FittedPicture]) -> None:
        self._waiting -= 1
        if not reading.cancelled():
            reading.exception()  # a client that has left hears of no error, and nothing is logged
