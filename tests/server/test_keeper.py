"""Sessions that outlive their server: attach brings them back where they were kept, and says what is lost."""

from __future__ import annotations

import asyncio
import io
import json
import os
import time
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from millstream.commands.replay import ReplayOptions, run_replay
from millstream.core.errors import JournalError, NotKept
from millstream.engine import snapshot
from millstream.server.sessions import keeper as keepers
from millstream.server.sessions.file_store import MAX_AGE_S, FileStore, StoreLimits
from millstream.server.sessions.keeper import Keeper, file_name
from millstream.server.sessions.shared_files import SharedFiles
from millstream.session.journal import read_journal
from tests.server.kept_files import kept_before, kept_file
from tests.server.serving import Client, Serving, serving, wait_until

EVERY = 2
RAW = {"formats": ["raw"]}


@contextmanager
def keeping(data: Path, *, every: int = EVERY, **limits: Any) -> Iterator[Serving]:
    with serving(data, keep_chunks=every, **limits) as server:
        yield server


@contextmanager
def dying(data: Path, monkeypatch: pytest.MonkeyPatch, *, every: int = EVERY) -> Iterator[Serving]:
    """A server that ends without keeping anything more, as one that is killed."""

    async def nothing(keeper: Keeper, timeout_s: float) -> None:
        pass

    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "keep_all", nothing)
        with keeping(data, every=every) as server:
            yield server


def steer(client: Client, name: str, *, at: int | None = None, **control: Any) -> dict[str, Any]:
    client.say({"type": "control", "control": {"id": name, **control}, "at_chunk": at})
    return client.hear("receipt", control_id=name, state="queued")


def see(client: Client, index: int) -> None:
    """Until this chunk or a later one has come."""
    while last_seen(client) < index:
        client.next()


def show_to_camera(client: Client, chunks: int) -> None:
    """Enough pictures for so many, each another."""
    for number in range(12 * chunks):
        file = io.BytesIO()
        Image.new("RGB", (64, 64), (7 * number, 80, 200)).save(file, "PNG")
        client.say(file.getvalue())


def last_seen(client: Client) -> int:
    return max((message["index"] for message in client.heard if message["type"] == "chunk"), default=-1)


def attach(client: Client, session: str) -> dict[str, Any]:
    client.say({"type": "attach", "version": 1, "session": session, **RAW})
    return client.hear("live", session=session)


def differing_chunks(journal: Path) -> int:
    """Run a journal again."""
    return run_replay(ReplayOptions(journal=journal, check=True, quiet=True))


def test_a_server_that_is_told_to_stop_keeps_every_session_and_the_next_one_goes_on_to_the_same_bits(
    tmp_path: Path,
) -> None:
    with ExitStack() as clients:
        with keeping(tmp_path) as server:
            client = clients.enter_context(server.client())
            live = client.start(**RAW)
            session = live["session"]
            see(client, 1)
            steer(client, "storm", type="prompt", prompt="storm", mode="keep")
            client.hear("receipt", control_id="storm", state="applied")
            client.say(
                {"type": "control", "control": {"id": "later", "type": "seed", "seed": 5}, "at_chunk": 5000}
            )
            client.hear("receipt", control_id="later")
            client.say({"type": "save"})
            saved = client.hear("saved")["snapshot"]
        assert client.hear("ended")["reason"] == "the server is shutting down"
        last = last_seen(client)
    with keeping(tmp_path) as server, server.client() as client, server.client() as other:
        again = attach(client, session)
        assert (again["view"], again["config"]["height"]) == (live["view"], live["config"]["height"])
        note = client.hear("note")["message"]
        assert f"at chunk {last + 1}, where its server stopped" in note
        assert "lost" not in note, "nothing is"
        told = {(m["control_id"], m["state"]) for m in (client.hear("receipt"), client.hear("receipt"))}
        assert told == {("storm", "applied"), ("later", "queued")}
        chunk = client.hear("chunk")
        assert chunk["index"] == last + 1, "nothing is lost"
        assert [prompt["text"] for prompt in chunk["prompts"]] == ["storm"]
        other.say({"type": "restore", "version": 1, "snapshot": saved, **RAW})
        assert other.hear("chunk", index=chunk["index"])["parts"] == chunk["parts"], (
            "as a session that was never kept"
        )
        client.say({"type": "stop"})
        client.hear("ended")
        wait_until(lambda: not kept_file(tmp_path, session).exists(), "what ended orderly leaves nothing")
    assert differing_chunks(tmp_path / "journals" / f"{again['journal']}.jsonl") == 0
    with keeping(tmp_path) as server, server.client() as client:
        client.say({"type": "attach", "version": 1, "session": session})
        assert client.hear("error")["code"] == "not_found"


