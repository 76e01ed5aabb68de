"""The native protocol over real sockets and a real model: people steer, leave, come back and misbehave; nobody else notices."""

from __future__ import annotations

import io
import json
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import av
import httpx2
import numpy as np
import pytest
import torch
from PIL import Image
from websockets.exceptions import ConnectionClosed

from millstream.runtime.journal import read_journal
from millstream.server import bodies, rest, sockets
from millstream.server.app import AppConfig
from millstream.server.limits import ClientLimits
from tests.server.serving import START, Client, Serving, serving, wait_until
from tests.server.test_conversation import message as rubbish


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    limits = ClientLimits(messages_per_s=1e9, controls_per_s=1e9, max_refusals=50)
    with serving(tmp_path_factory.mktemp("data"), AppConfig(limits=limits)) as running:
        yield running


@pytest.fixture(autouse=True)
def _nothing_is_left(server: Serving) -> Iterator[None]:
    yield
    for session_id in list(server.hub.stations):
        server.hub.service.end(session_id)
    server.until(lambda: not server.hub.stations, "all stations are gone")


def test_a_prompt_is_steered_and_gets_its_two_receipts(server: Serving) -> None:
    with server.client() as client:
        live = client.start()
        assert live["format"] == "jpeg"
        first = client.hear("chunk")
        assert (first["index"], first["frames"], len(first["parts"])) == (0, 9, 9)
        assert Image.open(io.BytesIO(first["parts"][0])).size == (64, 64)
        assert first["prompts"] == [{"text": "sea", "weight": 1.0}]
        client.say({"type": "control", "control": {"type": "prompt", "prompt": "storm", "id": "mine"}})
        queued = client.hear("receipt", state="queued")
        applied = client.hear("receipt", state="applied")
        shown = client.hear("chunk", index=applied["chunk_index"])
        assert queued["control_id"] == applied["control_id"] == "mine"
        assert shown["receipts"] == [{"control_id": "mine", "state": "applied", "chunk_index": shown["index"]}]
        assert shown["prompts"][0]["text"] == "storm"
        assert client.hear("stats")["viewers"] == 1
        client.say({"type": "stop"})
        assert client.hear("ended")["cause"] == "closed"
        with pytest.raises(ConnectionClosed) as closed:
            client.next()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000


def test_two_people_have_two_pictures_and_the_same_seed_gives_the_same(server: Serving) -> None:
    with server.client() as one, server.client() as two, server.client() as three:
        for client, seed in ((one, 1), (two, 2), (three, 1)):
            client.start(formats=["raw"], seed=seed)
        pictures = [[client.hear("chunk", index=index)["parts"] for index in range(3)] for client in (one, two, three)]
        assert pictures[0] == pictures[2]
        assert pictures[0] != pictures[1]


def test_a_film_in_fragments_plays_from_wherever_one_joins(server: Serving) -> None:
    with server.client() as owner, server.client() as late:
        live = owner.start(formats=["mp4"])
        opening = owner.hear("init")["parts"][0]
        parts = [owner.hear("chunk", index=index)["parts"][0] for index in range(3)]
        with av.open(io.BytesIO(opening + b"".join(parts))) as film:
            assert len(list(film.decode(video=0))) == 33
        late.say({"type": "view", "version": 1, "view": live["view"], "formats": ["mp4"]})
        late_opening, chunk = late.hear("init")["parts"][0], late.hear("chunk")
        with av.open(io.BytesIO(late_opening + chunk["parts"][0])) as film:
            assert len(list(film.decode(video=0))) == 12


def test_a_lost_connection_stands_still_and_goes_on_where_it_was(server: Serving) -> None:
    with server.client() as client:
        session = client.start(formats=["raw"])["session"]
        client.hear("chunk", index=1)
        client.connection.socket.shutdown(socket.SHUT_RDWR)  # as when a cable is pulled
    station = server.hub.stations[session]
    server.until(lambda: not station.viewers, "the loss is noticed")
    with server.client() as again:
        again.say({"type": "attach", "version": 1, "session": session, "formats": ["raw"]})
        assert again.hear("live")["session"] == session
        first = again.hear("chunk")
        following = again.hear("chunk")
        assert following["index"] == first["index"] + 1
        assert following["media_s"] > first["media_s"] > 0


