"""A line between two processes: bytes both ways, over one socket. Ends at once, on both sides, when one side is gone.

What is sent leaves on a thread of its own: two processes that both have much to say never wait for each other to listen. One
thread sends and receives; `close` is for any.
"""

from __future__ import annotations

import queue
import socket
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Leaving:
    """On its way. What is sent must not change before `wait`."""

    x: Tensor
    left: Future[None]

    def wait(self) -> Tensor:
        self.left.result()
        return self.x


@dataclass(frozen=True, slots=True)
class ReadyTensor:
    """One that nobody has to wait for."""

    x: Tensor

    def wait(self) -> Tensor:
        return self.x


class Line:
    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)  # those who watch decide how long is too long
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._outgoing: queue.SimpleQueue[Leaving | None] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send, name="millstream-line", daemon=True)
        self._sender.start()

    def send(self, x: Tensor, *, to: int, what: str) -> Leaving:
        assert x.device.type == "cpu", f"{what} leaves from host memory, not from {x.device}"
        assert x.is_contiguous(), f"{what} is not one run of memory"
        leaving = Leaving(x, Future())
        self._outgoing.put(leaving)
        return leaving

    def receive(self, x: Tensor, *, source: int, what: str) -> ReadyTensor:
        """Waits until `x` is full."""
        assert x.is_contiguous(), f"{what} does not fit one run of memory"
        view = x.numpy().data
        while view:
            count = self._socket.recv_into(view)
            if count == 0:
                raise ConnectionResetError("the other end is gone")
            view = view[count:]
        return ReadyTensor(x)

    def hang_up(self) -> None:
        """Whoever waits on the line, on either side, is told that it is over."""
        with suppress(OSError):  # the other side was first
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """By the thread that uses it: nothing is held open afterwards."""
        self.hang_up()
        self._outgoing.put(None)
        self._sender.join()
        self._socket.close()

    def _send(self) -> None:
        while (leaving := self._outgoing.get()) is not None:
            try:
                self._socket.sendall(leaving.x.numpy().data)
            except OSError as error:
                leaving.left.set_exception(error)
            else:
                leaving.left.set_result(None)
