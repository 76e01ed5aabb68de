"""Who may come in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import httpx2
import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from websockets.exceptions import InvalidStatus

from millstream.core.errors import ConfigError, Overloaded
from millstream.server.access.auth import MAX_REFUSED_PAGES, Access, Gate, RefusedPages, access_for, is_local
from millstream.server.access.budgets import ClientRates, Clients
from millstream.server.access.keys import Keyring
from millstream.server.access.shares import Quota, client_at
from millstream.server.app import AppConfig
from tests.server.serving import Serving, serving

KEY = "correct-horse-battery"


@pytest.fixture(scope="module")
def locked() -> Iterator[Serving]:
    access = access_for("127.0.0.1", api_key=KEY, insecure=False, origins=["https://example.org"])
    with serving(config=AppConfig(access=access)) as running:
        yield running


@pytest.fixture(scope="module")
def unlocked() -> Iterator[Serving]:
    access = access_for("127.0.0.1", api_key=None, insecure=False, origins=[])
    with serving(config=AppConfig(access=access)) as running:
        yield running


def refused(server: Serving, **options: object) -> int:
    with pytest.raises(InvalidStatus) as refusal, server.client(**options):
        pass
    return int(refusal.value.response.status_code)


@pytest.mark.parametrize(
    "path", ["/v1/sessions", "/v1/models", "/metrics", "/openapi.json", "/v1/recordings/x", "/nothing"]
)
def test_without_the_key_nothing_is_told(locked: Serving, path: str) -> None:
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": KEY},
        {"Authorization": f"Basic {KEY}"},
    ):
        assert httpx2.get(locked.url(path), headers=headers).status_code == 401
    answer = httpx2.get(locked.url(path), headers={"Authorization": f"Bearer {KEY}"})
    assert answer.status_code in (200, 404)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/"])
def test_health_and_the_page_are_open(locked: Serving, path: str) -> None:
    assert httpx2.get(locked.url(path)).status_code == 200


def test_a_socket_needs_the_key_in_a_header_or_a_subprotocol(locked: Serving) -> None:
    assert refused(locked) == 401
    assert refused(locked, subprotocols=["millstream.v1", "millstream.key.wrong-key"]) == 401
    assert refused(locked, additional_headers={"Authorization": "Bearer nonsense"}) == 401
    with locked.client(additional_headers={"Authorization": f"Bearer {KEY}"}) as client:
        assert client.start()["session"]
    with locked.client(subprotocols=["millstream.v1", f"millstream.key.{KEY}"]) as client:
        assert client.connection.subprotocol == "millstream.v1", "the key is not echoed"
        assert client.start()["session"]


def test_a_foreign_page_may_not_use_the_server_unless_it_was_named(
    locked: Serving, unlocked: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    key = {"Authorization": f"Bearer {KEY}"}
    for server, headers in ((locked, key), (unlocked, {})):
        for origin in (
            "https://evil.example",
            "null",
            "http://[",
            "http://[::1",
            f"http://{server.address}.evil.example",
            "http://127.0.0.1:1",
        ):
            assert refused(server, origin=origin, additional_headers=headers) == 403
            asked = httpx2.post(
                server.url("/v1/sessions"), json={"prompt": "a"}, headers=headers | {"Origin": origin}
            )
            assert asked.status_code == 403
        with server.client(origin=f"http://{server.address}", additional_headers=headers):
            pass
    lines = [record for record in caplog.records if "'https://evil.example'" in record.getMessage()]
    assert len(lines) == 2, "one line a minute for each server, however often it asks"
    assert "--allow-origin" in lines[0].getMessage()
    assert {record.levelname for record in caplog.records} == {"WARNING"}, (
        "being turned away is not the server's error"
    )
    caplog.clear()
    with locked.client(origin="https://example.org", additional_headers=key):
        pass
    assert not caplog.records


def test_pages_that_are_refused_are_logged_once_a_minute_each_and_so_many_at_most(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    pages = RefusedPages(clock=lambda: now)
    for second in range(61):
        now = float(second)
        pages.note("http://a.example")
    assert len(caplog.records) == 2, "one at once, one a minute later"
    caplog.clear()
    for number in range(10 * MAX_REFUSED_PAGES):
        pages.note(f"http://{number}.example")
    assert len(caplog.records) == MAX_REFUSED_PAGES - 1, (
        "a client that makes up origins does not fill the disk"
    )
    pages.note("x" * 5000 + "\nforged")
    assert all("\n" not in record.getMessage() for record in caplog.records)


def test_without_a_key_a_foreign_name_for_this_machine_is_refused(unlocked: Serving) -> None:
    """A page whose name was made to point at 127.0.0.1 comes with that name."""
    port = unlocked.address.partition(":")[2]
    for name in ("evil.example", f"evil.example:{port}", ""):
        assert httpx2.get(unlocked.url("/v1/sessions"), headers={"Host": name}).status_code in (400, 403)
    for name in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"):
        assert httpx2.get(unlocked.url("/v1/sessions"), headers={"Host": name}).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
def test_others_can_only_reach_it_with_a_key_or_when_that_was_said(host: str) -> None:
    with pytest.raises(ConfigError, match="--api-key"):
        access_for(host, api_key=None, insecure=False, origins=[])
    assert access_for(host, api_key=KEY, insecure=False, origins=[]).keyring is not None
    assert access_for(host, api_key=None, insecure=True, origins=[]).names is None


def test_a_page_that_is_a_file_is_let_in_where_that_is_said_and_nowhere_else(unlocked: Serving) -> None:
    assert refused(unlocked, origin="null") == 403
    access = access_for("127.0.0.1", api_key=None, insecure=False, origins=["null"])
    assert access.names is not None
    assert "" not in access.names
    with serving(config=AppConfig(access=access)) as running:
        with running.client(origin="null"):
            pass
        told = httpx2.get(running.url("/v1/models"), headers={"Origin": "null"})
        assert told.headers["access-control-allow-origin"] == "null"
        assert refused(running, origin="https://example.org") == 403


def test_keys_that_no_subprotocol_can_carry_and_origins_that_are_none_are_refused() -> None:
    for key in ("short", "with a space in it", "komma,komma,komma", ""):
        with pytest.raises(ConfigError, match="API key"):
            access_for("127.0.0.1", api_key=key, insecure=False, origins=[])
    for origin in ("*", "example.org", "https://example.org/page", "file:///etc", "http://["):
        with pytest.raises(ConfigError, match="allow-origin"):
            access_for("127.0.0.1", api_key=None, insecure=False, origins=[origin])


def test_what_is_local() -> None:
    assert all(is_local(host) for host in ("localhost", "127.0.0.1", "127.9.9.9", "::1"))
    assert not any(is_local(host) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.evil.example"))


def test_there_is_an_end_to_connections_and_a_new_one_may_come_when_one_goes() -> None:
    access = replace(access_for("127.0.0.1", api_key=None, insecure=False, origins=[]), max_connections=2)
    with serving(config=AppConfig(access=access)) as server:
        with server.client(), server.client():
            assert refused(server) == 503

        def one_comes_in() -> bool:
            try:
                with server.client() as client:
                    return bool(client.start()["session"])
            except InvalidStatus:  # the places of those who left are not free in the same instant
                return False

        server.until(one_comes_in, "somebody else may come")


def test_an_address_that_asks_too_often_waits_and_others_do_not() -> None:
    clients = Clients(ClientRates(requests=(0.001, 3)), max_clients=2)
    assert [clients.at(("10.0.0.1", port)).requests.try_spend() for port in range(4)] == [
        True,
        True,
        True,
        False,
    ]
    assert clients.at(("10.0.0.2", 1)).requests.try_spend()
    clients.at(
        ("10.0.0.3", 1)
    )  # the one that asked longest ago is forgotten: no more than two are remembered
    assert len(clients) == 2


def test_requests_beyond_the_rate_are_refused_in_words_and_health_is_not_counted() -> None:
    clients = Clients(ClientRates(requests=(0.001, 3)))
    gate = Gate(PlainTextResponse("in"), access=Access(), open_paths=["/healthz"], clients=clients)
    client = TestClient(gate, base_url="http://127.0.0.1")
    answers = [client.get("/v1/models") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[-1].json() == {"error": {"code": "refused", "message": "too many requests; wait a moment"}}
    assert client.get("/healthz").status_code == 200


def test_wrong_keys_are_counted_and_then_no_key_is_tried_from_that_address() -> None:
    clients = Clients(ClientRates(wrong_keys=(0.001, 3)))
    gate = Gate(
        PlainTextResponse("in"), access=Access(keyring=Keyring.of_one(KEY)), open_paths=[], clients=clients
    )

    def status(address: str, key: str | None) -> int:
        client = TestClient(gate, base_url="http://127.0.0.1", client=(address, 1))
        return client.get(
            "/v1/models", headers={} if key is None else {"Authorization": f"Bearer {key}"}
        ).status_code

    assert [status("10.0.0.1", None) for _ in range(5)] == [401] * 5, "coming without a key is no guess"
    assert [status("10.0.0.1", f"guess-{number}") for number in range(5)] == [401, 401, 401, 429, 429]
    assert status("10.0.0.1", KEY) == 429
    assert status("10.0.0.2", KEY) == 200


def test_one_client_may_take_all_but_a_reserve() -> None:
    places = Quota(16)
    places.check("things", own=15, all=17)
    with pytest.raises(Overloaded, match="16 things of yours"):
        places.check("things", own=16, all=16)
    with pytest.raises(Overloaded, match="18 things are open"):
        places.check("things", own=0, all=18)


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        (("10.1.2.3", 5), "10.1.2.3"), (("::ffff:10.1.2.3", 5), "10.1.2.3"), (None, ""), (("x" * 999, 0), "x" * 64),
        (("2001:db8:1:2:3:4:5:6", 5), "2001:db8:1:2::/64"), (("fe80::1%eth0", 5), "fe80::/64"),
    ],
)  # fmt: skip
def test_who_is_counted_for_an_address(peer: tuple[str, int] | None, client: str) -> None:
    assert client_at(peer) == client


def test_a_page_elsewhere_that_was_named_may_ask_first(locked: Serving) -> None:
    ask = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    answer = httpx2.options(locked.url("/v1/sessions"), headers=ask)
    assert answer.headers["access-control-allow-origin"] == "https://example.org"
    other = httpx2.options(locked.url("/v1/sessions"), headers=ask | {"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


def test_the_pages_folder_is_all_that_is_open(locked: Serving) -> None:
    for path in ("/../app.py", "/%2e%2e/app.py", "/..%2fapp.py"):
        assert httpx2.get(locked.url(path)).status_code in (401, 404), path


@pytest.mark.parametrize("path", ["/", "/main.js", "/healthz", "/v1/models", "/nothing"])
def test_every_answer_says_what_a_page_may_do_and_that_it_is_not_to_be_framed(
    unlocked: Serving, path: str
) -> None:
    headers = httpx2.get(unlocked.url(path)).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
