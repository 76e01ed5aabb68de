"""No client alone keeps others out: it has its share of what there is, and the rest is for them."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from millstream.core.errors import Overloaded
from millstream.server.access.budgets import ClientRates
from millstream.server.access.shares import Holdings, Quota
from millstream.server.app import AppConfig
from millstream.server.sessions.file_store import FileStore, StoreLimits
from millstream.server.sessions.hub import SessionHub
from millstream.server.transport import listener
from tests.server.fakes import TINY, FakeService
from tests.server.hub_plays import SEA, with_hub
from tests.server.serving import serving

STRANGER = "127.0.0.2"


def kept(store: FileStore, owner: str, num_bytes: int = 10) -> str:
    name, path = store.new("snapshots")
    path.write_bytes(bytes(num_bytes))
    return store.add("snapshots", name, owner=owner).name


def test_one_who_saves_without_end_pushes_out_nothing_but_their_own(tmp_path: Path) -> None:
    before = kept(FileStore(tmp_path), "from an earlier run")
    store = FileStore(tmp_path, StoreLimits(max_files=20, max_bytes=2000))
    strangers = [before, kept(store, "a"), kept(store, "b"), kept(store, "b")]
    for num_bytes in (10, 100):  # too many files, then too many bytes
        own = [kept(store, "greedy", num_bytes) for _ in range(200)]
        assert all(store.get("snapshots", name) for name in strangers)
        assert store.get("snapshots", own[-1]), "the newest is there"
        assert not store.get("snapshots", own[0])


def test_where_everybody_keeps_as_much_the_oldest_goes(tmp_path: Path) -> None:
    store = FileStore(tmp_path, StoreLimits(max_files=3))
    names = [kept(store, owner) for owner in "abcd"]
    assert [bool(store.get("snapshots", name)) for name in names] == [False, True, True, True]


def test_one_client_does_not_fill_the_server_with_sessions() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        for _ in range(16):
            hub.open(SEA, TINY, client="greedy")
        with pytest.raises(Overloaded, match="16 sessions of yours"):
            hub.open(SEA, TINY, client="greedy")
        others = [hub.open(SEA, TINY, client=name) for name in "ab"]
        assert len(hub.live_sessions) == 18
        with pytest.raises(Overloaded, match="18 sessions are open"):
            hub.open(SEA, TINY, client="c")
        service.end(others[0].session_id, "enough")
        while len(hub.live_sessions) == 18:
            await asyncio.sleep(0.01)
        hub.open(SEA, TINY, client="c")

    with_hub(play, max_sessions=16)


def test_who_holds_something_is_counted_until_they_let_go() -> None:
    held = Holdings(Quota(2), "things")
    with held.one_by("a"), held.one_by("a"), held.one_by("b"):
        for client in "ac":
            with pytest.raises(Overloaded), held.one_by(client):
                pass
    with held.one_by("c"):
        held.check("a")


def test_sessions_and_sockets_are_counted_by_address() -> None:
    with serving(max_sessions=2) as server, server.client() as first, server.client() as second:
        first.start()
        second.start()
        with server.client() as third, server.client(source=STRANGER) as stranger:
            third.say({"type": "start", "version": 1, "prompt": "sea"})
            assert "of yours" in third.hear("error", code="refused")["message"]
            assert stranger.start()["session"]


def test_saves_of_one_client_have_a_rate_and_others_save_on(tmp_path: Path) -> None:
    config = AppConfig(rates=ClientRates(saves=(0.001, 2)))
    with (
        serving(tmp_path, config) as server,
        server.client() as client,
        server.client(source=STRANGER) as stranger,
    ):
        session = client.start()["session"]
        stranger.start()
        for _ in range(2):
            client.say({"type": "save"})
            assert client.hear("saved")["snapshot"]
        client.say({"type": "save"})
        assert client.hear("error", code="too_fast")
        assert httpx2.post(server.url(f"/v1/sessions/{session}/snapshots")).status_code == 429
        stranger.say({"type": "save"})
        assert stranger.hear("saved")["snapshot"]


def test_connections_of_one_address_do_not_keep_others_from_being_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "CONNECTIONS", Quota(4))
    with serving() as server, ExitStack() as held:
        host, port = server.address.split(":")
        for _ in range(4):
            held.enter_context(socket.create_connection((host, int(port))))
        assert httpx2.get(server.url("/healthz")).status_code == 503
        elsewhere = httpx2.HTTPTransport(local_address=STRANGER)
        with httpx2.Client(transport=elsewhere) as stranger:
            assert stranger.get(server.url("/healthz")).status_code == 200