def test_many_may_watch_one_session(server: Serving) -> None:
    with server.client() as owner:
        live = owner.start(formats=["raw"])
        watchers = [server.client() for _ in range(4)]
        clients = [watcher.__enter__() for watcher in watchers]
        for client in clients:
            client.say({"type": "view", "version": 1, "view": live["view"], "formats": ["raw"]})
            assert client.hear("live")["session"] == ""
        target = owner.hear("chunk")["index"] + 3
        expected = owner.hear("chunk", index=target)["parts"]
        for client in clients:
            assert client.hear("chunk", index=target)["parts"] == expected
        for watcher in watchers:
            watcher.__exit__(None, None, None)


def test_a_camera_in_and_a_picture_out(server: Serving) -> None:
    with server.client() as client:
        client.start(input=True, noise_scale=0.3, formats=["raw"])
        for number in range(21):
            file = io.BytesIO()
            Image.fromarray(np.full((48, 60, 3), 10 * number, np.uint8)).save(file, "JPEG")
            client.say(file.getvalue())
        assert client.hear("chunk")["frames"] == 9
        assert client.hear("chunk")["frames"] == 12
        client.say(b"no picture")
        assert client.hear("error")["code"] == "bad_message"
        client.say({"type": "control", "control": {"type": "noise_scale", "noise_scale": 0.9}})
        assert client.hear("receipt")["state"] == "queued"


def loose_threads() -> int:
    """Those of no pool: a pool's come when they are needed and are few."""
    return sum(not thread.name.startswith(("millstream-", "asyncio_")) for thread in threading.enumerate())