def test_what_a_killed_server_showed_comes_as_it_was_and_what_is_asked_meanwhile_applies_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dying(tmp_path, monkeypatch, every=50) as server, server.client() as client:
        session = client.start(**RAW)["session"]
        for number in range(3):  # one knob, turned again and again
            turned = steer(client, "knob", type="seed", seed=number)
            see(client, turned["chunk_index"])
        steer(client, "later", at=500, type="seed", seed=7)
        stormy = steer(client, "storm", type="prompt", prompt="storm", mode="keep")
        see(client, stormy["chunk_index"])
        shown = {message["index"]: message["parts"] for message in client.heard if message["type"] == "chunk"}
    came_back_at = kept_before(kept_file(tmp_path, session))
    last = max(shown)
    assert came_back_at == 1, "kept once, after its first chunk"
    with keeping(tmp_path) as server, server.client() as client:
        attach(client, session)
        asked = [
            steer(client, f"new {number}", type="prompt", prompt=f"calm {number}", mode="keep")
            for number in range(5)
        ]
        assert min(receipt["chunk_index"] for receipt in asked) > last
        (note,) = [message["message"] for message in client.heard if message["type"] == "note"]
        assert f"at chunk {came_back_at}, where it was last kept" in note
        assert f"up to chunk {last} it comes as it was shown" in note
        see(client, last + 2)
        again = {message["index"]: message for message in client.heard if message["type"] == "chunk"}
        told = {
            (m["control_id"], m["state"], m["chunk_index"]) for m in client.heard if m["type"] == "receipt"
        }
    assert {index: again[index]["parts"] for index in range(came_back_at, last + 1)} == {
        index: parts for index, parts in shown.items() if index >= came_back_at
    }
    assert ("later", "queued", 500) in told
    assert again[last]["prompts"][0]["text"] == "storm"
    assert again[last + 2]["prompts"][0]["text"] == "calm 4", "the last one that was asked for"


def test_one_that_goes_on_after_a_stop_and_is_then_killed_does_not_say_that_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with keeping(tmp_path) as server, server.client() as client:
        session = client.start(**RAW)["session"]
        see(client, 1)
    came_back_at = kept_before(kept_file(tmp_path, session))
    with dying(tmp_path, monkeypatch) as server, server.client() as client:
        attach(client, session)
        see(client, came_back_at)
        wait_until(
            lambda: kept_before(kept_file(tmp_path, session)) == came_back_at + 1,
            "it is kept after one chunk",
        )
    with keeping(tmp_path) as server, server.client() as client:
        attach(client, session)
        note = client.hear("note")["message"]
        assert "where it was last kept" in note
        assert "where its server stopped" not in note


def test_branches_are_branches_of_each_other_after_a_restart_and_one_that_is_kept_ends_the_rest(
    tmp_path: Path,
) -> None:
    with keeping(tmp_path, places=2) as server, server.client() as client:
        first = client.start(**RAW)["session"]
        see(client, 1)
        client.say({"type": "fork"})
        forked = client.hear("forked")
        second = forked["session"]
        link = forked["view"]
    with keeping(tmp_path, places=2) as server, server.client() as client, server.client() as beside:
        attach(client, first)
        attach(beside, second)
        client.say({"type": "keep"})
        assert client.hear("kept")["ended"] == 1
        beside.hear("ended")
    with keeping(tmp_path) as server, server.client() as client, server.client() as viewer:
        attach(client, first)
        viewer.say({"type": "view", "version": 1, "view": link, **RAW})
        assert viewer.hear("live")["view"] == client.heard[-1]["view"], (
            "the ended branch's link shows the one that was kept"
        )


