"""A line between two processes: bytes both ways, over one socket. Ends at once, on both sides, when one side is gone.

One thread sends and one receives, the same or another; `hang_up` is for any. Of two processes that both have much to say, one
must listen meanwhile: the front has a thread that does nothing else. A message is a few small parts and a few large ones:
all leave in one call of the system where they can, and small ones are read in one.
"""

from __future__ import annotations

import socket
from contextlib import suppress

READ_BYTES = 4096
"""At a time, where less is asked for: a header and the metadata behind it."""


class Line:
    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)  # those who watch decide how long is too long
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._leaving: list[memoryview] = []
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._read = self._buffer[:0]
        """What has come and was not asked for yet."""

    def send(self, data: bytes | memoryview, *, what: str, more: bool = False) -> None:
        """Waits until all of it has left; with `more`, it leaves with what is sent next."""
        assert len(data), f"{what} has no bytes"
        self._leaving.append(memoryview(data))
        while self._leaving and not more:
            self._drop(self._socket.sendmsg(self._leaving))

    def receive(self, into: memoryview, *, what: str) -> None:
        """Waits until it is full."""
        assert len(into), f"{what} has no bytes"
        while into:
            if not self._read and len(into) >= READ_BYTES:
                into = into[self._come(into) :]
                continue
            self._read = self._read or self._buffer[: self._come(self._buffer)]
            count = min(len(into), len(self._read))
            into[:count] = self._read[:count]
            into, self._read = into[count:], self._read[count:]

    def _come(self, into: memoryview) -> int:
        count = self._socket.recv_into(into)
        if count == 0:
            raise ConnectionResetError("the other end is gone")
        return count

    def _drop(self, count: int) -> None:
        """So many bytes have left."""
        while count >= len(self._leaving[0]):
            count -= len(self._leaving.pop(0))
            if not self._leaving:
                return
        self._leaving[0] = self._leaving[0][count:]

    def hang_up(self) -> None:
        """Whoever waits on the line, on either side, is told that it is over."""
        with suppress(OSError):  # the other side was first
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """When nobody uses it any more: nothing is held open afterwards."""
        self.hang_up()
        self._socket.close()
