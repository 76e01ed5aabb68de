"""Several keys: what one opens is not there for another, and each has its own limits."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from millstream.core.errors import ConfigError, NotAllowed, Overloaded, UnknownSession
from millstream.core.keys import Key
from millstream.server.access.auth import Access, Gate, access_for
from millstream.server.access.budgets import ClientAccount as Accounted
from millstream.server.access.budgets import ClientRates, Clients
from millstream.server.access.keys import Keyring, KeyTable, key_from
from millstream.server.app import AppConfig
from millstream.server.logs import PlainFormatter
from millstream.server.sessions.hub import SessionHub
from millstream.server.transport.peers import Peers
from tests.server.fakes import TINY, FakeService
from tests.server.hub_plays import SEA, with_hub
from tests.server.serving import START, Client, Serving, serving

ALICE, BOB, SMALL, LEAN, GUEST = (f"the-key-of-{name}" for name in ("alice", "bob", "small", "lean", "guest"))
WRONG = "wrong-key-altogether"
KEYS = {
    ALICE: Key(name="alice"),
    BOB: Key(name="bob"),
    SMALL: Key(name="small", max_sessions=1, max_fps=10.0, max_snapshots=1),
    LEAN: Key(name="lean", max_snapshot_bytes=10),
    GUEST: Key(name="guest", read_only=True),
}


def ring() -> Keyring:
    keyring = Keyring()
    for secret, key in KEYS.items():
        keyring.add(secret, key)
    return keyring


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    access = access_for("127.0.0.1", api_key=None, insecure=False, origins=[], keyring=ring())
    with serving(tmp_path_factory.mktemp("kept"), AppConfig(access=access)) as running:
        yield running


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def ask(server: Serving, key: str, method: str, path: str, **options: Any) -> httpx2.Response:
    return httpx2.request(method, server.url(path), headers=bearer(key), **options)


def line_to(server: Serving, key: str) -> AbstractContextManager[Client]:
    return server.client(additional_headers=bearer(key))


def refusal(client: Client, **message: Any) -> dict[str, Any]:
    opens = message["type"] in ("start", "attach", "restore")
    client.say({"version": 1, **message} if opens else message)
    return client.hear("error")


def test_over_rest_a_session_is_not_there_for_another_key(server: Serving) -> None:
    session = ask(server, ALICE, "POST", "/v1/sessions", json={"prompt": "sea"}).json()["session"]
    here = f"/v1/sessions/{session}"
    control = {"control": {"type": "pause"}}
    offer = {"sdp": "", "type": "offer", "start": {"type": "attach", "version": 1, "session": session}}
    for method, path, body in (
        ("GET", here, None), ("DELETE", here, None), ("POST", f"{here}/controls", control), ("GET", f"{here}/controls", None),
        ("POST", f"{here}/recording", {"on": True}), ("GET", f"{here}/recordings", None), ("GET", f"{here}/journal", None),
        ("POST", f"{here}/snapshots", None), ("GET", f"{here}/snapshots", None),
        ("POST", "/v1/webrtc/offer", offer),
    ):  # fmt: skip
        answer = ask(server, BOB, method, path, json=body)
        nowhere = ask(server, BOB, method, path.replace(session, "nowhere"), json=body)
        assert answer.status_code == 404, (method, path)
        assert path == "/v1/webrtc/offer" or answer.json() == nowhere.json(), (
            "nor can they tell that it is there"
        )
    assert ask(server, BOB, "GET", "/v1/sessions").json()["sessions"] == []
    assert len(ask(server, ALICE, "GET", "/v1/sessions").json()["sessions"]) == 1
    assert ask(server, ALICE, "GET", here).status_code == 200
    assert ask(server, ALICE, "DELETE", here).status_code == 204
    server.until_empty()


def test_over_a_socket_another_key_may_watch_a_view_link_and_nothing_else(server: Serving) -> None:
    with line_to(server, ALICE) as alice, line_to(server, BOB) as bob:
        live = alice.start()
        assert refusal(bob, type="attach", session=live["session"])["code"] == "not_found"
        bob.say({"type": "view", "version": 1, "view": live["view"]})
        assert bob.hear("live")["session"] == ""
        assert refusal(bob, type="control", control={"type": "pause"})["code"] == "read_only"
        with line_to(server, ALICE) as again:
            again.say({"type": "attach", "version": 1, "session": live["session"]})
            assert again.hear("live")["session"] == live["session"]
        alice.say({"type": "stop"})
        alice.hear("ended")
    server.until_empty()


def test_a_session_that_outlives_the_server_comes_back_to_its_key_and_to_no_other(tmp_path: Path) -> None:
    access = access_for("127.0.0.1", api_key=None, insecure=False, origins=[], keyring=ring())
    with (
        serving(tmp_path, AppConfig(access=access), keep_chunks=2) as server,
        line_to(server, ALICE) as alice,
    ):
        session = alice.start()["session"]
        alice.hear("chunk")
    with (
        serving(tmp_path, AppConfig(access=access), keep_chunks=2) as server,
        line_to(server, ALICE) as alice,
        line_to(server, BOB) as bob,
    ):
        assert refusal(bob, type="attach", session=session)["code"] == "not_found"
        alice.say({"type": "attach", "version": 1, "session": session})
        assert alice.hear("live")["session"] == session
        assert refusal(bob, type="attach", session=session)["code"] == "not_found"


def test_what_is_kept_belongs_to_the_key_too(server: Serving) -> None:
    with line_to(server, ALICE) as alice:
        journal = alice.start()["journal"]
        alice.hear("chunk")
        alice.say({"type": "save"})
        name = alice.hear("saved")["snapshot"]
        alice.say({"type": "stop"})
        alice.hear("ended")
    server.until(
        lambda: ask(server, ALICE, "GET", f"/v1/journals/{journal}").status_code == 200, "the journal is kept"
    )
    assert ask(server, BOB, "GET", f"/v1/journals/{journal}").status_code == 404
    snapshot = f"/v1/snapshots/{name}"
    for method, path in (("GET", snapshot), ("DELETE", snapshot), ("POST", f"{snapshot}/sessions")):
        assert ask(server, BOB, method, path).status_code == 404
    with line_to(server, BOB) as bob:
        assert refusal(bob, type="restore", snapshot=name)["code"] == "not_found"
    restored = ask(server, ALICE, "POST", f"{snapshot}/sessions").json()["session"]
    assert ask(server, BOB, "GET", f"/v1/sessions/{restored}").status_code == 404
    assert ask(server, ALICE, "DELETE", f"/v1/sessions/{restored}").status_code == 204
    assert ask(server, ALICE, "DELETE", snapshot).status_code == 204
    assert ask(server, ALICE, "GET", snapshot).status_code == 404
    server.until_empty()


def test_each_limit_is_met_by_name_and_others_go_on(server: Serving) -> None:
    with line_to(server, SMALL) as first, line_to(server, SMALL) as second, line_to(server, ALICE) as alice:
        too_fast = refusal(first, **START | {"fps": 24.0})
        assert too_fast["message"] == "max-fps of the key 'small' is 10; ask for that or less"
        assert too_fast["offer"] == {"fps": 10.0}
        assert first.start(fps="auto")["config"]["fps"] <= 10
        assert "max-sessions of the key 'small' is 1" in refusal(second, **START | {"fps": 5.0})["message"]
        first.hear("chunk")
        first.say({"type": "save"})
        kept = first.hear("saved")["snapshot"]
        assert "max-snapshots of the key 'small' is 1" in refusal(first, type="save")["message"]
        assert ask(server, SMALL, "DELETE", f"/v1/snapshots/{kept}").status_code == 204
        first.say({"type": "save"})
        assert first.hear("saved")["snapshot"]
        assert alice.start(fps=24.0)["session"]
        for client in (first, alice):
            client.say({"type": "stop"})
            client.hear("ended")
    server.until_empty()


def test_a_snapshot_larger_than_the_quota_is_refused_and_nothing_of_it_is_left(server: Serving) -> None:
    with line_to(server, LEAN) as client:
        client.start()
        client.hear("chunk")
        assert "max-snapshot-bytes of the key 'lean' is 10" in refusal(client, type="save")["message"]
        assert server.hub.archive_of(KEYS[LEAN]).store.held("snapshots") == (0, 0)
        client.say({"type": "stop"})
        client.hear("ended")
    server.until_empty()


def test_a_read_only_key_watches_and_opens_nothing(server: Serving) -> None:
    with line_to(server, ALICE) as alice, line_to(server, GUEST) as guest:
        view = alice.start()["view"]
        refused = refusal(guest, **START)
        assert (refused["code"], "'guest' is read-only" in refused["message"]) == ("read_only", True)
        for path, body in (
            ("/v1/sessions", {"prompt": "sea"}), ("/v1/snapshots", {}), ("/api/v1/pipeline/load", {"pipeline_id": "wan-tiny"}),
        ):  # fmt: skip
            assert ask(server, GUEST, "POST", path, json=body).status_code == 403, path
        guest.say({"type": "view", "version": 1, "view": view})
        assert guest.hear("chunk")
        alice.say({"type": "stop"})
        alice.hear("ended")
    server.until_empty()


def test_no_key_is_in_the_metrics_the_log_or_a_refusal(
    server: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with line_to(server, SMALL) as client:
        said = [
            str(refusal(client, **START | {"fps": 99.0})),
            str(refusal(client, type="attach", session="nowhere")),
        ]
        client.start(fps="auto")
        client.say({"type": "stop"})
        client.hear("ended")
    said += [PlainFormatter().format(record) for record in caplog.records]
    assert any("key small" in line for line in said), "a name may be told"
    said += [
        ask(server, key, "GET", path).text
        for key in (SMALL, "wrong-key-altogether")
        for path in ("/metrics", "/v1/sessions/x")
    ]
    said += [caplog.text, repr(ring().__dict__), repr(KEYS[SMALL])]
    for key in (*KEYS, WRONG):
        assert not any(key in text for text in said), key


def test_what_was_loaded_or_connected_in_scopes_words_is_a_keys_own(server: Serving) -> None:
    load = {"pipeline_id": "wan-tiny", "load_params": {"height": 32, "width": 32}}
    assert ask(server, ALICE, "POST", "/api/v1/pipeline/load", json=load).status_code == 200
    status = {
        key: ask(server, key, "GET", "/api/v1/pipeline/status").json()["load_params"] for key in (ALICE, BOB)
    }
    assert status == {ALICE: load["load_params"], BOB: {}}
    peer: Any = SimpleNamespace(client=Accounted().bringing(KEYS[ALICE], ""))
    peers = Peers(_peers={"its-id": peer})
    assert peers.find("its-id", KEYS[ALICE]) is peer
    with pytest.raises(UnknownSession):
        peers.find("its-id", KEYS[BOB])


def test_a_key_opens_as_many_sessions_as_it_says_and_a_read_only_one_none() -> None:
    KEYS[SMALL].check_sessions(0)
    with pytest.raises(Overloaded, match="max-sessions of the key 'small' is 1, and all are open"):
        KEYS[SMALL].check_sessions(1)
    KEYS[ALICE].check_sessions(10_000)
    for check in (KEYS[GUEST].check_steering, lambda: KEYS[GUEST].check_sessions(0)):
        with pytest.raises(NotAllowed, match="the key 'guest' is read-only"):
            check()


def test_every_key_is_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(own: bytes, brought: bytes) -> bool:
        compared.append((own, brought))
        return own == brought

    keyring = ring()
    monkeypatch.setattr(hmac, "compare_digest", compare)
    for secret, name in ((ALICE, "alice"), (GUEST, "guest"), ("nobody's", None)):
        found = keyring.find([secret])
        assert (None if found is None else found.name) == name
        assert len(compared) == len(KEYS)
        assert len({len(digest) for pair in compared for digest in pair}) == 1, (
            "whatever the length of what was brought"
        )
        compared.clear()


def test_wrong_keys_are_throttled_where_there_are_several() -> None:
    clients = Clients(ClientRates(wrong_keys=(0.001, 2)))
    gate = Gate(PlainTextResponse("in"), access=Access(keyring=ring()), open_paths=[], clients=clients)
    client = TestClient(gate, base_url="http://127.0.0.1")
    keys = (BOB, "guess-one", "guess-two", "guess-three", BOB)
    assert [client.get("/v1/models", headers=bearer(key)).status_code for key in keys] == [
        200,
        401,
        401,
        429,
        429,
    ]


def test_a_keys_weight_is_that_of_its_sessions() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        light = hub.open(SEA, TINY, weight=0.5, key=Key(name="light", weight=0.5))
        assert light.request.weight == 0.25
        assert hub.open(SEA, TINY).request.weight == 1.0

    with_hub(play)


def test_a_key_comes_from_the_file_a_variable_or_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOOR_KEY", "from-the-environment")
    (tmp_path / "key").write_text("from-a-file-of-its-own\n")
    keyring = Keyring()
    keyring.add_table("a", KeyTable(key="from-the-config", max_fps=12))
    keyring.add_table("b", KeyTable(key_env="DOOR_KEY"))
    keyring.add_table("c", KeyTable(key_file=str(tmp_path / "key")))
    assert keyring.find(["from-the-config"]) == Key(name="a", max_fps=12)
    assert keyring.find(["from-the-environment"]) == Key(name="b")
    assert keyring.find(["nonsense", "from-a-file-of-its-own"]) == Key(name="c")


@pytest.mark.parametrize(("name", "table", "why"), [
    ("a", KeyTable(), "give one of"), ("a", KeyTable(key="long-enough", key_env="HOME"), "give one of"),
    ("a", KeyTable(key="short"), "8 to 256"), ("a", KeyTable(key_env="NO_SUCH_VARIABLE"), "is not set"),
    ("a", KeyTable(key_file="/no/such/file"), "No such file"), ("../up", KeyTable(key="long-enough"), "name has up to 32"),
    ("a", KeyTable(key="long-enough", read_only=True, max_sessions=2), "read-only"),
    ("b", KeyTable(key="the-key-of-alice"), "key of 'alice' too"),
])  # fmt: skip
def test_a_key_that_cannot_be_is_refused_without_telling_it(name: str, table: KeyTable, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        ring().add_table(name, table)
    assert table.key is None or table.key not in str(refused.value)


def test_one_key_for_everybody_and_keys_with_names_are_not_mixed() -> None:
    with pytest.raises(ConfigError, match="--api-key"):
        access_for("127.0.0.1", api_key="long-enough", insecure=False, origins=[], keyring=ring())
    assert access_for("0.0.0.0", api_key=None, insecure=False, origins=[], keyring=ring()).names is None
    assert key_from("a", KeyTable(max_sessions=3)).max_sessions == 3
