"""Pictures through the gateway, for clients that do not follow: what either side says is passed on as it is.

A relayed client of the native protocol notices neither a move nor a death: the gateway follows in its place
(`client/following.py`). In other protocols a session stays where it is, and a lost replica is a lost connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

import websockets
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect

from millstream.client.connection import MAX_BYTES, Connection
from millstream.client.following import REPEATED, FollowedConnection, Open
from millstream.core.client_messages import AnyClientMessage, Opening
from millstream.core.errors import MillstreamError, ProtocolBroken
from millstream.core.server_messages import EndedMessage
from millstream.fleet.replica_link import ReplicaLink
from millstream.server.protocol.messages import decode
from millstream.server.transport.tasks import stop_all

CLOSE_NORMAL, CLOSE_AGAIN = 1000, 1012


async def open_link(here: ReplicaLink, session_id: str, key: str) -> Connection:
    return await Connection.open(here.address.url, ticket=here.ticket(session_id, key))


async def relay_native(websocket: WebSocket, opening: Opening, first: Connection, open_again: Open) -> None:
    """One client's session, wherever it goes. `first` is where it begins; `open_again` looks for it."""
    upstream = FollowedConnection(open_again, first)
    await upstream.hear()  # the client has heard the gateway's own hello
    await upstream.say(opening)
    await _both_ways(websocket, _up_native(websocket, upstream), _down_native(websocket, upstream))
    await upstream.close()


async def relay_any(websocket: WebSocket, here: ReplicaLink, ticket: str) -> None:
    """A connection of any other protocol, to one replica."""
    query = "&".join(filter(None, (websocket.url.query, f"ticket={ticket}")))
    address = here.address.socket_url(f"{websocket.url.path}?{query}")
    offered = websocket.scope.get("subprotocols") or None
    try:
        async with connect(
            address, subprotocols=offered, proxy=None, compression=None, max_size=MAX_BYTES, close_timeout=1.0
        ) as upstream:
            await websocket.accept(subprotocol=upstream.subprotocol)
            await _both_ways(websocket, _up(websocket, upstream), _down(websocket, upstream))
    except (OSError, websockets.WebSocketException) as error:
        raise ProtocolBroken(f"the replica does not answer: {error}") from None


async def _both_ways(websocket: WebSocket, up: Awaitable[None], down: Awaitable[int]) -> None:
    """Until either side has had enough; the client is told how the other one ended."""
    sending, hearing = asyncio.ensure_future(up), asyncio.ensure_future(down)
    try:
        await asyncio.wait({sending, hearing}, return_when=asyncio.FIRST_COMPLETED)
        code = hearing.result() if hearing.done() and not hearing.exception() else CLOSE_AGAIN
    finally:
        await stop_all([sending, hearing])
    with suppress(WebSocketDisconnect, RuntimeError):  # it may have gone meanwhile
        await websocket.close(code)


async def _take(websocket: WebSocket) -> str | bytes | None:
    """What the client says next; None when it has gone."""
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        return None
    text: str | None = message.get("text")
    data: bytes | None = message.get("bytes")
    return text if text is not None else data


async def _up_native(websocket: WebSocket, upstream: FollowedConnection) -> None:
    while (said := await _take(websocket)) is not None:
        read = _to_repeat(said)
        await (upstream.say_text(said) if read is None else upstream.say(read))


def _to_repeat(said: str | bytes) -> AnyClientMessage | None:
    """What must be said again where it was not answered. What cannot be read, the replica says why."""
    if isinstance(said, bytes):
        return None
    with suppress(MillstreamError):
        message: AnyClientMessage = decode(said)
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
        while (said := await _take(websocket)) is not None:
            await upstream.send(said)


async def _down(websocket: WebSocket, upstream: ClientConnection) -> int:
    try:
        while True:
            await _give(websocket, await upstream.recv())
    except websockets.ConnectionClosed as closed:
        return CLOSE_AGAIN if closed.rcvd is None else closed.rcvd.code


async def _give(websocket: WebSocket, data: str | bytes) -> None:
    await (websocket.send_text(data) if isinstance(data, str) else websocket.send_bytes(data))
