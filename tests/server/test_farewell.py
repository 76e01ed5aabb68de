"""A server that stops tells everybody who is connected, in their own words, before it closes their
connections."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.server.serving import PATIENCE_S, serving

Said = str | bytes


def native(said: Said) -> bool:
    return isinstance(said, str) and json.loads(said)["type"] == "ended"


def krea(said: Said) -> bool:
    return isinstance(said, str) and json.loads(said)["status"] == "completed"


def vllm_omni(said: Said) -> bool:
    return isinstance(said, str) and json.loads(said)["type"] == "session.done"


def sglang(said: Said) -> bool:
    message: dict[str, Any] = msgspec.msgpack.decode(said if isinstance(said, bytes) else said.encode())
    return message["type"] == "error" and "shutting down" in message["content"]


DIALECTS: list[tuple[str, Said, Callable[[Said], bool]]] = [
    ("/v1/stream", json.dumps({"type": "start", "version": 1, "prompt": "sea", "fps": 4}), native),
    ("/session/mine", msgspec.msgpack.encode({"prompt": "sea"}), krea),
    ("/v1/realtime/video", json.dumps({"type": "session.start", "prompt": "sea", "fps": 4}), vllm_omni),
    (
        "/v1/realtime_video/generate",
        msgspec.msgpack.encode({"type": "init", "prompt": "sea", "fps": 4}),
        sglang,
    ),
]


def to_the_end(connection: ClientConnection) -> list[Said]:
    heard: list[Said] = []
    try:
        while True:
            heard.append(connection.recv(timeout=PATIENCE_S))
    except ConnectionClosed:
        return heard


@pytest.mark.parametrize(
    ("path", "opening", "is_the_end"), DIALECTS, ids=[each[2].__name__ for each in DIALECTS]
)
def test_the_end_is_told_before_the_connection_is_closed(
    path: str, opening: Said, is_the_end: Callable[[Said], bool]
) -> None:
    with ExitStack() as clients:
        with serving() as server:
            url = server.socket_url(path)
            connection = clients.enter_context(connect(url, max_size=None, max_queue=None, compression=None))
            connection.send(opening)
            server.until(
                lambda: any(each.last_chunk for each in server.hub.live_sessions.values()), "it streams"
            )
            silent = clients.enter_context(
                connect(url, compression=None)
            )  # has not begun, and has nothing to be told
        assert is_the_end(to_the_end(connection)[-1])
        assert connection.close_code == 1000
        to_the_end(silent)
        assert silent.close_code == 1012
