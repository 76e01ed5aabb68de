"""A line between two processes: bytes both ways, over one socket. Ends at once, on both sides, when one side
is gone.

One thread sends and one receives, the same or another; `hang_up` is for any. Of two processes that both have
much to say, one must listen meanwhile: the front has a thread that does nothing else. A message is a few
small parts and a few large ones: all leave in one call of the system where they can, and small ones are read
in one.
"""

from __future__ import annotations

import io
import socket
from contextlib import suppress

READ_BYTES = 4096
"""At a time, where less is asked for: a header and the metadata behind it."""

Parts = tuple[bytes | memoryview, ...]


class Line:
    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)  # those who watch decide how long is too long
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._reader = io.BufferedReader(io.FileIO(connection.fileno(), closefd=False), READ_BYTES)

    def send(self, *parts: bytes | memoryview) -> None:
        """Send the parts one after the other; wait until all of them have left."""
        assert all(parts), "a part has no bytes"
        while parts:
            parts = _without(parts, self._socket.sendmsg(parts))

    def receive(self, into: memoryview, *, what: str) -> None:
        """Read into `into`; wait until it is full."""
        assert into, f"{what} has no bytes"
        if self._reader.readinto(into) < len(into):
            raise ConnectionResetError("the other end is gone")

    def hang_up(self) -> None:
        """End the line: a wait on it, on either side, ends with an error."""
        with suppress(OSError):  # the other side was first
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the line once it is no longer used: nothing is held open afterwards."""
        self.hang_up()
        self._reader.close()
        self._socket.close()


def _without(parts: Parts, count: int) -> Parts:
    """Return the parts that are left when `count` bytes have left, the first of them cut."""
    for number, part in enumerate(parts):
        if count < len(part):
            return memoryview(part)[count:], *parts[number + 1 :]
        count -= len(part)
    return ()
