"""Frames below the message: each connection has a budget of them, and one that is spent ends that connection
alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode
from websockets.protocol import State

from millstream.server.access.budgets import ClientRates
from millstream.server.app import AppConfig
from millstream.server.transport.frames import FrameLimits, MeteredConnection
from millstream.server.transport.sockets import ImpatientWebSocket
from tests.server.raw_socket import BINARY, PING, TEXT, asking, close_code, frame, raw_socket
from tests.server.serving import Serving, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as running:
        yield running


def metered(**limits: float) -> MeteredConnection:
    connection = MeteredConnection(
        max_size=2**20, logger=logging.getLogger("test"), limits=FrameLimits(**limits)
    )
    connection.receive_data(asking("127.0.0.1"))
    (request,) = connection.events_received()
    connection.send_response(connection.accept(request))  # type: ignore[arg-type]
    connection.data_to_send()
    return connection


@pytest.mark.parametrize(
    ("sent", "limits", "reason"),
    [
        (frame(TEXT, fin=False) + frame(0, fin=False) * 5000, {"frames_per_s": 10}, "at most 10 frames a second"),
        (frame(TEXT, b"a") * 5000, {"frames_per_s": 10}, "at most 10 frames a second"),
        (frame(PING, b"p" * 125) * 5000, {"controls_per_s": 10}, "at most 10 pings and pongs a second"),
        (frame(10) * 5000, {"controls_per_s": 10}, "at most 10 pings and pongs a second"),
        (frame(BINARY, b"b" * 100) * 5000, {"bytes_per_s": 1000}, "at most 1000 bytes a second"),
        (frame(TEXT, fin=False) + frame(0, fin=False) * 5000, {"max_fragments": 20}, "at most 20 frames a message"),
    ],
)  # fmt: skip
def test_a_frame_too_many_ends_the_connection_and_nothing_behind_it_is_read(
    sent: bytes, limits: dict[str, float], reason: str
) -> None:
    connection = metered(**limits)
    connection.receive_data(sent)
    assert len(connection.events_received()) <= 21
    assert connection.close_sent is not None
    assert (connection.close_sent.code, connection.close_sent.reason) == (1008, reason)
    connection.receive_data(sent)
    assert connection.events_received() == [], "what comes after is not parsed"


def test_messages_in_pieces_and_a_ping_now_and_then_pass() -> None:
    connection = metered()
    for _ in range(10):
        connection.receive_data(
            frame(BINARY, b"a", fin=False) + frame(0, b"b", fin=False) * 50 + frame(PING) + frame(0)
        )
    assert connection.state is State.OPEN
    frames = [event for event in connection.events_received() if isinstance(event, Frame)]
    assert sum(each.opcode is Opcode.PING for each in frames) == 10
    assert len(frames) == 10 * 53


@pytest.mark.parametrize(
    "flood",
    [frame(TEXT, fin=False) + frame(0, fin=False) * 4000, frame(PING, b"p" * 125) * 100],
    ids=["continuations", "pings"],
)
def test_a_flood_of_frames_is_ended_with_1008_and_a_viewer_beside_it_goes_on(
    server: Serving, flood: bytes
) -> None:
    with server.client() as viewer:
        viewer.start()
        first = viewer.hear("chunk")["index"]
        with raw_socket(server.address) as rude:
            rude.sendall(flood)
            code, reason = close_code(rude)
            assert code == 1008
            assert reason.startswith("at most")
        viewer.hear("chunk", index=first + 2)


def test_who_floods_one_connection_after_the_other_may_soon_open_no_more() -> None:
    flood = frame(TEXT, fin=False) + frame(0, fin=False) * 4000
    with serving(config=AppConfig(rates=ClientRates(requests=(0.001, 60)))) as server:
        for _ in range(3):  # 60 requests, 26 of them gone each time
            with raw_socket(server.address) as rude:
                rude.sendall(flood)
                assert close_code(rude)[0] == 1008
            server.until(lambda: not server.hub.live_sessions, "it is gone")
        with pytest.raises(AssertionError, match="429"), raw_socket(server.address):
            pass
        with server.client(source="127.0.0.2") as stranger:
            assert stranger.start()["session"]


def test_what_waits_to_be_sent_when_a_client_is_sent_away_is_not_sent() -> None:
    """It has read nothing until nothing more could be written, and is sent away for a flood meanwhile."""
    config = Config(lambda scope, receive, send: asyncio.sleep(0), ws=ImpatientWebSocket)
    config.load()

    async def send() -> None:
        connection = ImpatientWebSocket(config, ServerState(), {})
        connection.handshake_complete = True
        connection.pause_writing()
        sending = asyncio.ensure_future(connection.send({"type": "websocket.send", "text": "hello"}))
        await asyncio.sleep(0)
        connection.close_sent = True
        connection.resume_writing()
        await sending

    with pytest.raises(ClientDisconnected):
        asyncio.run(send())


def test_text_that_is_not_utf8_ends_the_connection_without_a_traceback(
    server: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    with raw_socket(server.address) as rude:
        rude.sendall(frame(TEXT, b"\xff\xfe") * 3)
        assert close_code(rude)[0] == 1007
    with raw_socket(server.address) as rude:
        rude.sendall(frame(TEXT, b"\xc3", fin=False) + frame(0, b"("))
        assert close_code(rude)[0] == 1007
    assert not [record for record in caplog.records if record.exc_info]
