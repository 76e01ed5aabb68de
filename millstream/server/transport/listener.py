"""Accepting connections: counted for their address before anything is spent on them, with descriptors left
for what runs.

It takes the place of asyncio's server. That one writes a traceback for each connection it would have accepted
while the process is out of file descriptors, and counts nobody, in a TLS handshake least of all. Knows no
HTTP but its 503.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import resource
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from millstream.core.errors import Overloaded
from millstream.server.access.shares import Holdings, Quota, client_at

log = logging.getLogger(__name__)

CONNECTIONS = Quota(512)
"""Most connections of one client (of all, an eighth more); fewer if file descriptors are short."""
HANDSHAKE_S = 10.0
"""For a client to finish its TLS handshake."""
RETRY_S = 0.1
"""Between two looks at whether descriptors are free again."""
AT_ONCE = 16
"""Connections accepted before the event loop goes on: a flood of them is not all that it does."""
WANTED_DESCRIPTORS = 4096
"""Asked of the system where its own limit for one process is lower, as most set it to 1024."""
OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def raise_descriptor_limit() -> None:
    """As far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(WANTED_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@dataclass(frozen=True, slots=True)
class DescriptorShare:
    """How much of the process's file descriptors connections may take: half of what is free at the start.

    Sessions, journals and encoders have the other half, and of that a half is a reserve: connections never
    take a descriptor of number `reserve_from` or above. The system hands out the lowest number that is free,
    so a number in the reserve means that all below are taken.
    """

    limit: int
    connections: Quota
    reserve_from: int

    @classmethod
    def of(cls, limit: int, num_open: int, most: Quota) -> DescriptorShare:
        """`limit` for the process, of which `num_open` are taken before the first connection."""
        free = max(0, limit - num_open)
        quota = most if free // 2 >= most.total else Quota(max(1, (free // 2) * most.most // most.total))
        return cls(limit, quota, limit - free // 4)

    @classmethod
    def of_this_process(cls, listener: socket.socket, most: Quota) -> DescriptorShare:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        limit = 2**30 if soft == resource.RLIM_INFINITY else soft
        return cls.of(limit, _next_descriptor(listener) or limit, most)


class CountedSocket(socket.socket):
    """An accepted connection that says when its descriptor is free again, by whatever way it ended."""

    def __init__(self, accepted: socket.socket, on_close: Callable[[], None]) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        self.setblocking(False)
        self._on_close = on_close

    def close(self) -> None:
        super().close()
        self._on_close()


class Listener:
    """Accepts on one socket until it is closed. `by_address` is false where a proxy's connections are
    everybody's."""

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        by_address: bool,
        tls: ssl.SSLContext | None = None,
        most: Quota | None = None,
    ) -> None:
        listening.setblocking(False)
        self._socket = listening
        self._make_protocol = make_protocol
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        wanted = most or CONNECTIONS
        self._share = DescriptorShare.of_this_process(listening, wanted)
        self._held = Holdings(self._share.connections, "connections") if by_address else None
        if self._share.connections != wanted:
            log.warning(
                "%d open files leave room for %d connections, %d of one address; for more, raise the limit "
                "(ulimit -n)",
                self._share.limit, self._share.connections.total, self._share.connections.most,
            )  # fmt: skip
        self._connecting: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.ensure_future(self._accept_on())

    def close(self) -> None:
        """Accept nothing more, and end handshakes that are under way."""
        for task in (self._accepting, *self._connecting):
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.wait({self._accepting, *self._connecting})

    async def _accept_on(self) -> None:
        while True:
            for _ in range(AT_ONCE):
                await self._accept()
            await asyncio.sleep(0)  # accepting does not wait while there are connections to accept

    async def _accept(self) -> None:
        """The next connection; a short pause instead where descriptors are running out."""
        if (number := _next_descriptor(self._socket)) is None or number >= self._share.reserve_from:
            await self._pause()
            return
        try:
            accepted, peer = await self._loop.sock_accept(self._socket)
        except ConnectionAbortedError:
            return  # the peer hung up meanwhile
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                await self._pause()
            else:
                log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(RETRY_S)
            return
        self._admit(accepted, peer)

    async def _pause(self) -> None:
        log.warning(
            "out of file descriptors (%d for this process): new connections wait until some are free; "
            "raise the limit (ulimit -n)", self._share.limit,
        )  # fmt: skip
        await asyncio.sleep(RETRY_S)

    def _admit(self, accepted: socket.socket, peer: tuple[str, int]) -> None:
        place = ExitStack()
        if self._held is not None:
            client = client_at(peer)
            try:
                place.enter_context(self._held.one_by(client))
            except Overloaded as error:
                log.warning("connections are refused, the last one from %s: %s", client, error)
                _refuse(accepted, str(error), encrypted=self._tls is not None)
                return
        counted = CountedSocket(accepted, place.close)
        task = asyncio.ensure_future(self._connect(counted))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        task.add_done_callback(lambda task: counted.close() if task.cancelled() else None)

    async def _connect(self, peer: socket.socket) -> None:
        """Hand it to a protocol of its own, after the handshake where there is one."""
        patience_s = None if self._tls is None else HANDSHAKE_S
        with suppress(OSError):  # hung up, too slow, or no TLS: it is closed, and nothing went wrong here
            await self._loop.connect_accepted_socket(
                self._make_protocol, peer, ssl=self._tls, ssl_handshake_timeout=patience_s
            )


def _next_descriptor(listening: socket.socket) -> int | None:
    """The number that a new descriptor would have; None where there is none left."""
    try:
        number = os.dup(listening.fileno())
    except OSError:
        return None
    os.close(number)
    return number


def _refuse(accepted: socket.socket, why: str, *, encrypted: bool) -> None:
    """Close it, with the reason where it can be told without waiting: not below TLS."""
    with accepted, suppress(OSError):
        if encrypted:
            return
        body = json.dumps({"error": {"code": "refused", "message": why}}).encode()
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        accepted.setblocking(False)
        accepted.send(head.encode() + body)
        accepted.shutdown(socket.SHUT_WR)
        accepted.recv(
            2**16
        )  # what is left unread would have the system reset the connection and the answer with it
