"""Sessions that move: bits as if they had not, nothing said is lost, and nobody needs to know."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fsspec.implementations.local import LocalFileSystem
from websockets import ConnectionClosed
from websockets.sync.client import connect as open_socket

from millstream.client.sync_client import connect
from millstream.core.client_messages import Ask
from millstream.core.controls import SetPrompt
from millstream.core.errors import UnknownSession
from millstream.fleet import member, replica_link
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.shared_files import SharedFiles
from tests.fleet.playing import SmallFleet, digests, small_fleet
from tests.server.serving import SESSION_BYTES, START, Client, wait_until

SEA = Ask(prompt="sea", fps=24.0, seed=5)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallFleet]:
    """Each test may drain one of them."""
    with small_fleet(tmp_path_factory.mktemp("fleet"), ("tiny-a", "tiny-b", "tiny-c", "tiny-d")) as running:
        yield running


def test_a_session_that_moves_under_steering_shows_what_it_would_have_shown(fleet: SmallFleet) -> None:
    with connect(fleet.url, format="raw") as still:
        still.start(SEA)
        receipt = still.steer(SetPrompt(prompt="a storm"), at_chunk=3)
        still.steer(SetPrompt(prompt="a calm"), at_chunk=6)
        expected = digests(still, 9)
        assert still.applied(receipt).chunk_index == 3
    with connect(fleet.url, format="raw") as moved:
        live = moved.start(SEA)
        home = fleet.place_of(live.session)
        moved.steer(SetPrompt(prompt="a storm"), at_chunk=3)
        late = moved.steer(SetPrompt(prompt="a calm"), at_chunk=6)
        seen = digests(moved, 2)
        fleet.drain(home)
        seen |= digests(moved, 7)
        assert fleet.place_of(live.session) != home
        assert moved.applied(late).chunk_index == 6
    assert seen == expected
    assert sorted(seen) == list(range(9)), "none twice, none missing"


def test_a_client_that_does_not_follow_is_relayed_and_hears_nothing_of_a_move(fleet: SmallFleet) -> None:
    with open_socket(f"ws{fleet.url[4:]}/v1/stream", compression=None, max_size=None) as socket:
        client = Client(socket)
        assert client.hear("hello")["moves"] is True
        client.say(START | {"formats": ["raw"]})
        session = client.hear("live")["session"]
        first = [client.hear("chunk")["index"] for _ in range(2)]
        home = fleet.place_of(session)
        fleet.drain(home)
        wait_until(lambda: fleet.place_of(session) != home, "it has moved")
        client.say({"type": "control", "control": {"type": "prompt", "prompt": "a storm", "id": "mine"}})
        assert client.hear("receipt", state="applied")["control_id"] == "mine"
        client.hear("chunk")
        rest = [message["index"] for message in client.heard if message["type"] == "chunk"]
        assert rest == list(range(len(rest))), "none twice, none missing"
        assert len(rest) > len(first)
        assert not [message for message in client.heard if message["type"] in ("moved", "ended", "error")]
        client.say({"type": "stop"})
        client.hear("ended")


def test_a_session_that_moves_gets_no_further_ahead_of_its_viewer(fleet: SmallFleet) -> None:
    with connect(fleet.url, format="raw") as client:
        live = client.start(Ask(prompt="sea", fps=4.0))
        dry_at = time.monotonic()
        for number in range(3):
            chunk = client.next_chunk()
            assert chunk is not None
            dry_at = max(dry_at, time.monotonic()) + chunk.header.frames / chunk.fps
            assert dry_at - time.monotonic() <= live.config["lead_s"] + 0.5, (
                f"chunk {number} came before its time"
            )
            if number == 1:
                move(fleet, live.session)


def test_what_is_asked_of_a_session_while_it_moves_is_done_where_it_goes(
    fleet: SmallFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_link, "PLACE_S", 60.0)
    monkeypatch.setattr(member, "HELD_S", 60.0)
    arrives = threading.Event()
    with connect(fleet.url, format="raw") as client, ThreadPoolExecutor(3) as pool:
        live = client.start(SEA)
        client.next_chunk()
        home = fleet.place_of(live.session)
        for name in fleet.running.ready:
            monkeypatch.setattr(
                fleet.servers[name].hub.keeper, "find", slow(fleet.servers[name].hub.keeper.find, arrives)
            )
        try:
            pool.submit(move, fleet, live.session)
            wait_until(
                lambda: fleet.servers[home].hub.live_sessions[live.session].handoff.is_open,
                "it is about to leave",
            )
            saving = pool.submit(client.save)
            forking = pool.submit(
                httpx2.post, f"{fleet.url}/v1/sessions/{live.session}/forks", json={}, timeout=60
            )
            assert not wait((saving, forking), timeout=0.3).done, "they wait for the move"
        finally:
            arrives.set()
        assert saving.result(60).snapshot
        assert forking.result(60).status_code == 201, forking.result().text
        place = fleet.place_of(live.session)
        assert place != home
        assert forking.result().json()["session"] in fleet.servers[place].hub.live_sessions
        assert sorted(digests(client, 2)) == [1, 2], "and nothing is twice or missing"


def slow(find: Any, arrives: threading.Event) -> Any:
    """A storage that is read only then."""

    async def wait_and_find(*args: Any) -> Any:
        await asyncio.to_thread(arrives.wait, 60)
        return await find(*args)

    return wait_and_find


def move(fleet: SmallFleet, session: str) -> None:
    """To any other replica that takes somebody, once the gateway has heard of it."""
    running = fleet.running
    home = fleet.place_of(session)

    def begins(target: str) -> bool:
        with suppress(UnknownSession):
            running.call(lambda: running.fleet.move(session, target))
            return True
        return False

    wait_until(lambda: any(begins(name) for name in running.ready if name != home), "it can move")
    wait_until(lambda: fleet.place_of(session) != home, "it has moved")


def test_a_second_copy_of_a_session_is_given_up_and_whoever_came_to_it_looks_elsewhere(
    fleet: SmallFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = list[str]()
    fetch = SharedFiles.fetch
    monkeypatch.setattr(
        SharedFiles, "fetch", lambda self, place, target: fetched.append(place) or fetch(self, place, target)
    )
    with connect(fleet.url, format="raw") as client, ExitStack() as stack:
        live = client.start(SEA)
        client.next_chunk()
        wait_until(lambda: bool(list(fleet.shared.glob("sessions/*.safetensors"))), "it is kept")
        home = fleet.place_of(live.session)
        (other, *_) = [name for name in fleet.running.ready if name not in (home, *fleet.threads.stopped)]
        stack.enter_context(busy_disk(fleet.servers[other].hub))
        lost = [stack.enter_context(attached(fleet, other, live.session)) for _ in range(2)]
        for each in lost:
            with pytest.raises(ConnectionClosed):
                each.hear("ended")
        assert not [
            message for each in lost for message in each.heard if message["type"] in ("ended", "error")
        ]
        assert len(fetched) == 1, "its state is fetched once, however many come"
        wait_until(lambda: live.session not in fleet.servers[other].hub.live_sessions, "it is given up")
        assert sorted(digests(client, 2)) == [1, 2]
        assert fleet.place_of(live.session) == home


def test_a_replica_has_no_line_of_its_own_for_sessions_that_come_back(fleet: SmallFleet) -> None:
    with (
        connect(fleet.url, format="raw") as client,
        connect(fleet.url, format="raw") as neighbour,
        ExitStack() as stack,
    ):
        live = client.start(SEA)
        client.next_chunk()
        move(fleet, neighbour.start(SEA).session)
        (other,) = [
            name
            for name in fleet.running.ready
            if fleet.sessions_on(name) and name != fleet.place_of(live.session)
        ]
        admission = fleet.servers[other].hub.service.table.admission
        before = admission.config
        try:
            admission.config = replace(before, memory_bytes=SESSION_BYTES)
            refused = stack.enter_context(attached(fleet, other, live.session)).next()
            assert (refused["type"], refused["code"]) == ("error", "refused")
        finally:
            admission.config = before


@contextmanager
def busy_disk(hub: SessionHub) -> Iterator[None]:
    """Somebody's recording and somebody's state are being written: who comes back does not wait for them."""
    done = threading.Event()
    assert hub.keeper is not None
    for pool in (hub.archive._pool, hub.keeper._pool):
        pool.submit(done.wait)
    try:
        yield
    finally:
        done.set()


@contextmanager
def attached(fleet: SmallFleet, replica_id: str, session: str) -> Iterator[Client]:
    """Somebody who comes to a replica that the session is not on."""
    url = fleet.servers[replica_id].socket_url(f"/v1/stream?ticket={fleet.ticket(replica_id, session)}")
    with open_socket(url, compression=None, max_size=None) as socket:
        client = Client(socket)
        client.hear("hello")
        client.say({"type": "attach", "version": 1, "session": session, "formats": ["raw"], "follow": True})
        yield client


def test_where_storage_is_full_people_are_told_once_and_steer_all_the_same(
    fleet: SmallFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with connect(fleet.url, format="raw") as client:
        client.start(SEA)
        client.next_chunk()
        for name in ("put_file", "pipe_file"):
            monkeypatch.setattr(LocalFileSystem, name, fill)
        for words in ("a storm", "a calm"):
            assert client.applied(client.steer(SetPrompt(prompt=words))).state == "applied"
        assert sorted(digests(client, 3))
        assert sum("full or gone" in note for note in client.notes) == 1


def test_a_move_that_storage_fails_is_called_off_and_the_stream_goes_on(
    fleet: SmallFleet, tmp_path: Path
) -> None:
    events = fleet.running.fleet.notes.events
    with connect(fleet.url, format="raw") as client:
        live = client.start(SEA)
        client.next_chunk()
        home = fleet.place_of(live.session)
        fleet.shared.rename(tmp_path / "unplugged")
        fleet.shared.write_bytes(b"")
        try:
            fleet.drain(home)
            wait_until(lambda: any(event.kind == "move failed" for event in tuple(events)), "it was tried")
            storm = client.steer(SetPrompt(prompt="a storm"))
            client.steer(SetPrompt(prompt="a calm"))
            assert client.applied(storm).state == "applied"
            seen = digests(client, 2)
            assert fleet.place_of(live.session) == home
        finally:
            fleet.shared.unlink()
            (tmp_path / "unplugged").rename(fleet.shared)
        wait_until(lambda: fleet.place_of(live.session) != home, "it is tried again")
        seen |= digests(client, 2)
        assert sorted(seen) == [1, 2, 3, 4]
        assert sum("is not kept" in note for note in client.notes) == 1, (
            "told once, for a move and two controls"
        )