def test_where_it_goes_on_is_told_once(tmp_path: Path) -> None:
    with keeping(tmp_path) as server, server.client() as client:
        session = client.start(**RAW)["session"]
        see(client, 1)
    with keeping(tmp_path) as server, server.client() as client, server.client() as again:
        view = attach(client, session)["view"]
        assert "where its server stopped" in client.hear("note")["message"]
        attach(again, session)
        see(again, last_seen(client) + 1)
        again.say({"type": "ping"})
        assert not [message for message in again.heard if message["type"] == "note"]
        with server.client() as viewer:
            viewer.say({"type": "view", "version": 1, "view": view, **RAW})
            see(viewer, last_seen(again) + 1)
            assert not [message for message in viewer.heard if message["type"] == "note"]


def test_only_who_knows_the_id_can_bring_a_session_back_and_its_file_does_not_name_it(tmp_path: Path) -> None:
    with keeping(tmp_path) as server, server.client() as client:
        live = client.start(**RAW)
        client.hear("chunk")
    (file,) = (tmp_path / "sessions").iterdir()
    assert file == kept_file(tmp_path, live["session"])
    assert live["session"] not in str(file)
    with keeping(tmp_path) as server, server.client() as client, server.client() as viewer:
        for wrong in (live["view"], file.stem, "../" + file.stem, ""):
            client.say({"type": "attach", "version": 1, "session": wrong})
            assert client.hear("error")["code"] == "not_found"
        viewer.say({"type": "view", "version": 1, "view": live["view"]})
        assert viewer.hear("error")["code"] == "not_found"
        attach(client, live["session"])
        viewer.say({"type": "view", "version": 1, "view": live["view"]})
        viewer.hear("live")


def test_two_who_come_back_at_once_meet_in_one_session(tmp_path: Path) -> None:
    with keeping(tmp_path) as server, server.client() as client:
        session = client.start(**RAW)["session"]
        client.hear("chunk")
    with keeping(tmp_path) as server, server.client() as one, server.client() as other:
        for client in (one, other):
            client.say({"type": "attach", "version": 1, "session": session, **RAW})
        for client in (one, other):
            client.hear("live", session=session)
            client.hear("chunk")
        assert len(server.hub.live_sessions) == 1


def test_one_that_is_refused_keeps_its_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    with keeping(tmp_path) as server, server.client() as client:
        session = client.start(**RAW)["session"]
        client.hear("chunk")
    with keeping(tmp_path, places=1, max_waiting=0) as server, server.client() as first:
        first.start()
        with server.client() as client:
            client.say({"type": "attach", "version": 1, "session": session, **RAW})
            assert client.hear("error")["code"] == "refused"
        assert list((tmp_path / "snapshots").iterdir()) == []
        assert kept_file(tmp_path, session).is_file()


def test_one_that_waits_in_line_to_come_back_and_is_left_keeps_its_file(tmp_path: Path) -> None:
    with keeping(tmp_path) as server, server.client() as client:
        session = client.start(**RAW)["session"]
        client.hear("chunk")
    with keeping(tmp_path, places=1, leave_line_s=0.1) as server:
        with server.client() as first:
            first.start()
            with server.client() as client:
                client.say({"type": "attach", "version": 1, "session": session, **RAW})
                client.hear("waiting")
            wait_until(lambda: len(server.hub.live_sessions) == 1, "it has lost its place in line")
            assert kept_file(tmp_path, session).is_file()
            first.say({"type": "stop"})
            first.hear("ended")
        with server.client() as client:
            attach(client, session)


