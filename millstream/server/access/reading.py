"""Reading what a client sent at that client's expense: on the event loop where it is small, in a thread where
it is large.

A thread makes nothing cheaper, and each call into C keeps the interpreter to itself: what bounds those is the
size and the number of values (`shapes.py`). Between such calls the event loop has its turn, so there is one
thread: of several the event loop would wait for each. Knows no message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from millstream.server.access.budgets import ClientAccount

T = TypeVar("T")

SMALL_BYTES = 16 * 2**10
"""Up to here the event loop reads it: a few milliseconds at worst, mostly far less than changing to a thread
takes."""


class PaidReader:
    """Make it on the event loop, and `close` it before the loop ends."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="millstream-read")
        self._turn = asyncio.Lock()

    def start(self) -> None:
        """Have its thread there from the beginning, as those of other pools: a count of threads then says
        something."""
        self._thread.submit(int)

    async def read(self, client: ClientAccount, num_bytes: int, parse: Callable[[], T]) -> T:
        """Return `parse()`, charging its CPU time to the client. Raises `ProtocolError` if none is left."""
        spent_s = 0.0

        def timed() -> T:
            nonlocal spent_s
            begun = time.thread_time()
            try:
                return parse()
            finally:
                spent_s = time.thread_time() - begun

        client.check_reading()
        if num_bytes <= SMALL_BYTES:
            try:
                return timed()
            finally:
                client.reading.owe(spent_s)
        async with self._turn:
            client.check_reading()  # again: others of the same client had their turns meanwhile
            reading = asyncio.get_running_loop().run_in_executor(self._thread, timed)
            reading.add_done_callback(lambda _: client.reading.owe(spent_s))
            return await asyncio.shield(
                reading
            )  # it runs to its end, and is paid, even where the client has left

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
