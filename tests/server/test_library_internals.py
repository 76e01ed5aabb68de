"""What `server/transport/` looks into of its libraries is there: a new version that moved something is named
by these tests.

That it means what it meant is tested here without a server, and with one by `native/test_silent.py`,
`test_frames.py`, `test_farewell.py` and `test_webrtc.py`.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from aiortc import RTCDataChannel, RTCPeerConnection
from packaging.requirements import Requirement
from uvicorn.server import ServerState

from millstream.server.transport import sockets
from tests.server.raw_socket import BINARY, TEXT, asking, frame

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SOURCE = ast.parse(Path(sockets.__file__).read_text())
OURS = {each.name: each for each in SOURCE.body if isinstance(each, ast.ClassDef)}


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Is never called."""


async def theirs(name: str) -> object:
    """An instance of what one of our classes is made from, as uvicorn would make it."""
    (base,) = getattr(sockets, name).__bases__
    config = uvicorn.Config(app, interface="asgi3", lifespan="off", log_config=None)
    config.load()
    if issubclass(base, uvicorn.Server):
        server = base(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[])
        return server
    return base(config=config, server_state=ServerState(), app_state={})


def methods(of: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [each for each in of.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]


def missing_of(name: str) -> list[str]:
    """What one of our classes reads of itself that nobody gives it."""
    ours = OURS[name]
    known = dir(asyncio.run(theirs(name)))
    own = {each.name for each in methods(ours)}
    own |= {
        each.target.id
        for each in ours.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    own |= {each.attr for each in _of_self(ours) if isinstance(each.ctx, ast.Store)} - {
        "app",
        "handshake_complete",
    }
    return sorted({each.attr for each in _of_self(ours)} - own - set(known))


def _of_self(ours: ast.ClassDef) -> list[ast.Attribute]:
    found = [each for each in ast.walk(ours) if isinstance(each, ast.Attribute)]
    return [each for each in found if isinstance(each.value, ast.Name) and each.value.id == "self"]


@pytest.mark.parametrize("name", OURS)
def test_uvicorn_has_what_our_protocols_read_of_it(name: str) -> None:
    (base,) = getattr(sockets, name).__bases__
    gone = missing_of(name)
    assert not gone, (
        f"uvicorn {version('uvicorn')}: {base.__name__} has no {', '.join(gone)} any more; mend "
        f"sockets.{name}"
    )


@pytest.mark.parametrize("name", OURS)
def test_uvicorn_calls_what_our_protocols_override(name: str) -> None:
    (base,) = getattr(sockets, name).__bases__
    where = f"uvicorn {version('uvicorn')}: {base.__name__}"
    for method in methods(OURS[name]):
        if method.name == "__init__" or method.name.startswith("_"):
            continue
        assert hasattr(base, method.name), f"{where} has no {method.name} any more; mend sockets.{name}"
        wanted = list(inspect.signature(getattr(base, method.name)).parameters)
        ours = [argument.arg for argument in method.args.args]
        assert len(ours) == len(wanted), (
            f"{where}.{method.name} takes {wanted}, ours {ours}; mend sockets.{name}"
        )


def test_a_member_that_uvicorn_lost_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    make = sockets.WebSocketsSansIOProtocol.__init__

    def make_without(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        del self.writable

    monkeypatch.setattr(sockets.WebSocketsSansIOProtocol, "__init__", make_without)
    assert missing_of("ImpatientWebSocket") == ["writable"]


class Wire(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = b""
        self.closed = False
        self.protocol: asyncio.Protocol | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        """All that is sent is read."""

    resume_reading = pause_reading


def connected(answer: Any) -> tuple[Wire, sockets.TimeoutHTTP]:
    """A new connection to an application, as uvicorn would make it."""
    config = uvicorn.Config(answer, ws=sockets.ImpatientWebSocket, lifespan="off", log_config=None)
    config.load()
    wire = Wire()
    protocol = sockets.TimeoutHTTP(config, ServerState(), {}, None)
    protocol.connection_made(wire)
    return wire, protocol


UVICORN = f"uvicorn {version('uvicorn')}: "


async def turns() -> None:
    """Let what is ready run."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_uvicorns_cycle_is_the_request_under_way_and_says_when_it_is_answered() -> None:
    async def play() -> None:
        may_answer = asyncio.Event()

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            await may_answer.wait()
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body"})

        _, protocol = connected(answer)
        assert protocol.cycle is None, UVICORN + "`cycle` is set before there is a request; mend TimeoutHTTP"
        protocol.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        first = protocol.cycle
        assert not first.response_complete, UVICORN + "`cycle` is not the request under way; mend TimeoutHTTP"
        patience = protocol._patience
        may_answer.set()
        await turns()
        assert first.response_complete, UVICORN + "`response_complete` stays false; mend TimeoutHTTP"
        assert protocol._patience is not patience, (
            UVICORN + "on_response_complete is not called; mend TimeoutHTTP"
        )
        protocol.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert protocol.cycle is not first, (
            UVICORN + "a second request has the first one's `cycle`; mend TimeoutHTTP"
        )
        protocol.connection_lost(None)
        await turns()

    asyncio.run(play())


def upgraded(answer: Any) -> tuple[Wire, sockets.ImpatientWebSocket]:
    """A WebSocket whose handshake has come in."""
    wire, protocol = connected(answer)
    protocol.data_received(asking("127.0.0.1"))
    assert isinstance(wire.protocol, sockets.ImpatientWebSocket), (
        UVICORN + "an upgrade does not change the protocol"
    )
    return wire, wire.protocol


def test_uvicorns_websocket_says_what_it_has_sent_and_hands_messages_on_whole() -> None:
    async def play() -> None:
        heard: list[Any] = []

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            while (message := await receive())["type"] != "websocket.disconnect":
                heard.append(message)
            heard.append(message)

        wire, socket = upgraded(answer)
        assert not socket.handshake_complete, (
            UVICORN + "`handshake_complete` before it is; mend ImpatientWebSocket"
        )
        await turns()
        assert socket.handshake_complete, (
            UVICORN + "`handshake_complete` stays false; mend ImpatientWebSocket"
        )
        assert not socket.close_sent, UVICORN + "`close_sent` before it is; mend ImpatientWebSocket"
        assert wire.written.startswith(b"HTTP/1.1 101")
        socket.data_received(frame(TEXT, b"so", fin=False) + frame(0, b"me") + frame(BINARY, b"bytes"))
        await turns()
        assert [each.get("text") or each.get("bytes") for each in heard] == ["some", b"bytes"], (
            UVICORN + "messages are lost"
        )
        socket.data_received(frame(TEXT, b"\xff"))
        await turns()
        assert heard[-1]["code"] == 1007, (
            UVICORN + "a parser that failed is not told to the application; mend frames.py"
        )
        assert socket.close_sent, UVICORN + "`close_sent` stays false; mend ImpatientWebSocket"
        assert wire.closed
        socket.connection_lost(None)

    asyncio.run(play())


def test_uvicorns_websocket_waits_while_nothing_can_be_written_and_gives_up_on_a_lost_connection() -> None:
    async def play() -> None:
        _, socket = upgraded(app)
        for resume in (socket.resume_writing, lambda: socket.connection_lost(None)):
            socket.pause_writing()
            assert not socket.writable.is_set(), UVICORN + "`writable` stays set; mend ImpatientWebSocket"
            resume()
            assert socket.writable.is_set(), (
                UVICORN + "`writable` is never set again: a viewer that is gone is kept"
            )
        await turns()

    asyncio.run(play())


def test_a_websocket_that_is_refused_is_answered_as_the_application_says() -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
        await send({"type": "websocket.http.response.start", "status": 429, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": b"{}"})

    async def play() -> None:
        wire, socket = upgraded(refuse)
        await turns()
        head, _, body = wire.written.lower().partition(b"\r\n\r\n")
        assert head.startswith(b"http/1.1 429")
        assert (head.count(b"content-type"), head.count(b"content-length")) == (1, 1), (
            UVICORN + "headers come twice"
        )
        assert body == b"{}"
        assert socket.close_sent, (
            UVICORN + "`close_sent` stays false after a refusal; mend ImpatientWebSocket"
        )
        assert socket.handshake_complete, "or the refusal is logged as an error"
        socket.connection_lost(None)

    asyncio.run(play())


def test_uvicorn_starts_without_listening_and_ours_listens_with_its_protocols() -> None:
    async def play() -> None:
        server = await theirs("GracefulServer")
        assert isinstance(server, uvicorn.Server)
        assert server.started, UVICORN + "startup with no sockets does not start it; mend GracefulServer"
        assert server.servers == [], UVICORN + "startup with no sockets listens; mend GracefulServer"
        assert server.lifespan.state == {}

    asyncio.run(play())


@pytest.mark.parametrize("package", ["uvicorn", "websockets"])
def test_no_version_is_asked_for_that_these_tests_have_not_seen(package: str) -> None:
    """Both have an end, as what is read of them is private: raise it when the newest passes here."""
    pyproject = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    (asked,) = [
        each for each in pyproject["project"]["optional-dependencies"]["serve"] if each.startswith(package)
    ]
    assert re.fullmatch(package + r">=\d+(\.\d+)*,<\d+(\.\d+)*", asked), f"{asked} has no end"
    assert Requirement(asked).specifier.contains(version(package)), (
        f"{package} {version(package)} is not within {asked}: if the tests of this file pass, change the bound"
    )


def test_aiortc_has_what_channels_look_into() -> None:
    async def look() -> None:
        connection = RTCPeerConnection()
        assert isinstance(connection.createDataChannel("parameters"), RTCDataChannel)
        assert connection.sctp is not None
        where = f"aiortc {version('aiortc')}"
        assert hasattr(connection, "_RTCPeerConnection__connect"), (
            f"{where} connects otherwise; mend transport/channels.py"
        )
        for name in ("_handle_data", "_inbound_streams", "_advertised_rwnd"):
            assert hasattr(connection.sctp, name), (
                f"{where} has no {name} any more; mend transport/channels.py"
            )
        await connection.close()

    asyncio.run(look())