def test_the_journal_of_a_restored_session_replays_from_its_snapshot_and_asks_for_it_where_that_is_gone(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as server, server.client() as client, server.client() as restored:
        client.start(**RAW)
        see(client, 1)
        client.say({"type": "save"})
        saved = client.hear("saved")["snapshot"]
        restored.say({"type": "restore", "version": 1, "snapshot": saved, **RAW})
        name = restored.hear("live")["journal"]
        see(restored, 3)
        restored.say({"type": "stop"})
        restored.hear("ended")
    journal = tmp_path / "journals" / f"{name}.jsonl"
    assert read_journal(journal).header.start is not None
    assert read_journal(journal).chunks[0].envelope.chunk_index > 0
    assert differing_chunks(journal) == 0
    file = tmp_path / "snapshots" / f"{saved}.safetensors"
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(JournalError, match="not the snapshot"):
        differing_chunks(journal)
    file.unlink()
    with pytest.raises(JournalError, match="--snapshot"):
        differing_chunks(journal)


def test_the_journal_of_a_camera_session_replays_by_itself_and_goes_on_after_a_restore(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as server, server.client() as client, server.client() as restored:
        names = [client.start(input=True, **RAW)["journal"]]
        show_to_camera(client, 3)
        see(client, 2)
        client.say({"type": "save"})
        saved = client.hear("saved")["snapshot"]
        restored.say({"type": "restore", "version": 1, "snapshot": saved, **RAW})
        names.append(restored.hear("live")["journal"])
        show_to_camera(restored, 2)
        see(restored, 4)
        for each in (client, restored):
            each.say({"type": "stop"})
            each.hear("ended")
    for journal in (tmp_path / "journals" / f"{name}.jsonl" for name in names):
        assert all(line.input is not None for line in read_journal(journal).chunks)
        assert differing_chunks(journal) == 0
    assert read_journal(journal).chunks[-1].envelope.chunk_index >= 4


def test_a_disk_that_is_full_ends_no_stream_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[Path] = []

    def full(copied: snapshot.Snapshot, path: Path) -> None:
        attempts.append(path)
        raise NotKept(f"cannot write {path}: no space left on device; free some space")

    monkeypatch.setattr(keepers.snapshot, "write", full)
    with keeping(tmp_path) as server, server.client() as client:
        client.start(**RAW)
        wait_until(lambda: (client.next(), len(attempts) >= 3)[1], "it was tried three times")
        client.hear("chunk")
        client.say({"type": "ping", "t": 1.0})
        client.hear("pong")
        notes = [message["message"] for message in client.heard if message["type"] == "note"]
    assert len(notes) == 1
    assert "not kept" in notes[0]
    assert str(tmp_path) not in notes[0]
    assert list((tmp_path / "sessions").iterdir()) == []


def test_a_session_is_copied_no_more_while_its_last_copy_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing: list[int] = []
    write = snapshot.write

    def slowly(copied: snapshot.Snapshot, path: Path) -> None:
        writing.append(copied.header.timeline.chunk_index)
        time.sleep(0.5)
        write(copied, path)

    copies: list[int] = []
    capture = snapshot.capture

    def counted(*arguments: Any) -> snapshot.Snapshot:
        taken = capture(*arguments)
        copies.append(taken.header.timeline.chunk_index)
        assert len(copies) <= len(writing) + 1, "copied while another copy waited"
        return taken

    monkeypatch.setattr(keepers.snapshot, "write", slowly)
    monkeypatch.setattr(keepers.snapshot, "capture", counted)
    with keeping(tmp_path) as server, server.client() as client:
        client.start(fps=120.0, lead_s=60.0, **RAW)
        wait_until(lambda: (client.next(), len(writing) >= 3)[1], "three were written")
        client.say({"type": "stop"})
        client.hear("ended")
    assert all(later - earlier >= EVERY for earlier, later in pairwise(copies))


def test_a_copy_that_is_late_does_not_replace_the_last_one(tmp_path: Path) -> None:
    with keeping(tmp_path) as server, server.client() as client:
        keeper = server.hub.keeper
        assert keeper is not None
        spawn = keeper._spawn

        async def when_it_stops(work: Coroutine[Any, Any, None]) -> None:
            while not server.hub._over:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)
            await work

        keeper._spawn = lambda work: spawn(when_it_stops(work))
        session = client.start(**RAW)["session"]
        see(client, EVERY)
        steer(client, "halt", type="pause")
        client.hear("receipt", control_id="halt", state="applied")
    assert snapshot.read_header(kept_file(tmp_path, session)).timeline.paused


def test_a_start_removes_what_is_too_old_and_there_is_an_end_to_how_many_there_are(tmp_path: Path) -> None:
    store = FileStore(tmp_path, StoreLimits(max_files=3))
    names = [file_name(str(number)) for number in range(4)]
    for age, name in enumerate(names):
        path = store.place("sessions", name)
        path.write_bytes(b"x")
        then = time.time() - age - (MAX_AGE_S["sessions"] if age == 3 else 0)
        os.utime(path, (then, then))
    store = FileStore(tmp_path, StoreLimits(max_files=2))
    assert [store.get("sessions", name) is not None for name in names] == [True, True, False, False]
    assert len(list((tmp_path / "sessions").iterdir())) == 2


def test_a_session_whose_file_went_for_others_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with keeping(tmp_path) as server, server.client() as client, server.client() as other:
        first = client.start(**RAW)["session"]
        see(client, EVERY)
        wait_until(lambda: kept_file(tmp_path, first).is_file(), "it is kept")
        steer(client, "halt", type="pause")
        client.hear("receipt", control_id="halt", state="applied")
        server.hub.archive.store.limits = StoreLimits(max_files=1)
        other.start(**RAW)
        assert "no room" in client.hear("note")["message"]


def logged_at(place: str) -> int:
    """The chunk of a logged control, by its file's place; -1 for any other file."""
    folder, _, name = place.rpartition("/")
    at_chunk = name.partition("-")[0]
    return int(at_chunk) if folder.startswith("controls/") and at_chunk.isdigit() else -1


def test_a_control_is_acknowledged_when_its_log_is_written_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On storage that is slow: whoever has the receipt can have the control brought back."""
    shared = SharedFiles.at(str(tmp_path / "shared"))
    write = SharedFiles.write

    def slowly(files: SharedFiles, place: str, data: bytes) -> None:
        if logged_at(place) >= 0:
            time.sleep(1.0)
        write(files, place, data)

    monkeypatch.setattr(SharedFiles, "write", slowly)
    with serving(tmp_path / "data", keep_chunks=EVERY, shared=shared) as server, server.client() as client:
        session = client.start(**RAW)["session"]
        client.say(
            {"type": "control", "control": {"id": "later", "type": "seed", "seed": 5}, "at_chunk": 5000}
        )
        client.hear("receipt", control_id="later", state="queued")
        logged = shared.read_all(f"controls/{file_name(session)}")
        client.say({"type": "stop"})
        client.hear("ended")
    assert [
        json.loads(line)["control"]["seed"]
        for name, line in logged.items()
        if logged_at(f"controls/x/{name}") >= 0
    ] == [5]


def test_a_state_takes_no_control_with_it_that_it_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Controls stay logged until a state is kept that was taken after their chunk."""
    shared = SharedFiles.at(str(tmp_path / "shared"))
    kept = [0]
    removed = list[tuple[int, int]]()
    write = snapshot.write
    remove = SharedFiles.remove

    def noted(copied: snapshot.Snapshot, path: Path) -> None:
        write(copied, path)
        kept.append(copied.header.timeline.chunk_index)

    def checked(files: SharedFiles, place: str) -> None:
        if logged_at(place) >= 0:
            removed.append((logged_at(place), kept[-1]))
        remove(files, place)

    monkeypatch.setattr(keepers.snapshot, "write", noted)
    monkeypatch.setattr(SharedFiles, "remove", checked)
    with serving(tmp_path / "data", keep_chunks=EVERY, shared=shared) as server, server.client() as client:
        client.start(fps=120.0, lead_s=60.0, **RAW)
        first = last_seen(client) + 20
        for chunk in range(first, first + 8):
            client.say({"type": "control", "control": {"type": "seed", "seed": chunk}, "at_chunk": chunk})
        wait_until(lambda: (client.next(), len(removed) >= 8)[1], "all were removed")
        client.say({"type": "stop"})
        client.hear("ended")
    assert all(chunk < state for chunk, state in removed), removed
    assert sorted({chunk for chunk, _ in removed}) == list(range(first, first + 8))
