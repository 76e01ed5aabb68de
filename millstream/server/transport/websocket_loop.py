"""A WebSocket and somebody who answers it: both listen and send, side by side, until either is over.

Knows no dialect; what is said and what it means is the handler's business. A client that goes leaves at once;
one that is sent away is told why first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from millstream.server.access.budgets import ClientAccount
from millstream.server.access.limits import ClientLimits
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.outbox import ClientGone, Outbox, OutboxLimits
from millstream.server.transport.tasks import stop_all

SUBPROTOCOL = "millstream.v1"
CLOSE_NORMAL = 1000
CLOSE_POLICY = 1008
FAREWELL_S = 5.0
"""For what is still to be said to a client that is sent away."""

Said = str | bytes | Sequence[str | bytes]


class MessageHandler(Protocol):
    """One client's side of a conversation: messages in, an outbox out."""

    @property
    def refusals(self) -> int:
        """Messages in a row that were answered with an error."""

    async def on_message(self, data: str | bytes) -> None:
        """One message; an error is an answer too."""

    def encode(self, item: Any) -> Said:
        """An item of the outbox as messages."""

    def on_disconnect(self) -> None:
        """The connection is over."""


class PatientHandler(MessageHandler, Protocol):
    """One that minds silence."""

    @property
    def patience_s(self) -> float | None:
        """How long it waits for the next message."""

    def waited(self) -> bool:
        """It has waited so long. Whether to wait on; otherwise it has said why not."""

    @property
    def linger_s(self) -> float:
        """How long the connection stays open once all is said, unless the client closes it."""


MakeHandler = Callable[[SessionHub, Outbox, ClientLimits, ClientAccount], PatientHandler]


async def converse(websocket: WebSocket, make_handler: MakeHandler) -> None:
    """One connection, from beginning to end."""
    server = websocket.app.state.server.asked_by(websocket)
    limits: ClientLimits = server.limits
    offered = websocket.scope.get("subprotocols", ())  # a browser that brings its key in one needs one back
    await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
    outbox = Outbox(OutboxLimits(patience_s=limits.patience_s))
    handler = make_handler(server.hub, outbox, limits, server.client)
    sender = asyncio.ensure_future(
        outbox.drain(lambda item: _send(websocket, messages(handler.encode(item))))
    )
    listener = asyncio.ensure_future(_listen(websocket, handler, limits))
    try:
        await asyncio.wait({sender, listener}, return_when=asyncio.FIRST_COMPLETED)
        if sender.done() and not sender.exception() and handler.linger_s > 0:
            await asyncio.wait({listener}, timeout=handler.linger_s)
        if listener.done() and not listener.exception():
            outbox.finish()
            await asyncio.wait({sender}, timeout=FAREWELL_S)
    finally:
        sent_away = listener.done()
        try:
            present = await _stop(sender, listener)
        finally:
            handler.on_disconnect()  # last: until then a message may still be taken
    if present and websocket.application_state is WebSocketState.CONNECTED:
        with suppress(WebSocketDisconnect, RuntimeError):  # it may have gone meanwhile
            await websocket.close(CLOSE_POLICY if sent_away else CLOSE_NORMAL)


def messages(said: Said) -> Sequence[str | bytes]:
    return [said] if isinstance(said, (str, bytes)) else said


async def _listen(websocket: WebSocket, handler: PatientHandler, limits: ClientLimits) -> None:
    """Until the client leaves, keeps silent for too long, or says nothing right."""
    while handler.refusals <= limits.max_refusals:
        try:
            message = await asyncio.wait_for(websocket.receive(), handler.patience_s)
        except asyncio.TimeoutError:
            if handler.waited():
                continue
            return
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", CLOSE_NORMAL))
        data = message.get("text")
        await handler.on_message(data if data is not None else message["bytes"])


async def _send(websocket: WebSocket, said: Sequence[str | bytes]) -> None:
    for message in said:
        if isinstance(message, bytes):
            await websocket.send_bytes(message)
        else:
            await websocket.send_text(message)


async def _stop(*tasks: asyncio.Future[Any]) -> bool:
    """Stop both; whether the client is still there."""
    for result in await stop_all(tasks):
        if isinstance(result, (ClientGone, WebSocketDisconnect)):
            return False
        if isinstance(result, Exception):
            raise result
    return True
