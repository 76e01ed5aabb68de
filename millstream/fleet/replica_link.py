"""The gateway's end of a link to one replica (`fleet/link.py`): its last report, orders that are waited for,
and its end."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import websockets
from websockets.asyncio.client import ClientConnection, connect

from millstream.core.client_messages import ProtocolError
from millstream.core.errors import (
    MillstreamError,
    NotAllowed,
    NotKept,
    Overloaded,
    ProtocolBroken,
    UnknownSession,
)
from millstream.fleet import link
from millstream.fleet.tickets import LINK, Right, issue
from millstream.serving.admission_types import Request

ORDER_S = 45.0
"""For an order to be carried out: a state may be large, and storage slow."""
PLACE_S = 5.0
"""For a session that moves to have its place; less than it stands still for."""
SILENT_S = 5.0
"""A replica that reports nothing for so long is taken for dead."""


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """One start of a replica, and where it listens."""

    replica_id: str
    pool: str
    url: str

    def socket_url(self, path: str) -> str:
        return "ws" + self.url.removeprefix("http") + path


@dataclass(eq=False, slots=True)
class ReplicaLink:
    address: ReplicaAddress
    secret: bytes
    heard: Callable[[ReplicaLink], None]
    """Called after every report."""
    report: link.Report | None = None
    """The last one."""
    _socket: ClientConnection | None = None
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _asked: dict[int, asyncio.Future[link.OrderDone]] = field(default_factory=dict)

    @property
    def replica_id(self) -> str:
        return self.address.replica_id

    @property
    def is_ready(self) -> bool:
        return self.report is not None and not self.report.trouble

    def ticket(
        self, right: Right, session_id: str = "", *, key: str = "", request: str = "", client: str = ""
    ) -> str:
        """Lets a client in there, or the gateway itself; `client` is who the gateway speaks for."""
        return issue(
            self.secret,
            right=right,
            session_id=session_id,
            replica_id=self.replica_id,
            key=key,
            now=time.time(),
            request=request,
            client=client,
        )

    async def run(self) -> str:
        """Listen until the replica is gone; why."""
        try:
            address = f"{self.address.socket_url(LINK)}?ticket={self.ticket('link')}"
            async with connect(
                address, proxy=None, compression=None, max_size=2**26, close_timeout=1.0
            ) as self._socket:
                while True:
                    self._handle(await asyncio.wait_for(self._socket.recv(decode=False), SILENT_S))
        except asyncio.TimeoutError:
            return f"it said nothing for {SILENT_S:g} s"
        except (OSError, websockets.WebSocketException) as error:
            return str(error) or "it does not answer"
        except msgspec.MsgspecError as error:
            return f"it is of another version: {error}"
        finally:
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(ProtocolBroken("the replica is gone"))
                    future.exception()  # seen, also where no caller waits any more

    async def order(self, order: link.AnyOrder) -> Request | None:
        """Have it done. Raises what is wrong with it, and `ProtocolBroken` where the replica is gone."""
        if self._socket is None:
            raise ProtocolBroken("the replica is not there yet")
        number = next(self._numbers)
        self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            await self._socket.send(link.encode(msgspec.structs.replace(order, number=number)))
            done = await asyncio.wait_for(self._asked[number], ORDER_S)
        except (asyncio.TimeoutError, websockets.WebSocketException):
            raise ProtocolBroken("the replica does not answer") from None
        finally:
            del self._asked[number]
        if done.error:
            raise _raised(done)
        return done.request

    def _handle(self, data: bytes) -> None:
        message = link.to_gateway.decode(data)
        if isinstance(message, link.Report):
            self.report = message
            self.heard(self)
        elif message.number in self._asked and not self._asked[message.number].done():
            self._asked[message.number].set_result(message)


async def hand_on(session_id: str, key: str, source: ReplicaLink, target: ReplicaLink) -> None:
    """Move a session: saved there, restored here, its people told. Whatever goes wrong, it stays in one
    place."""
    await source.order(link.HandOverSession(session_id=session_id))
    try:
        await target.order(link.TakeOver(session_id=session_id, key=key, patience_s=PLACE_S))
        try:
            await source.order(
                link.Release(session_id=session_id, url=target.address.url, replica_id=target.replica_id)
            )
        except MillstreamError:
            await target.order(link.GiveUp(session_id=session_id))
            raise
    except MillstreamError:
        await source.order(link.TakeBack(session_id=session_id))
        raise


async def end_copy(session_id: str, here: ReplicaLink) -> None:
    """End the copy of a session that has its place elsewhere: this replica was taken for dead, or a client
    came to it too late."""
    with suppress(MillstreamError):  # it may have gone by itself
        await here.order(link.GiveUp(session_id=session_id))


def _raised(done: link.OrderDone) -> MillstreamError:
    """As it was raised there, as far as that matters here."""
    match done.code:
        case "not_found":
            return UnknownSession(done.error)
        case "refused":
            return Overloaded(done.error)
        case "not_kept":
            return NotKept(done.error)
        case "read_only":
            return NotAllowed(done.error)
    return ProtocolError("bad_message", done.error)
