"""HTTPS with a certificate of one's own: what is wrong with one is said at once, and everything else is as without."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from millstream.core.errors import ConfigError
from millstream.server.auth import Access, Gate
from millstream.server.budgets import Clients
from millstream.server.tls import check_certificate
from tests.server.certificates import make_certificate
from tests.server.serve_process import server_process
from tests.server.serving import START

PATIENCE_S = 60.0
TINY = ("--model", "wan-tiny", "--weights", "random", "--device", "cpu", "--dtype", "float32", "--threads", "1")


def test_a_pair_that_cannot_be_shown_is_one_line_that_says_why(tmp_path: Path) -> None:
    own, other = make_certificate(tmp_path), make_certificate(tmp_path, "other")
    secret, none = make_certificate(tmp_path, "secret", password=b"sesame"), tmp_path / "none.pem"
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


def test_a_session_over_wss_and_no_page_that_came_unencrypted(tmp_path: Path) -> None:
    own = make_certificate(tmp_path)
    trusts = own.trusted()
    with server_process(*TINY, *own.options, "--data", str(tmp_path / "data"), trusts=trusts) as (_, url):
        page = httpx2.get(url, verify=trusts)
        assert page.status_code == 200
        assert "Millstream" in page.text
        address = url.replace("https", "wss") + "/v1/stream"
        with connect(address, ssl=trusts, origin=url, max_size=None) as client:
            assert json.loads(client.recv(PATIENCE_S))["type"] == "hello"
            client.send(json.dumps(START | {"fps": 2.0}))
            while isinstance(client.recv(PATIENCE_S), str):
                pass
        with pytest.raises(InvalidStatus, match="403"):
            connect(address, ssl=trusts, origin=url.replace("https", "http"))
        with pytest.raises(httpx2.TransportError):
            httpx2.get(url.replace("https", "http"))


@pytest.mark.parametrize(("scheme", "origin", "status"), [
    ("https", "https://127.0.0.1", 200), ("https", "http://127.0.0.1", 403), ("https", "https://evil.example", 403),
    ("http", "http://127.0.0.1", 200), ("http", "https://127.0.0.1", 200),
])  # fmt: skip
def test_a_page_is_this_servers_own_if_it_came_as_safely(scheme: str, origin: str, status: int) -> None:
    """Where a proxy speaks TLS and the server does not, its pages come by https."""
    gate = Gate(PlainTextResponse("in"), access=Access(), open_paths=[], clients=Clients())
    client = TestClient(gate, base_url=f"{scheme}://127.0.0.1")
    assert client.post("/v1/sessions", headers={"Origin": origin}).status_code == status
