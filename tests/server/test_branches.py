"""A person forks a stream over the wire, steers both, rewinds, keeps one; what cannot be is refused in one
line."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from millstream.client import connect, connect_async
from millstream.core.client_messages import Ask
from millstream.core.errors import ClientError, UnknownSession
from millstream.engine.replay import replay
from millstream.server.sessions import branches
from millstream.session.journal import read_journal
from millstream.session.journal_path import read_path
from millstream.session.session import Session
from millstream.session.trail import Restart
from tests.server.serving import PATIENCE_S, Client, Serving, serving

SMALL = dict(size="32x48", window=6)


def attached(client: Client, session: str) -> Client:
    client.say({"type": "attach", "version": 1, "session": session})
    client.hear("live")
    return client


def post(server: Serving, path: str, body: dict[str, object] | None) -> tuple[int, dict[str, object]]:
    data = b"" if body is None else json.dumps(body).encode()
    request = Request(server.url(path), data, {"content-type": "application/json"}, method="POST")
    try:
        with urlopen(request) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())["error"]


def test_a_stream_is_forked_both_branches_go_on_and_one_is_kept(tmp_path: Path) -> None:
    with (
        serving(tmp_path) as server,
        server.client() as first,
        server.client() as second,
        server.client() as third,
    ):
        session = first.start(**SMALL)["session"]
        first.hear("chunk", index=5)
        first.say({"type": "fork", "at_chunk": 3})
        forked = first.hear("forked")
        assert (forked["chunk"], forked["from_chunk"], forked["exact"]) == (3, 2, True)
        assert "as it was until chunk 3" in forked["note"]
        attached(second, forked["session"]).say(
            {"type": "control", "control": {"type": "prompt", "id": "p", "prompt": "storm"}}
        )
        assert second.hear("chunk")["index"] == 2
        assert second.hear("receipt", state="applied")["chunk_index"] >= 3
        first.say({"type": "rewind", "chunk": 4})
        assert first.hear("rewound")["chunk"] == 4
        assert first.hear("chunk")["index"] == 4
        status, now = post(server, f"/v1/sessions/{session}/forks", None)
        assert status == 201, "a fork of now needs no body"
        attached(third, str(now["session"]))
        branches = json.loads(urlopen(server.url(f"/v1/sessions/{session}/branches")).read())
        assert [branch["parent"] for branch in branches["branches"]] == ["", session, session]
        assert branches["states"][-1] in branches["chunks"]
        path = [
            json.loads(line)
            for line in urlopen(server.url(f"/v1/sessions/{forked['session']}/path")).read().splitlines()
        ]
        assert [line["envelope"]["chunk_index"] for line in path[1:4]] == [0, 1, 2], (
            "its parent's, then its own"
        )
        assert path[0]["parent"] is None
        second.say({"type": "keep"})
        assert second.hear("kept")["ended"] == 2
        assert (
            first.hear("ended")["reason"] == third.hear("ended")["reason"] == "another branch of it was kept"
        )
        second.say({"type": "stop"})
        second.hear("ended")
        server.until_empty()
        _every_path_replays(server, tmp_path)


def test_who_watches_a_branch_watches_the_one_that_its_owner_keeps(tmp_path: Path) -> None:
    with (
        serving(tmp_path) as server,
        server.client() as owner,
        server.client() as other,
        server.client() as viewer,
    ):
        live = owner.start(**SMALL)
        owner.hear("chunk", index=1)
        viewer.say({"type": "view", "version": 1, "view": live["view"]})
        viewer.hear("chunk")
        owner.say({"type": "fork"})
        forked = owner.hear("forked")
        attached(other, forked["session"]).say(
            {"type": "control", "control": {"type": "prompt", "id": "p", "prompt": "storm"}}
        )
        other.hear("receipt", state="applied")
        other.say({"type": "keep"})
        again = viewer.hear("live")
        assert (again["view"], again["session"]) == (forked["view"], "")
        assert [each["text"] for each in viewer.hear("chunk")["prompts"]] == ["storm"]
        assert owner.hear("ended")["reason"] == "another branch of it was kept"
        with server.client() as late:
            late.say({"type": "view", "version": 1, "view": live["view"]})
            assert late.hear("live")["view"] == forked["view"], "the link that was shared goes on, too"
        server.hub.service.end(forked["session"])
        viewer.hear("ended")
        server.until(lambda: not server.hub.live_sessions.num_views, "no link is left")


def _every_path_replays(server: Serving, data: Path) -> None:
    server.until(lambda: len(list((data / "journals").glob("*.jsonl"))) == 3, "three journals are whole")
    journals = sorted((data / "journals").glob("*.jsonl"))
    parents = [read_journal(path).header.parent for path in journals]
    assert sum(parent is not None for parent in parents) == 2
    for path in journals:
        whole = read_path(path)
        assert [line.envelope.chunk_index for line in whole.chunks] == list(range(len(whole.chunks)))
        assert all(each.identical for each in replay(server.hub.service.engine, whole)), path


def test_a_draft_is_made_ahead_and_taken_when_it_is_sent_and_the_journal_replays(tmp_path: Path) -> None:
    with serving(tmp_path, look_ahead=True) as server, connect(server.url(), format="raw") as client:
        counts = server.hub.service.metrics
        client.start(Ask(prompt="sea", fps=4, **SMALL))
        chunks = client.chunks()
        while next(chunks).index < 2:
            pass
        for attempt in range(20):
            made = counts().look_ahead.made
            client.draft(f"a storm, number {attempt}")
            server.until(lambda made=made: counts().look_ahead.made > made, "the draft is made")
            applied = client.applied(client.steer(f"a storm, number {attempt}"))
            if counts().look_ahead.taken:
                break
        assert counts().look_ahead.taken == 1
        shown = next(chunk for chunk in chunks if chunk.index == applied.chunk_index)
        assert [receipt.control_id for receipt in shown.header.receipts] == [applied.control_id]
        client.draft(None)
        client.stop()
        server.until_empty()
        server.until(lambda: len(list((tmp_path / "journals").glob("*.jsonl"))) == 1, "the journal is whole")
        (journal,) = (tmp_path / "journals").glob("*.jsonl")
        assert all(each.identical for each in replay(server.hub.service.engine, read_path(journal)))


def test_futures_are_previewed_while_the_stream_goes_on_and_its_journal_replays(tmp_path: Path) -> None:
    with serving(tmp_path) as server, connect(server.url(), format="raw") as client:
        session = client.start(Ask(prompt="a red kite at night", fps=12, **SMALL)).session
        list(client.chunks(2))
        made = client.preview("storm", "calm", mode="cut")
        assert [future.prompt for future in made.futures] == ["storm", "calm"]
        assert all(future.jpeg.startswith(b"\xff\xd8") for future in made.futures), made.note
        status, suggested = post(server, f"/v1/sessions/{session}/previews", None)
        assert (status, len(suggested["futures"]), suggested["note"]) == (200, 4, "")  # type: ignore[arg-type]
        assert "a red kite at night" not in [each["prompt"] for each in suggested["futures"]]  # type: ignore[attr-defined]
        with pytest.raises(ClientError, match="1 to 4 futures"):
            client.preview(*"abcde")
        list(client.chunks(2))
        client.stop()
        server.until_empty()
        server.until(lambda: len(list((tmp_path / "journals").glob("*.jsonl"))) == 1, "the journal is whole")
        (journal,) = (tmp_path / "journals").glob("*.jsonl")
        assert all(each.identical for each in replay(server.hub.service.engine, read_path(journal)))


def test_sessions_that_begin_alike_say_what_they_share_and_their_journals_replay(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.client() as first, server.client() as second:
        for client in (first, second):
            session = client.start(fps=12.0, **SMALL)["session"]
        first.hear("chunk", index=4)
        server.until(
            lambda: server.hub.service.metrics().shared[session] > 0, "one has had a chunk of the other's"
        )
        second.say({"type": "control", "control": {"type": "prompt", "id": "p", "prompt": "storm"}})
        second.hear("receipt", state="applied")
        server.until(lambda: server.hub.live_sessions[session].shared > 0, "it is told")
        assert json.loads(urlopen(server.url(f"/v1/sessions/{session}")).read())["shared"] > 0
        for client in (first, second):
            client.say({"type": "stop"})
            client.hear("ended")
        server.until_empty()
        server.until(
            lambda: len(list((tmp_path / "journals").glob("*.jsonl"))) == 2, "both journals are whole"
        )
        for journal in (tmp_path / "journals").glob("*.jsonl"):
            assert all(each.identical for each in replay(server.hub.service.engine, read_path(journal)))


def test_what_cannot_be_forked_or_rewound_is_refused_in_one_line() -> None:
    with serving(places=2, max_waiting=0, max_branches=3) as server, server.client() as first:
        session = first.start(**SMALL)["session"]
        first.hear("chunk", index=2)
        for ask, code, words in (
            ({"type": "fork", "at_chunk": 900}, "bad_control", "chunk 900 is not kept; kept are 0 to"),
            ({"type": "rewind", "chunk": 900}, "bad_control", "chunk 900 is not kept"),
            ({"type": "rewind"}, "bad_message", "chunk"),
        ):
            first.say(ask)
            error = first.hear("error")
            assert (error["code"], "\n" in error["message"]) == (code, False)
            assert words in error["message"]
        first.say({"type": "fork"})
        first.hear("forked")
        first.say({"type": "fork"})
        refused = first.hear("error")
        assert (refused["code"], "is free" in refused["message"]) == ("refused", True), "there are two places"
        assert refused["message"].startswith("no place for a branch: ")
        assert post(server, "/v1/sessions/nobody/forks", None)[0] == 404
        assert "missing required field `chunk`" in str(
            post(server, f"/v1/sessions/{session}/rewind", None)[1]["message"]
        )
        first.say({"type": "stop"})
        first.hear("ended")
        assert post(server, f"/v1/sessions/{session}/forks", {})[0] == 404


def test_a_fork_whose_client_has_left_and_whose_parent_has_ended_is_no_failed_session(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The branch ends quietly, and its place is free again."""
    caplog.set_level("INFO")
    asked = threading.Event()
    ended = threading.Event()
    restart_of = branches.restart_at

    def restart_once_it_ended(session: Session, chunk: int | None = None) -> Restart:
        if asked.is_set():
            ended.wait(PATIENCE_S)
            raise UnknownSession(
                f"there is no live session {session.id}; it waits for its place or has ended"
            )
        asked.set()
        return restart_of(session, chunk)

    monkeypatch.setattr(branches, "restart_at", restart_once_it_ended)
    with serving(places=2, max_waiting=0) as server:
        with server.client() as first:
            session = first.start(**SMALL)["session"]
            first.hear("chunk", index=2)
            first.say({"type": "fork"})
            assert asked.wait(PATIENCE_S)
        server.hub.service.end(session)
        ended.set()
        until = time.monotonic() + PATIENCE_S
        while server.hub.service.table.entries and time.monotonic() < until:
            time.sleep(0.02)
        assert not server.hub.service.table.entries
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


