"""The native WebSocket at `/v1/stream`: one connection, one `server/protocol/conversation.py`."""

from __future__ import annotations

from starlette.websockets import WebSocket

from millstream.server.protocol.conversation import Conversation
from millstream.server.transport.websocket_loop import converse


async def stream(websocket: WebSocket) -> None:
    await converse(websocket, Conversation)
