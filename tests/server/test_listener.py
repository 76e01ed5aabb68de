"""Connections that say nothing: each address has its share of them, and descriptors are left for what
runs."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import ssl
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from millstream.server.access import shares
from millstream.server.access.shares import Holdings, Quota
from millstream.server.logs import REPEATING, FewRepeats
from millstream.server.transport import listener
from millstream.server.transport.listener import DescriptorShare
from millstream.server.transport.sockets import GracefulServer, ImpatientWebSocket, TimeoutHTTP
from tests.server.certificates import Certificate, make_certificate
from tests.server.raw_socket import asking
from tests.server.serve_process import HERE, server_process, wait_until_ready
from tests.soak.abuses.server import MODEL

PATIENCE_S = 30.0
SILENT = "127.6.6.6"
STRANGER = "127.0.0.2"
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
TRACEBACK = "Traceback"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers every request with 200, and accepts every WebSocket until it is closed."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})
        return
    await receive()
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect":
        pass


@asynccontextmanager
async def listening(certificate: Certificate | None = None, **options: Any) -> AsyncIterator[tuple[str, int]]:
    """A server of this process and its address. Nothing of it is left in the end."""
    if certificate is not None:
        options |= {"ssl_certfile": certificate.cert, "ssl_keyfile": certificate.key}
    config = uvicorn.Config(
        app, http=TimeoutHTTP, ws=ImpatientWebSocket, lifespan="off", log_config=None, access_log=False,
        **{"proxy_headers": False} | options,
    )  # fmt: skip

    async def farewell() -> float:
        return 1.0

    server = GracefulServer(config, farewell)
    with socket.create_server(("127.0.0.1", 0)) as listening_socket:
        serving = asyncio.ensure_future(server.serve([listening_socket]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield listening_socket.getsockname()
        finally:
            server.should_exit = True
            await serving
    assert not server.server_state.connections


def silent(address: tuple[str, int], source: str = SILENT) -> socket.socket:
    """A connection that the system has made; the server may not have accepted it yet."""
    peer = socket.create_connection(address, timeout=PATIENCE_S, source_address=(source, 0))
    peer.settimeout(PATIENCE_S)
    return peer


async def until(holds: Any, what: str) -> None:
    patience = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < patience, f"waited in vain until {what}"
        await asyncio.sleep(0.01)


async def answer(address: tuple[str, int], source: str = STRANGER) -> bytes:
    """Send a request and return its answer; empty if the connection is closed without one."""

    def ask() -> bytes:
        with silent(address, source) as peer, suppress(ConnectionError):
            with suppress(ConnectionError):
                peer.sendall(REQUEST)
            return b"".join(iter(lambda: peer.recv(65536), b""))
        return b""

    return await asyncio.to_thread(ask)


async def is_closed(peer: socket.socket) -> bool:
    def read() -> bool:
        with suppress(ConnectionError):
            return peer.recv(65536) == b""
        return True

    return await asyncio.to_thread(read)


@contextmanager
def calls_counted() -> Iterator[Counter[str]]:
    """Calls of Python functions in this thread by their file, but for the event loop's: it turns as often as
    it likes."""
    calls: Counter[str] = Counter()

    def count(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and not {"asyncio", "tests"} & set(Path(frame.f_code.co_filename).parts):
            calls[frame.f_code.co_filename] += 1

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def test_what_one_more_connection_costs_does_not_depend_on_how_many_there_are() -> None:
    async def cost_beside(num_open: int) -> int:
        async with listening() as address:
            with ExitStack() as held:
                made: list[object] = []
                connection_made = TimeoutHTTP.connection_made

                def note(self: TimeoutHTTP, transport: Any) -> None:
                    connection_made(self, transport)
                    made.append(self)

                patch = held.enter_context(pytest.MonkeyPatch.context())
                patch.setattr(TimeoutHTTP, "connection_made", note)
                for _ in range(num_open):
                    held.enter_context(silent(address))
                await until(lambda: len(made) == num_open, "all are there")
                held.enter_context(silent(address))
                with calls_counted() as calls:
                    while len(made) == num_open:
                        await asyncio.sleep(0)
                return sum(calls[name] for name in calls if not name.endswith("selectors.py"))

    few = asyncio.run(cost_beside(5))
    many = asyncio.run(cost_beside(400))
    # The loop's own turns while it waits are counted too; a walk over all others would be a call for each.
    assert many - few < 395, f"{few} calls beside 5 connections, {many} beside 400"


def test_holdings_never_walk_over_all_who_hold_something(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unwalked(Counter[str]):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("a walk over all clients")

        values = items = keys = total = __iter__  # type: ignore[assignment]

    monkeypatch.setattr(shares, "Counter", Unwalked)
    holdings = Holdings(Quota(2), "things")
    with holdings.one_by("a"), holdings.one_by("b"):
        holdings.check("a")


def test_a_connection_of_any_kind_gives_its_place_back_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "CONNECTIONS", Quota(4))

    async def come_and_go() -> None:
        async with listening() as address:
            upgrade = asking(f"127.0.0.1:{address[1]}", "/")
            for number in range(20):
                peer = silent(address)
                if number % 2:
                    peer.sendall(upgrade)
                    assert (await asyncio.to_thread(peer.recv, 65536)).startswith(b"HTTP/1.1 101")
                if number % 3:
                    peer.setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
                    )  # it ends with a reset
                peer.close()
                while b"503" in await answer(address, SILENT):  # until the server has noticed
                    await asyncio.sleep(0.01)
            with ExitStack() as held:
                for _ in range(4):
                    peer = held.enter_context(silent(address))
                    peer.sendall(upgrade)
                    assert (await asyncio.to_thread(peer.recv, 65536)).startswith(b"HTTP/1.1 101")
                assert b"503" in await answer(address, SILENT), "a WebSocket is counted, too"
                assert b"200" in await answer(address)

    asyncio.run(come_and_go())


def test_a_refused_connection_is_told_why_and_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "CONNECTIONS", Quota(1))

    async def refuse() -> None:
        async with listening() as address:
            with silent(address):
                while b"503" not in (refusal := await answer(address, SILENT)):
                    await asyncio.sleep(0.01)
                assert "of yours" in json.loads(refusal.partition(b"\r\n\r\n")[2])["error"]["message"]
                with silent(address) as idle:
                    assert (await asyncio.to_thread(idle.recv, 65536)).startswith(b"HTTP/1.1 503")
                    assert await is_closed(idle), "though it asks for nothing"

    asyncio.run(refuse())


def test_behind_a_trusted_proxy_nobody_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "CONNECTIONS", Quota(1))
    monkeypatch.setattr(listener, "client_at", None)

    async def all_answered() -> None:
        async with listening(proxy_headers=True, forwarded_allow_ips=[SILENT]) as address:
            with ExitStack() as held:
                for _ in range(8):
                    held.enter_context(silent(address))
                assert b"200" in await answer(address, SILENT)

    asyncio.run(all_answered())


def test_tls_handshakes_are_counted_and_have_an_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    monkeypatch.setattr(listener, "CONNECTIONS", Quota(3))
    monkeypatch.setattr(listener, "HANDSHAKE_S", 3.0)

    async def knock() -> None:
        async with listening(certificate) as address:
            with ExitStack() as held:
                first = [held.enter_context(silent(address)) for _ in range(3)]
                one_more = held.enter_context(silent(address))
                one_more.settimeout(1.5)
                assert await is_closed(one_more), "it is one too many before it has said a word"
                reader, writer = await asyncio.open_connection(
                    *address, ssl=certificate.trusted(), local_addr=(STRANGER, 0)
                )
                writer.write(REQUEST)
                assert b"200" in await reader.readline()
                writer.close()
                assert all([await is_closed(peer) for peer in first]), (
                    "a handshake takes seconds, not for ever"
                )
                with silent(address) as again:
                    again.settimeout(0.5)
                    with pytest.raises(TimeoutError):
                        again.recv(1)  # it is waited for: there is a place again

    asyncio.run(knock())


def test_without_descriptors_connections_wait_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look = listener._next_descriptor
    free: list[int | None] = []
    monkeypatch.setattr(listener, "log", logging.getLogger("tests.listener"))
    listener.log.addFilter(FewRepeats())
    assert listener.__name__ in REPEATING
    monkeypatch.setattr(listener, "RETRY_S", 0.01)

    async def wait() -> bytes:
        async with listening() as address:
            await answer(address)  # accepting goes on
            monkeypatch.setattr(listener, "_next_descriptor", lambda listening: free[-1] if free else None)
            await answer(address)  # the one that was waited for before
            waiting = asyncio.ensure_future(answer(address))
            await asyncio.sleep(0.5)
            free.append(2**30 - 1)  # of the reserve
            await asyncio.sleep(0.2)
            assert not waiting.done()
            monkeypatch.setattr(listener, "_next_descriptor", look)
            return await waiting

    assert b"200" in asyncio.run(wait())
    (line,) = [record.getMessage() for record in caplog.records if record.name == "tests.listener"]
    assert "out of file descriptors" in line


def test_connections_leave_at_least_half_of_what_is_free_to_what_runs() -> None:
    wanted = Quota(512)
    assert DescriptorShare.of(4096, 60, wanted).connections == wanted
    for limit in (64, 100, 256, 1024):
        share = DescriptorShare.of(limit, 40, wanted)
        assert share.connections.total <= max(2, (limit - 40) // 2)
        assert share.connections.most < share.connections.total
        assert 40 + share.connections.total <= share.reserve_from < limit
    assert DescriptorShare.of(30, 40, wanted).connections == Quota(1), "it may try"


def test_five_hundred_idle_connections_of_one_address_are_in_nobodys_way() -> None:
    with server_process(*MODEL) as (process, url), ExitStack() as held:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        for _ in range(520):
            held.enter_context(silent(address))
        for _ in range(3):
            begun = time.monotonic()
            assert b"200" in asyncio.run(answer(address))
            assert time.monotonic() - begun < 5  # it was 20
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--trusted-proxy", STRANGER)], ids=["counted", "behind a proxy"])
def test_silent_handshakes_beyond_the_limit_of_open_files_fill_no_log_and_stop_nobody(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Counted, most of them are refused. Behind a proxy nothing is counted, and they take all descriptors but
    the reserve."""
    certificate = make_certificate(tmp_path)
    log = tmp_path / "log"
    limited = ("bash", "-c", f'ulimit -n 200; exec "$@" 2>{log}', "limited", *HERE)
    files = (
        "--tls-cert",
        str(certificate.cert),
        "--tls-key",
        str(certificate.key),
        "--data",
        str(tmp_path / "data"),
    )
    trusts = certificate.trusted()
    with (
        ExitStack() as held,
        server_process(*MODEL, *files, *options, "--insecure", program=limited, trusts=trusts) as (
            process,
            url,
        ),
    ):
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        for _ in range(300):
            held.enter_context(silent(address))
        begun = time.monotonic()
        if options:
            _until_paused(log)
        else:
            assert _healthz(address, trusts) == 200
            assert time.monotonic() - begun < 0.9 * listener.HANDSHAKE_S, (
                "others need not wait for handshakes to end"
            )
            assert len(os.listdir(f"/proc/{process.pid}/fd")) < 150
        wait_until_ready(url, trusts)
        if options:  # again, so that it stops while it waits for descriptors
            for _ in range(300):
                held.enter_context(silent(address))
            time.sleep(1.0)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    lines = log.read_text().splitlines()
    assert len(lines) < 100
    assert not [line for line in lines if TRACEBACK in line]


def _until_paused(log: Path) -> None:
    patience = time.monotonic() + PATIENCE_S
    while "out of file descriptors" not in log.read_text():
        assert time.monotonic() < patience, log.read_text()[-2000:]
        time.sleep(0.05)


def _healthz(address: tuple[str, int], trusts: ssl.SSLContext) -> int:
    with (
        silent(address, STRANGER) as peer,
        trusts.wrap_socket(peer, server_hostname="127.0.0.1") as encrypted,
    ):
        encrypted.sendall(REQUEST)
        return int(encrypted.recv(65536).split()[1])
