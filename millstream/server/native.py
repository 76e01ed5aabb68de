"""The native WebSocket at `/v1/stream`: one connection, one conversation.

What may be said in one is `server/conversation.py`'s business.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from millstream.server.conversation import Conversation
from millstream.server.hub import Hub
from millstream.server.limits import ClientLimits
from millstream.server.outbox import ClientGone, Outbox, OutboxLimits

log = logging.getLogger(__name__)

SUBPROTOCOL = "millstream.v1"
CLOSE_NORMAL, CLOSE_POLICY = 1000, 1008
CANCEL_S = 0.1


async def stream(websocket: WebSocket) -> None:
    """Listen and send side by side until either is over."""
    hub: Hub = websocket.app.state.hub
    limits: ClientLimits = websocket.app.state.limits
    offered = websocket.scope.get("subprotocols", ())
    await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
    outbox = Outbox(OutboxLimits(patience_s=limits.patience_s))
    conversation = Conversation(hub, outbox, limits)
    sender = asyncio.ensure_future(outbox.drain(lambda item: _send(websocket, conversation.say(item))))
    listener = asyncio.ensure_future(_listen(websocket, conversation, limits))
    watchdog = asyncio.ensure_future(_give_up(conversation, limits))
    try:
        await asyncio.wait({sender, listener, watchdog}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        try:
            code = await _settle(sender, listener, watchdog)
        finally:
            conversation.leave()  # last: until then a message may still be taken
    if code is not None and websocket.application_state is WebSocketState.CONNECTED:
        with suppress(WebSocketDisconnect, RuntimeError):  # it may have gone meanwhile
            await websocket.close(code)


async def _listen(websocket: WebSocket, conversation: Conversation, limits: ClientLimits) -> None:
    """Until the client leaves, or says nothing right."""
    while conversation.refusals <= limits.max_refusals:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", CLOSE_NORMAL))
        data = message.get("text")
        await conversation.hear(data if data is not None else message["bytes"])


async def _give_up(conversation: Conversation, limits: ClientLimits) -> None:
    """Over when a client has not said in time what it wants."""
    await asyncio.sleep(limits.hello_s)
    if conversation.state != "new":
        await asyncio.Event().wait()


async def _send(websocket: WebSocket, said: str | bytes | list[str]) -> None:
    if isinstance(said, bytes):
        await websocket.send_bytes(said)
        return
    for text in [said] if isinstance(said, str) else said:
        await websocket.send_text(text)


async def _settle(sender: asyncio.Future[None], *others: asyncio.Future[None]) -> int | None:
    """Stop them all; the code to close with, or None where the client is gone already."""
    ended, tasks = sender.done(), {sender, *others}
    while pending := {task for task in tasks if not task.done()}:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_S)  # before Python 3.12, `wait_for` may swallow a cancellation
    for error in [task.exception() for task in tasks if not task.cancelled()]:
        if isinstance(error, (ClientGone, WebSocketDisconnect)):
            return None
        if error is not None:
            raise error
    return CLOSE_NORMAL if ended else CLOSE_POLICY
