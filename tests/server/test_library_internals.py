"""What `server/transport/` looks into of its libraries is there: a new version that moved something is named by these tests.

That it still does what it did is shown by `native/test_silent.py`, `test_frames.py`, `test_farewell.py` and `test_webrtc.py`.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from aiortc import RTCDataChannel, RTCPeerConnection
from uvicorn.server import ServerState

from millstream.server.transport import sockets

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
    ours, known = OURS[name], dir(asyncio.run(theirs(name)))
    own = {each.name for each in methods(ours)}
    own |= {each.target.id for each in ours.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)}
    own |= {each.attr for each in _of_self(ours) if isinstance(each.ctx, ast.Store)} - {"app", "handshake_complete"}
    return sorted({each.attr for each in _of_self(ours)} - own - set(known))


def _of_self(ours: ast.ClassDef) -> list[ast.Attribute]:
    found = [each for each in ast.walk(ours) if isinstance(each, ast.Attribute)]
    return [each for each in found if isinstance(each.value, ast.Name) and each.value.id == "self"]


@pytest.mark.parametrize("name", OURS)
def test_uvicorn_has_what_our_protocols_read_of_it(name: str) -> None:
    (base,) = getattr(sockets, name).__bases__
    gone = missing_of(name)
    assert not gone, f"uvicorn {version('uvicorn')}: {base.__name__} has no {', '.join(gone)} any more; mend sockets.{name}"


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
        assert len(ours) == len(wanted), f"{where}.{method.name} takes {wanted}, ours {ours}; mend sockets.{name}"


def test_a_member_that_uvicorn_lost_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sockets.WebSocketsSansIOProtocol, "handle_parser_exception")
    assert missing_of("ImpatientWebSocket") == ["handle_parser_exception"]


def test_aiortc_has_what_channels_look_into() -> None:
    async def look() -> None:
        connection = RTCPeerConnection()
        assert isinstance(connection.createDataChannel("parameters"), RTCDataChannel)
        assert connection.sctp is not None
        where = f"aiortc {version('aiortc')}"
        assert hasattr(connection, "_RTCPeerConnection__connect"), f"{where} connects otherwise; mend transport/channels.py"
        for name in ("_handle_data", "_inbound_streams", "_advertised_rwnd"):
            assert hasattr(connection.sctp, name), f"{where} has no {name} any more; mend transport/channels.py"
        await connection.close()

    asyncio.run(look())