def download(server: Serving, url: str) -> bytes:
    answer = httpx2.get(server.url(url), timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.content


def frames_of(film: bytes) -> int:
    with av.open(io.BytesIO(film)) as container:
        return sum(1 for _ in container.decode(video=0))


def test_a_recording_is_whole_when_it_is_stopped_and_when_its_owner_vanishes(server: Serving) -> None:
    with server.client() as client:
        session = client.start()["session"]
        client.hear("chunk")
        client.say({"type": "record", "on": True})
        url = client.hear("recording", on=True)["url"]
        for _ in range(2):
            client.hear("chunk")
        client.say({"type": "record", "on": False})
        assert client.hear("recording", on=False)["url"] == url
        client.say({"type": "record", "on": False})
        assert client.hear("error")["code"] == "bad_state"
        assert frames_of(download(server, url)) >= 24
        client.say({"type": "record", "on": True})
        url = client.hear("recording", on=True)["url"]
        client.hear("chunk")
        client.connection.socket.shutdown(socket.SHUT_RDWR)
    station = server.hub.stations[session]
    server.until(lambda: len(station.recordings) == 2, "the recording is closed")
    assert frames_of(download(server, url)) >= 12


def test_a_saved_session_is_restored_as_a_new_one_and_goes_on_to_the_same_bits(server: Serving) -> None:
    with server.client() as client:
        session = client.start(formats=["raw"])["session"]
        client.hear("chunk", index=1)
        client.say({"type": "control", "control": {"type": "pause"}})
        client.hear("receipt", state="applied")
        client.say({"type": "save"})
        saved = client.hear("saved")
        assert saved["bytes"] > 10_000
        client.say({"type": "control", "control": {"type": "resume"}})
        seen = client.hear("chunk")
        following = [seen, client.hear("chunk")]
    with server.client() as client:
        client.say({"type": "restore", "version": 1, "snapshot": saved["snapshot"], "formats": ["raw"]})
        live = client.hear("live")
        assert live["session"] not in ("", session)
        client.say({"type": "control", "control": {"type": "resume"}})
        for expected in following:
            assert client.hear("chunk", index=expected["index"])["parts"] == expected["parts"]
        client.say({"type": "save"})
        client.hear("saved")
    with server.client() as client:
        client.say({"type": "restore", "version": 1, "snapshot": "../" * 5 + "etc/passwd"})
        assert client.hear("error")["code"] == "not_found"


def test_every_session_leaves_a_journal_that_can_be_read(server: Serving) -> None:
    with server.client() as client:
        session = client.start()["session"]
        client.hear("chunk", index=2)
        client.say({"type": "stop"})
        client.hear("ended")
    kept = server.hub.archive.shelf._kept["journals"]
    wait_until(lambda: any(read_journal(each.path).header.session_id == session for each in list(kept.values())), "kept")


def test_the_line_is_told_and_moves_up() -> None:
    with serving(places=1) as small, small.client() as first, small.client() as second, small.client() as third:
        first.start()
        first.hear("chunk")
        second.say(START | {"wait": True})
        assert second.hear("waiting")["position"] == 1
        second.say({"type": "control", "control": {"type": "cut"}})
        assert second.hear("error")["code"] == "bad_control"
        third.say(START)
        refused = third.hear("error")
        assert refused["code"] == "refused"
        assert refused["message"]
        first.say({"type": "stop"})
        assert second.hear("live")["session"]
        assert second.hear("chunk")["index"] == 0


def test_rubbish_over_real_sockets_disturbs_nobody_and_leaves_nothing(server: Serving) -> None:
    """Some hundred messages from clients that leave in the middle, beside one whose pictures must not change."""
    with server.client() as calm:
        calm.start(formats=["raw"], seed=5)
        alone = [calm.hear("chunk", index=index)["parts"] for index in range(5)]
    threads = loose_threads()
    with server.client() as calm:
        own = calm.start(formats=["raw"], seed=5)["session"]
        crowd = threading.Thread(target=talk_rubbish, args=(server, own))
        crowd.start()
        assert [calm.hear("chunk", index=index)["parts"] for index in range(5)] == alone
        while crowd.is_alive():
            calm.next()
    server.until(lambda: all(not station.viewers for station in server.hub.stations.values()), "everybody has left")
    server.until(lambda: loose_threads() <= threads, "all threads are gone")


def talk_rubbish(server: Serving, spared: str) -> None:
    dice = random.Random(11)
    for _ in range(8):
        with server.client(close_timeout=0.1) as rude:
            for _ in range(40):
                names = ["nobody", *(set(server.hub.stations) - {spared})]
                try:
                    rude.say(rubbish(dice, names) if dice.random() < 0.9 else json.dumps(START))
                except ConnectionClosed:  # it may have said stop, or too much that was wrong
                    break


def test_one_who_says_only_wrong_things_is_sent_away(server: Serving) -> None:
    def insist(client: Client) -> None:
        for _ in range(200):
            client.say("rubbish")
            client.hear("error")

    with server.client() as client:
        with pytest.raises(ConnectionClosed) as closed:
            insist(client)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


def test_a_message_that_is_far_too_large_closes_the_connection_it_came_on(server: Serving) -> None:
    def shout(client: Client) -> None:
        client.say(b"x" * (9 * 2**20))
        client.hear("chunk")

    with server.client() as client:
        with pytest.raises(ConnectionClosed) as closed:
            shout(client)
        told = closed.value.rcvd  # nothing, where the line broke while it was still being shouted into
        assert told is None or told.code == 1009


def test_controls_after_stop_are_answered_until_the_session_has_ended(server: Serving) -> None:
    with server.client() as client:
        client.start()
        client.hear("chunk")
        client.say({"type": "control", "control": {"type": "stop", "id": "stop"}})
        for number in range(5):
            client.say({"type": "control", "control": {"type": "cut", "id": f"late{number}"}})
        assert client.hear("ended")["cause"] == "stopped"
        with pytest.raises(ConnectionClosed):
            client.next()
        answers = {message["control_id"] for message in client.heard if message["type"] in ("receipt", "error")}
        assert answers == {"stop", *(f"late{number}" for number in range(5))}


def test_a_session_that_fails_ends_alone(server: Serving) -> None:
    with server.client() as well, server.client() as ill:
        well.start()
        session = ill.start()["session"]
        ill.hear("chunk")
        caches = server.hub.service.engine.generator.caches

        def fall_ill(live: object) -> None:
            def out_of_memory(decision: object) -> None:
                raise torch.OutOfMemoryError("CUDA out of memory")

            live.prepare = out_of_memory  # type: ignore[attr-defined]

        server.hub.service.on_engine(session, fall_ill).result(30)
        ended = ill.hear("ended")
        assert ended["cause"] == "failed"
        assert "memory" in ended["reason"]
        assert session not in caches
        well.hear("chunk", index=well.hear("chunk")["index"] + 2)


def test_a_slow_reader_loses_pictures_oldest_first_and_no_receipt(server: Serving) -> None:
    """It asks for raw pictures through a narrow socket, reads nothing for a while, then everything."""
    with server.client(narrow=True) as slow, server.client() as quick:
        live = slow.start(formats=["raw"], lead_s=30)
        quick.say({"type": "attach", "version": 1, "session": live["session"]})
        quick.hear("live")
        for number in range(12):
            quick.say({"type": "control", "control": {"type": "seed", "seed": number, "id": f"s{number}"}})
            quick.hear("receipt", control_id=f"s{number}", state="applied")
        last = quick.hear("chunk")["index"]
        (viewer,) = [v for v in server.hub.stations[live["session"]].viewers if v.format == "raw"]
        server.until(lambda: viewer.outbox.dropped > 0, "pictures are dropped")
        chunks = [slow.hear("chunk")]
        while chunks[-1]["index"] <= last or not chunks[-1]["parts"]:
            chunks.append(slow.hear("chunk"))
        assert [chunk["index"] for chunk in chunks] == list(range(len(chunks))), "every header comes, in order"
        assert chunks[-1]["dropped"] > 0
        assert any(not chunk["parts"] for chunk in chunks)
        receipts = [receipt["control_id"] for chunk in chunks for receipt in chunk["receipts"]]
        assert [name for name in receipts if name.startswith("s")] == [f"s{number}" for number in range(12)]


def test_connecting_and_leaving_a_hundred_times_leaves_nothing(server: Serving) -> None:
    threads = loose_threads()
    for number in range(100):
        with server.client() as client:
            if number % 4 == 0:
                client.start(fps=1.0)
            if number % 12 == 0:
                client.hear("chunk")
            if number % 2:
                client.connection.socket.close()
    server.until(lambda: all(not station.viewers for station in server.hub.stations.values()), "everybody has left")
    for session_id in list(server.hub.stations):
        server.hub.service.end(session_id)
    server.until(lambda: not server.hub.stations and not server.hub._tasks, "all tasks are done")
    server.until(lambda: loose_threads() <= threads, "all threads are gone")
    assert server.hub.service.engine.generator.caches == {}


def mute(server: Serving) -> socket.socket:
    """A peer that starts a session and is never heard of again, though its connection stays open."""
    host, port = server.address.split(":")
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect((host, int(port)))
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13"
    ask = f"GET /v1/stream HTTP/1.1\r\nHost: {server.address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{key}\r\n\r\n"
    peer.sendall(ask.encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += peer.recv(1)
    assert answer.startswith(b"HTTP/1.1 101"), answer
    words = json.dumps(START | {"lead_s": 30, "formats": ["raw"]}).encode()
    assert len(words) < 126, "short enough for a frame with the shortest head"
    peer.sendall(b"\x81" + bytes([0x80 | len(words)]) + b"\0\0\0\0" + words)
    return peer


@pytest.mark.parametrize(("ping_s", "patience_s"), [(0.3, 60.0), (60.0, 0.3)], ids=["no pong", "nothing taken"])
def test_a_peer_that_went_silent_is_let_go(monkeypatch: pytest.MonkeyPatch, ping_s: float, patience_s: float) -> None:
    monkeypatch.setattr(sockets, "LINGER_S", 0.1)
    limits = ClientLimits(patience_s=patience_s)
    with serving(config=AppConfig(limits=limits), ping_s=ping_s) as quiet, mute(quiet) as peer:
        quiet.until(lambda: any(station.viewers for station in quiet.hub.stations.values()), "it has come")
        quiet.until(lambda: not any(station.viewers for station in quiet.hub.stations.values()), "it is given up")
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
        with sends(server, b"") as silent, sends(server, asked) as half, sends(server, asked + b"\r\n" + asked) as second:
            for peer in (silent, half, second):
                with suppress(ConnectionResetError):
                    while peer.recv(65536):
                        pass
        client.start()
        client.hear("chunk", index=2)


def test_a_body_that_stops_coming_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bodies, "PATIENCE_S", 0.2)
    with serving(tmp_path) as server:
        for path in ("/v1/sessions", "/v1/snapshots"):
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n".encode()
            with sends(server, head + b'{"prompt"') as peer:
                answer = peer.recv(65536)
                assert answer.startswith(b"HTTP/1.1 400"), answer
        assert list((tmp_path / "snapshots").iterdir()) == []


def test_an_upload_that_is_too_large_or_breaks_off_is_not_kept(monkeypatch: pytest.MonkeyPatch, server: Serving) -> None:
    monkeypatch.setattr(rest, "MAX_UPLOAD_BYTES", 1000)
    folder = server.hub.archive.shelf._folder / "snapshots"
    before = sorted(folder.iterdir())
    answer = httpx2.post(server.url("/v1/snapshots"), content=b"x" * 2000)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    with sends(server, b"POST /v1/snapshots HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 900\r\n\r\nxyz") as peer:
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
