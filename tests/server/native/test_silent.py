"""Peers that stop talking in the middle, over real sockets: they are let go, and nothing of them is left."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed

from millstream.server.access.limits import ClientLimits
from millstream.server.app import AppConfig
from millstream.server.protocol import bodies, rest
from millstream.server.transport import sockets
from tests.server.serving import START, Serving, serving


def mute(server: Serving) -> socket.socket:
    """A peer that starts a session and is never heard of again, though its connection stays open."""
    host, port = server.address.split(":")
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect((host, int(port)))
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13"
    ask = (
        f"GET /v1/stream HTTP/1.1\r\nHost: {server.address}\r\nUpgrade: websocket\r\nConnection: "
        f"Upgrade\r\n{key}\r\n\r\n"
    )
    peer.sendall(ask.encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += peer.recv(1)
    assert answer.startswith(b"HTTP/1.1 101"), answer
    words = json.dumps(START | {"lead_s": 30, "formats": ["raw"]}).encode()
    assert len(words) < 126, "short enough for a frame with the shortest head"
    peer.sendall(b"\x81" + bytes([0x80 | len(words)]) + b"\0\0\0\0" + words)
    return peer


@pytest.mark.parametrize(
    ("ping_s", "patience_s"), [(0.3, 60.0), (60.0, 0.3)], ids=["no pong", "nothing taken"]
)
def test_a_peer_that_went_silent_is_let_go(
    monkeypatch: pytest.MonkeyPatch, ping_s: float, patience_s: float
) -> None:
    monkeypatch.setattr(sockets, "LINGER_S", 0.1)
    limits = ClientLimits(patience_s=patience_s)
    with serving(config=AppConfig(limits=limits), ping_s=ping_s) as quiet, mute(quiet) as peer:
        quiet.until(
            lambda: any(live_session.viewers for live_session in quiet.hub.live_sessions.values()),
            "it has come",
        )
        quiet.until(
            lambda: not any(live_session.viewers for live_session in quiet.hub.live_sessions.values()),
            "it is given up",
        )
        peer.settimeout(30)
        with suppress(ConnectionResetError):
            while peer.recv(65536):
                pass
        with quiet.client() as other:
            assert other.start()["session"]


def sends(server: Serving, data: bytes) -> socket.socket:
    host, port = server.address.split(":")
    peer = socket.create_connection((host, int(port)), timeout=30)
    peer.sendall(data)
    return peer


def test_a_connection_that_never_comes_to_a_request_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "REQUEST_S", 0.2)
    asked = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    with serving() as server, server.client() as client:
        with (
            sends(server, b"") as silent,
            sends(server, asked) as half,
            sends(server, asked + b"\r\n" + asked) as second,
        ):
            for peer in (silent, half, second):
                with suppress(ConnectionResetError):
                    while peer.recv(65536):
                        pass
        client.start()
        client.hear("chunk", index=2)


def test_a_body_that_comes_a_byte_at_a_time_is_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "PATIENCE_S", 0.5)
    with serving() as server:
        head = b"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10000\r\n\r\n"
        with sends(server, head) as peer:
            peer.settimeout(0.1)
            answer = b""
            for _ in range(100):  # each byte comes well within the patience for the next
                peer.sendall(b" ")
                with suppress(TimeoutError):
                    answer = peer.recv(65536)
                    break
            peer.settimeout(30.0)
            while b"too slowly" not in answer and (
                more := peer.recv(65536)
            ):  # the body may come after the head
                answer += more
            assert answer.startswith(b"HTTP/1.1 400"), answer
            assert b"too slowly" in answer


def test_who_does_not_take_an_answer_is_cut(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sockets, "TAKE_S", 0.3)
    with serving(tmp_path) as server:
        name, path = server.hub.archive.store.new("recordings")
        path.write_bytes(bytes(16 * 2**20))
        server.hub.archive.store.add("recordings", name)
        host, port = server.address.split(":")
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.connect((host, int(port)))
            peer.sendall(f"GET /v1/recordings/{name} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            peer.settimeout(30)
            server.until(lambda: _is_reset(peer), "it is cut though it never reads")


def _is_reset(peer: socket.socket) -> bool:
    try:
        peer.sendall(b" ")
    except (ConnectionResetError, BrokenPipeError):
        return True
    return False


def test_a_body_that_stops_coming_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bodies, "PATIENCE_S", 0.2)
    with serving(tmp_path) as server:
        for path in ("/v1/sessions", "/v1/snapshots"):
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n".encode()
            with sends(server, head + b'{"prompt"') as peer:
                answer = peer.recv(65536)
                assert answer.startswith(b"HTTP/1.1 400"), answer
        assert list((tmp_path / "snapshots").iterdir()) == []


def test_an_upload_that_is_too_large_or_breaks_off_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, server: Serving
) -> None:
    monkeypatch.setattr(rest, "MAX_UPLOAD_BYTES", 1000)
    folder = server.hub.archive.store._folder / "snapshots"
    before = sorted(folder.iterdir())
    answer = httpx2.post(server.url("/v1/snapshots"), content=b"x" * 2000)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    with sends(
        server, b"POST /v1/snapshots HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 900\r\n\r\nxyz"
    ) as peer:
        server.until(lambda: len(list(folder.iterdir())) > len(before), "the upload has begun")
        peer.close()
    server.until(lambda: sorted(folder.iterdir()) == before, "nothing of it is left")


def test_a_client_that_never_says_what_it_wants_is_told_so_and_closed() -> None:
    with serving(config=AppConfig(limits=ClientLimits(hello_s=0.2))) as hasty, hasty.client() as client:
        assert client.hear("error")["code"] == "bad_state"
        with pytest.raises(ConnectionClosed) as closed:
            client.next()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
