"""Frames through the gateway, for clients that do not follow: what either side says is passed on as it is.

A relayed client of the native protocol notices neither a move nor a death: the gateway follows in its place
(`client/following.py`). In other protocols a session stays where it is, and a lost replica is a lost
connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

import websockets
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect

from millstream.client.connection import MAX_BYTES, PING_S, PONG_S, Connection
from millstream.client.following import REPEATED, FollowedConnection, Open
from millstream.core.client_messages import AnyClientMessage, Opening, Steer
from millstream.core.errors import MillstreamError, Overloaded, ProtocolBroken
from millstream.core.server_messages import EndedMessage, ErrorMessage
from millstream.fleet.forward import path_and_query
from millstream.fleet.replica_link import ReplicaLink
from millstream.server.access.limits import ClientLimits
from millstream.server.access.reading import SMALL_BYTES
from millstream.server.protocol.messages import decode, encode
from millstream.server.transport.tasks import stop_all

CLOSE_NORMAL = 1000
CLOSE_TOO_LARGE = 1009
CLOSE_AGAIN = 1012
PATIENCE_S = ClientLimits().patience_s
MAX_SAID_BYTES = 8 * 2**20
"""Largest size of a client's message, as at a replica."""


async def open_link(here: ReplicaLink, ticket: str) -> Connection:
    return await Connection.open(here.address.url, ticket=ticket)


async def relay_native(websocket: WebSocket, opening: Opening, first: Connection, open_again: Open) -> None:
    """One client's session, wherever it goes. `first` is where it begins; `open_again` looks for it."""
    upstream = FollowedConnection(open_again, first)
    await upstream.hear()  # the client has heard the gateway's own hello
    await upstream.say(opening)
    await _both_ways(websocket, _up_native(websocket, upstream), _down_native(websocket, upstream))
    await upstream.close()


async def relay_any(websocket: WebSocket, here: ReplicaLink, ticket: str) -> None:
    """A connection of any other protocol, to one replica."""
    address = here.address.socket_url(
        path_and_query(websocket.scope["path"], websocket.scope["query_string"])
    )
    offered = websocket.scope.get("subprotocols") or None
    try:
        async with connect(
            address,
            additional_headers={"Authorization": f"Bearer {ticket}"},
            subprotocols=offered,
            proxy=None,
            compression=None,
            max_size=MAX_BYTES,
            close_timeout=1.0,
            ping_interval=PING_S,
            ping_timeout=PONG_S,
        ) as upstream:
            await websocket.accept(subprotocol=upstream.subprotocol)
            await _both_ways(websocket, _up(websocket, upstream), _down(websocket, upstream))
    except (OSError, asyncio.TimeoutError, websockets.WebSocketException) as error:
        raise ProtocolBroken(f"the replica does not answer: {error}") from None


async def _both_ways(websocket: WebSocket, up: Awaitable[None], down: Awaitable[int]) -> None:
    """Until either side has had enough; the client is told how the other one ended."""
    sending = asyncio.ensure_future(up)
    hearing = asyncio.ensure_future(down)
    try:
        await asyncio.wait({sending, hearing}, return_when=asyncio.FIRST_COMPLETED)
        code = hearing.result() if hearing.done() and not hearing.exception() else CLOSE_AGAIN
    finally:
        await stop_all([sending, hearing])
    await close(websocket, CLOSE_TOO_LARGE if isinstance(_failure(sending), TooLarge) else code)


class TooLarge(Exception):
    """A message that no replica would take."""


def _failure(task: asyncio.Future[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


async def close(websocket: WebSocket, code: int) -> None:
    with suppress(WebSocketDisconnect, RuntimeError):  # it may have gone meanwhile
        await websocket.close(code)


async def next_message(websocket: WebSocket) -> str | bytes | None:
    """Return the client's next message; None after it has disconnected. Raises `TooLarge`."""
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        return None
    text: str | None = message.get("text")
    data: bytes | None = message.get("bytes")
    said = text if text is not None else data
    if said is not None and len(said) > MAX_SAID_BYTES:
        raise TooLarge
    return said


async def _up_native(websocket: WebSocket, upstream: FollowedConnection) -> None:
    while (said := await next_message(websocket)) is not None:
        read = await _to_repeat(said)
        try:
            await (upstream.say_text(said) if read is None else upstream.say(read))
        except Overloaded as error:
            control_id = read.control.id if isinstance(read, Steer) else ""
            await _give(
                websocket, encode(ErrorMessage(code="refused", message=str(error), control_id=control_id))
            )


async def decode_apart(said: str) -> AnyClientMessage:
    """Decode a message; a large one in a thread, as it would hold up all others here."""
    if len(said) <= SMALL_BYTES:
        return decode(said)
    return await asyncio.to_thread(decode, said)


async def _to_repeat(said: str | bytes) -> AnyClientMessage | None:
    """Return the message if it must be sent again where it was not answered. One that cannot be read is left
    to the replica, which answers with the error."""
    if isinstance(said, bytes):
        return None
    with suppress(MillstreamError):
        message = await decode_apart(said)
        return message if isinstance(message, REPEATED) else None
    return None


async def _down_native(websocket: WebSocket, upstream: FollowedConnection) -> int:
    try:
        while True:
            data, heard = await upstream.hear_both()
            await _give(websocket, data)
            if isinstance(heard, EndedMessage):
                return CLOSE_NORMAL
    except (ProtocolBroken, WebSocketDisconnect):
        return CLOSE_AGAIN


async def _up(websocket: WebSocket, upstream: ClientConnection) -> None:
    with suppress(websockets.ConnectionClosed):
        while (said := await next_message(websocket)) is not None:
            await upstream.send(said)


async def _down(websocket: WebSocket, upstream: ClientConnection) -> int:
    try:
        while True:
            await _give(websocket, await upstream.recv())
    except websockets.ConnectionClosed as closed:
        return CLOSE_AGAIN if closed.rcvd is None else closed.rcvd.code


async def _give(websocket: WebSocket, data: str | bytes) -> None:
    """A client that does not take it in time is let go, as by a server."""
    giving = websocket.send_text(data) if isinstance(data, str) else websocket.send_bytes(data)
    try:
        await asyncio.wait_for(giving, PATIENCE_S)
    except asyncio.TimeoutError:
        raise WebSocketDisconnect from None
