"""The native WebSocket at `/v1/stream`: one connection, one `server/conversation.py`."""

from __future__ import annotations

from starlette.websockets import WebSocket

from millstream.server.conversation import Conversation
from millstream.server.talk import converse


async def stream(websocket: WebSocket) -> None:
    await converse(websocket, Conversation)
