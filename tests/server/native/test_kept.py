"""What the native protocol lets people keep, of a real model: recordings, saved sessions, journals."""

from __future__ import annotations

import io
import socket

import av
import httpx2

from millstream.session.journal import read_journal
from tests.server.serving import Serving, wait_until


def download(server: Serving, url: str) -> bytes:
    answer = httpx2.get(server.url(url), timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.content


def frames_of(film: bytes) -> int:
    with av.open(io.BytesIO(film)) as container:
        return sum(1 for _ in container.decode(video=0))


def test_a_recording_is_whole_when_it_is_stopped_and_when_its_session_ends_without_its_owner(
    server: Serving,
) -> None:
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
    live_session = server.hub.live_sessions[session]
    assert len(live_session.recordings.names) == 1, "it goes on while its owner may come back"
    server.hub.service.end(session)
    server.until(lambda: len(live_session.recordings.names) == 2, "the recording is closed")
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
    kept = server.hub.archive.store._kept["journals"]
    wait_until(
        lambda: any(read_journal(each.path).header.session_id == session for each in list(kept.values())),
        "kept",
    )
