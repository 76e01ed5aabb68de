"""A line between two processes: bytes both ways, over one socket. Ends at once, on both sides, when one side is gone.

One thread sends and one receives, the same or another; `hang_up` is for any. Of two processes that both have much to say, one
must listen meanwhile: the front has a thread that does nothing else.
"""

from __future__ import annotations

import socket
from contextlib import suppress


class Line:
    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)  # those who watch decide how long is too long
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection

    def send(self, data: bytes | memoryview, *, what: str) -> None:
        """Waits until all of it has left."""
        assert len(data), f"{what} has no bytes"
        self._socket.sendall(data)

    def receive(self, into: memoryview, *, what: str) -> None:
        """Waits until it is full."""
        assert len(into), f"{what} has no bytes"
        while into:
            count = self._socket.recv_into(into)
            if count == 0:
                raise ConnectionResetError("the other end is gone")
            into = into[count:]

    def hang_up(self) -> None:
        """Whoever waits on the line, on either side, is told that it is over."""
        with suppress(OSError):  # the other side was first
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """When nobody uses it any more: nothing is held open afterwards."""
        self.hang_up()
        self._socket.close()
