"""HTTPS with a certificate of one's own: what is wrong with one is said at once, and everything else is as
without."""

from __future__ import annotations

import asyncio
import json
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from millstream.client import Ask
from millstream.client import connect as connect_client
from millstream.core.errors import ConfigError
from millstream.server.access.auth import Access, Gate
from millstream.server.access.budgets import Clients
from millstream.server.transport.tls import check_certificate
from tests.server.certificates import make_certificate
from tests.server.serve_process import server_process
from tests.server.serving import START

PATIENCE_S = 60.0
KEY = "the-key-of-alice"
CONFIG = """
model = "wan-tiny"
weights = ["random"]
device = "cpu"
dtype = "float32"
threads = 1
data = "{folder}/data"
tls-cert = "{cert}"
tls-key = "{key}"

[keys.alice]
key = "the-key-of-alice"
max-fps = 10
"""


def test_a_pair_that_cannot_be_shown_is_one_line_that_says_why(tmp_path: Path) -> None:
    own = make_certificate(tmp_path)
    other = make_certificate(tmp_path, "other")
    secret = make_certificate(tmp_path, "secret", password=b"sesame")
    none = tmp_path / "none.pem"
    check_certificate(own.cert, own.key)
    check_certificate(None, None)
    for cert, key, why in (
        (own.cert, other.key, f"--tls-key {other.key} does not belong to --tls-cert {own.cert}"),
        (own.cert, None, "--tls-cert needs --tls-key"),
        (None, own.key, "--tls-key needs --tls-cert"),
        (none, own.key, f"cannot read --tls-cert {none}: No such file"),
        (own.cert, tmp_path, f"cannot read --tls-key {tmp_path}: Is a directory"),
        (own.key, own.key, "must be a certificate and its key in PEM"),
        (secret.cert, secret.key, "is encrypted"),
    ):
        with pytest.raises(ConfigError) as refused:
            check_certificate(cert, key)
        assert why in str(refused.value)
        assert "\n" not in str(refused.value)


def test_a_server_from_a_file_has_sessions_over_wss_and_takes_no_page_that_came_unencrypted(
    tmp_path: Path,
) -> None:
    own = make_certificate(tmp_path)
    trusts = own.trusted()
    config = tmp_path / "serve.toml"
    config.write_text(CONFIG.format(folder=tmp_path, cert=own.cert, key=own.key))
    with server_process("--config", str(config), trusts=trusts) as (_, url):
        page = httpx2.get(url, verify=trusts)
        assert page.status_code == 200
        assert "Millstream" in page.text
        asyncio.run(have_a_session(url, trusts))
        with connect_client(url, key=KEY, tls=trusts) as client, ThreadPoolExecutor(1) as beside:
            client.start(Ask(prompt="sea", fps=2.0))
            typed = beside.submit(
                lambda: [client.draft(f"a storm of force {number}") for number in range(20)]
            )
            assert [chunk.index for chunk in client.chunks(2)] == [0, 1]
            typed.result()
        with pytest.raises(httpx2.TransportError):
            httpx2.get(url.replace("https", "http"))


async def have_a_session(url: str, trusts: ssl.SSLContext) -> None:
    """On an event loop: the library's threads read and write one TLS socket at once, which Python does not
    guard."""
    address = url.replace("https", "wss") + "/v1/stream"
    bearer = {"Authorization": f"Bearer {KEY}"}
    async with connect(address, ssl=trusts, origin=url, additional_headers=bearer, max_size=None) as socket:
        assert json.loads(await heard(socket))["type"] == "hello"
        await socket.send(json.dumps(START | {"fps": 24.0}))
        assert "max-fps of the key 'alice' is 10" in str(await heard(socket))
        await socket.send(json.dumps(START | {"fps": 2.0}))  # so slow that any machine can promise it
        while isinstance(await heard(socket), str):
            pass
    with pytest.raises(InvalidStatus, match="403"):
        await connect(address, ssl=trusts, origin=url.replace("https", "http"), additional_headers=bearer)


async def heard(socket: ClientConnection) -> str | bytes:
    return await asyncio.wait_for(socket.recv(), PATIENCE_S)


@pytest.mark.parametrize(("scheme", "origin", "status"), [
    ("https", "https://127.0.0.1", 200), ("https", "http://127.0.0.1", 403), ("https", "https://evil.example", 403),
    ("http", "http://127.0.0.1", 200), ("http", "https://127.0.0.1", 200),
])  # fmt: skip
def test_a_page_is_this_servers_own_if_it_came_as_safely(scheme: str, origin: str, status: int) -> None:
    """Where a proxy speaks TLS and the server does not, its pages come by https."""
    gate = Gate(PlainTextResponse("in"), access=Access(), open_paths=[], clients=Clients())
    client = TestClient(gate, base_url=f"{scheme}://127.0.0.1")
    assert client.post("/v1/sessions", headers={"Origin": origin}).status_code == status


@pytest.mark.parametrize(("proxy", "status"), [("10.0.0.1", 403), ("10.0.0.2", 200)])
def test_a_trusted_proxy_says_that_it_speaks_tls_and_nobody_else_does(proxy: str, status: int) -> None:
    gate = Gate(PlainTextResponse("in"), access=Access(names=None), open_paths=[], clients=Clients())
    client = TestClient(
        ProxyHeadersMiddleware(gate, ["10.0.0.1"]), base_url="http://stream.example.org", client=(proxy, 1)
    )
    headers = {"X-Forwarded-Proto": "https", "Origin": "http://stream.example.org"}
    assert client.post("/v1/sessions", headers=headers).status_code == status
    assert (
        client.post("/v1/sessions", headers=headers | {"Origin": "https://stream.example.org"}).status_code
        == 200
    )