def test_a_tree_has_so_many_branches_and_no_more_and_a_camera_has_none() -> None:
    with serving(max_branches=2) as server, server.client() as first, server.client() as camera:
        first.start(**SMALL)
        first.hear("chunk", index=0)
        first.say({"type": "fork"})
        first.hear("forked")
        first.say({"type": "fork"})
        assert (
            first.hear("error")["message"]
            == "2 branches of this session are live already; end one or keep one"
        )
        camera.start(**SMALL, input=True, noise_scale=0.5)
        camera.say({"type": "fork"})
        assert "its input does not come again" in camera.hear("error")["message"]


def test_programs_fork_too() -> None:
    with serving() as server:
        with connect(server.url()) as client, connect(server.url()) as other:
            client.start(Ask(prompt="sea", **SMALL))  # type: ignore[arg-type]
            list(client.chunks(2))
            forked = client.fork()
            other.attach(forked.session)
            (chunk,) = other.chunks(1)
            assert chunk.index == forked.chunk
            assert client.rewind(1).exact
            assert client.keep().ended == 1
            with pytest.raises(ClientError, match="not kept"):
                client.fork(10**6)
        asyncio.run(_fork_async(server.url()))


async def _fork_async(url: str) -> None:
    async with connect_async(url) as client:
        await client.start(Ask(prompt="sea", size="32x48", window=6))
        await client.next_chunk()
        forked = await client.fork()
        assert forked.session != client.live.session  # type: ignore[union-attr]
        assert (await client.rewind(0)).chunk == 0
        assert (await client.keep()).ended == 1
