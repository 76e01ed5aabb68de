"""A line between two processes: bytes both ways, over one socket. Ends at once, on both sides, when one side is gone.

One thread sends and one receives, the same or another; `hang_up` is for any. Of two processes that both have much to say, one
must listen meanwhile: the front has a thread that does nothing else.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from torch import Tensor


class Line:
    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)  # those who watch decide how long is too long
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection

    def send(self, x: Tensor, *, what: str) -> None:
        """Waits until `x` has left."""
        assert x.device.type == "cpu", f"{what} leaves from host memory, not from {x.device}"
        assert x.is_contiguous(), f"{what} is not one run of memory"
        self._socket.sendall(x.numpy().data)

    def receive(self, x: Tensor, *, what: str) -> None:
        """Waits until `x` is full."""
        assert x.is_contiguous(), f"{what} does not fit one run of memory"
        view = x.numpy().data
        while view:
            count = self._socket.recv_into(view)
            if count == 0:
                raise ConnectionResetError("the other end is gone")
            view = view[count:]

    def hang_up(self) -> None:
        """Whoever waits on the line, on either side, is told that it is over."""
        with suppress(OSError):  # the other side was first
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """When nobody uses it any more: nothing is held open afterwards."""
        self.hang_up()
        self._socket.close()
