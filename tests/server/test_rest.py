"""REST over a real socket: sessions, controls and what is kept of them."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import httpx2
import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from millstream.core.controls import fill_empty
from millstream.engine import snapshot
from millstream.server import dialects
from millstream.server.protocol import outputs, rest, videos, webrtc
from millstream.server.protocol.bodies import first_bytes
from millstream.server.sessions import live_sessions
from millstream.session import session
from millstream.session.journal import read_journal
from tests.server.clients.facts import differences
from tests.server.serving import Serving, serving, wait_until
from tests.server.test_wrong_messages import JSON


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture
def http(server: Serving) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url(), timeout=30) as client:
        yield client
    for session_id in list(server.hub.live_sessions):
        server.hub.service.end(session_id)
    server.until(lambda: not server.hub.live_sessions, "all stations are gone")


FUZZED = [
    *rest.ENDPOINTS,
    *outputs.endpoints(),
    *webrtc.ENDPOINTS,
    *videos.endpoints(),
    *dialects.routes()[1],
]


def opened(http: httpx2.Client, **ask: Any) -> dict[str, Any]:
    answer = http.post("/v1/sessions", json={"prompt": "sea", "fps": 24.0} | ask)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_whether_a_session_could_begin_again_as_another_is_said_and_changes_nothing(
    http: httpx2.Client,
) -> None:
    session = opened(http)["session"]

    def obstacle(**ask: Any) -> str:
        answer = http.post(f"/v1/sessions/{session}/check", json={"prompt": "sea"} | ask)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["obstacle"])

    assert obstacle(size="32x48") == obstacle(wait=True) == ""
    assert "multiples of 16, got 33x48" in obstacle(size="33x48")
    assert obstacle(size="4096x4096").startswith("a chunk of it would take")
    assert obstacle(size="4096x4096", wait=True) != ""
    assert "either prompt or prompts" in obstacle(prompt="")
    assert code(http.post("/v1/sessions/nobody/check", json={"prompt": "sea"})) == (404, "not_found")
    assert [each["state"] for each in http.get("/v1/sessions").json()["sessions"]] != []
    assert http.get(f"/v1/sessions/{session}").json()["cause"] == ""


def test_a_session_is_opened_shown_steered_watched_and_ended(server: Serving, http: httpx2.Client) -> None:
    session = opened(http, seed=5)
    path = f"/v1/sessions/{session['session']}"
    assert session["config"]["seed"] == 5
    receipt = http.post(f"{path}/controls", json={"control": {"type": "cut", "id": "mine"}})
    assert (receipt.status_code, receipt.json()["state"], receipt.json()["control_id"]) == (
        202,
        "queued",
        "mine",
    )
    with server.client() as client:
        client.say({"type": "attach", "version": 1, "session": session["session"]})
        live = client.hear("live")
        assert client.hear("chunk")["receipts"][0]["control_id"] == "mine"
        http.post(f"{path}/controls", json={"control": {"type": "seed", "seed": 6}})
        client.hear("receipt", state="applied")
        shown = http.get(path).json()
        assert shown["config"] == live["config"] | {"seed": 6}
        assert (shown["state"], shown["viewers"], shown["view"]) == ("live", 1, session["view"])
        assert http.delete(path).status_code == 204
        assert client.hear("ended")["cause"] == "closed"
    server.until(lambda: not server.hub.live_sessions, "it has ended")
    shown = http.get(path).json()
    assert (shown["state"], shown["cause"], shown["session"]) == ("ended", "closed", session["session"])
    assert http.get(f"{path}/controls").json()["receipts"][0]["control_id"] == "mine"
    assert code(http.post(f"{path}/controls", json={"control": {"type": "cut"}})) == (404, "not_found")
    assert code(http.get("/v1/sessions/another")) == (404, "not_found")


def test_what_is_known_of_ended_sessions_is_bounded_and_holds_no_frames(
    server: Serving, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_sessions, "MAX_ENDED", 2)
    names = []
    for _ in range(3):
        names.append(opened(http, input=True, noise_scale=0.5)["session"])
        server.hub.service.end(names[-1])
        server.until(lambda: not server.hub.live_sessions, "it has ended")
    for name in names[1:]:
        server.until(
            lambda name=name: server.hub.live_sessions.find_known(name).request.feed is None,
            "its feed is let go",
        )
    assert http.get(f"/v1/sessions/{names[-1]}").json()["state"] == "ended"
    assert http.get(f"/v1/sessions/{names[0]}").status_code == 404


@pytest.mark.parametrize("calm", ["", "a calm sea"])
def test_an_empty_prompt_is_refused_in_a_control_as_at_the_start(
    http: httpx2.Client, monkeypatch: pytest.MonkeyPatch, calm: str
) -> None:
    """Also where a session of one's own would show something calm."""
    monkeypatch.setattr(session, "fill_empty", lambda prompts, _: fill_empty(prompts, calm))
    path = f"/v1/sessions/{opened(http)['session']}/controls"
    for prompt in ("", "  "):
        assert http.post("/v1/sessions", json={"prompt": prompt}).status_code == 400
        refused = http.post(path, json={"control": {"type": "prompt", "prompt": prompt}})
        assert refused.status_code == 400, refused.text


def test_a_recording_without_a_chunk_says_so(http: httpx2.Client) -> None:
    path = f"/v1/sessions/{opened(http)['session']}/recording"
    assert "nothing is being recorded" in http.post(path, json={"on": False}).json()["error"]["message"]
    assert http.post(path, json={"on": True}).status_code == 200
    refused = http.post(path, json={"on": False})
    assert (refused.status_code, "no chunk came" in refused.json()["error"]["message"]) == (409, True)


def test_both_receipts_can_be_had_without_a_socket(server: Serving, http: httpx2.Client) -> None:
    path = f"/v1/sessions/{opened(http, unattended='run')['session']}/controls"
    assert http.get(path).json() == {"receipts": []}
    assert http.post(path, json={"control": {"type": "cut", "id": "soon"}}).json()["state"] == "queued"
    assert (
        http.post(path, json={"control": {"type": "cut", "id": "far"}, "at_chunk": 9999}).json()["state"]
        == "queued"
    )

    def states() -> dict[str, str]:
        return {each["control_id"]: each["state"] for each in http.get(path).json()["receipts"]}

    server.until(lambda: states() == {"soon": "applied", "far": "queued"}, "the first of them is applied")
    assert code(http.post(path, json={"control": {"type": "cut", "id": "x" * 200}})) == (400, "bad_control")


def test_listing_sessions_gives_nobody_a_name_to_steer_with(http: httpx2.Client) -> None:
    session = opened(http)
    listed = http.get("/v1/sessions")
    assert len(listed.json()["sessions"]) == 1
    assert session["session"] not in listed.text
    assert session["view"] not in listed.text


def test_the_model_that_is_served_is_described(http: httpx2.Client) -> None:
    listed = http.get("/v1/models").json()
    (model,) = listed["data"]
    assert (listed["object"], model["object"], model["id"], model["owned_by"]) == (
        "list",
        "model",
        "wan-tiny",
        "millstream",
    )
    assert differences("openai", "model", model) == []
    assert abs(model["created"] - time.time()) < 3600
    assert model["defaults"]["size"] == "16x32"
    assert model["examples"]
    assert http.get("/v1/models/wan-tiny").json() == model
    other = http.get("/v1/models/sora-2")
    assert (other.status_code, "wan-tiny" in other.json()["error"]["message"]) == (404, True)


def test_a_journal_that_grows_while_it_is_fetched_comes_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"a line\n" * 20_000)
    num_bytes = path.stat().st_size

    async def fetch() -> bytes:
        pieces = []
        async for piece in first_bytes(path.open("rb"), num_bytes):
            pieces.append(piece)
            with path.open("ab") as file:
                file.write(b"a later line\n" * 20_000)
        return b"".join(pieces)

    assert asyncio.run(fetch()) == b"a line\n" * 20_000


def test_recordings_journals_and_snapshots_are_kept_and_fetched(
    server: Serving, http: httpx2.Client, tmp_path: Path
) -> None:
    session = opened(http)
    path = f"/v1/sessions/{session['session']}"
    assert code(http.get(f"{path}/journal")) == (404, "not_found"), "it has not begun"
    with server.client() as client:
        client.say({"type": "attach", "version": 1, "session": session["session"]})
        client.hear("chunk")
        url = http.post(f"{path}/recording", json={"on": True}).json()["url"]
        client.hear("chunk")
        client.hear("chunk")
        assert http.post(f"{path}/recording", json={"on": False}).json() == {"on": False, "url": url}
        assert code(http.post(f"{path}/recording", json={"on": False})) == (409, "bad_state")
        assert [each["url"] for each in http.get(f"{path}/recordings").json()["files"]] == [url]
        assert b"ftyp" in http.get(url).content[:32]
        (tmp_path / "journal.jsonl").write_bytes(http.get(f"{path}/journal").content)
        assert len(read_journal(tmp_path / "journal.jsonl").chunks) >= 3
        saved = http.post(f"{path}/snapshots")
        assert saved.status_code == 201
        assert [each["name"] for each in http.get(f"{path}/snapshots").json()["files"]] == [
            saved.json()["name"]
        ]
    data = http.get(saved.json()["url"]).content
    assert len(data) == saved.json()["bytes"]
    brought = http.post("/v1/snapshots", content=data)
    assert brought.status_code == 201
    restored = http.post(f"{brought.json()['url']}/sessions").json()
    assert restored["session"] != session["session"]
    with server.client() as client:
        client.say({"type": "attach", "version": 1, "session": restored["session"]})
        assert client.hear("chunk")["index"] >= 3


def test_a_journal_is_found_by_the_name_that_was_told(server: Serving, http: httpx2.Client) -> None:
    with server.client() as client, server.client() as viewer:
        live = client.start()
        shown = http.get(f"/v1/sessions/{live['session']}").json()
        assert shown["journal"] == live["journal"] != ""
        assert shown["notes"] == []
        viewer.say({"type": "view", "version": 1, "view": live["view"]})
        assert viewer.hear("live")["journal"] == "", "it tells all that was asked, and is its owner's"
        client.hear("chunk", index=1)
        assert code(http.get(f"/v1/journals/{live['journal']}")) == (404, "not_found"), "it is not whole"
        client.say({"type": "stop"})
        client.hear("ended")
    server.until(lambda: http.get(f"/v1/journals/{live['journal']}").status_code == 200, "it is kept")


def test_a_journal_that_grows_while_it_is_fetched_is_sent_as_long_as_was_said(
    server: Serving, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def after_it_grew(file: IO[bytes], num_bytes: int) -> AsyncIterator[bytes]:
        path = Path(file.name)
        await asyncio.to_thread(wait_until, lambda: path.stat().st_size > num_bytes, "it has grown")
        async for piece in first_bytes(file, num_bytes):
            yield piece

    monkeypatch.setattr(rest, "first_bytes", after_it_grew)
    with server.client() as client:
        live = client.start()
        client.hear("chunk", index=1)
        answer = http.get(f"/v1/sessions/{live['session']}/journal")
        assert answer.status_code == 200
        assert answer.content.endswith(b"\n")
        assert len(answer.content) == int(answer.headers["content-length"])


def test_a_session_goes_on_at_another_server_with_the_very_pictures_it_would_have_had(
    server: Serving, http: httpx2.Client, tmp_path: Path
) -> None:
    with server.client() as client, serving(tmp_path) as elsewhere:
        session = client.start(formats=["raw"], seed=9)["session"]
        client.hear("chunk", index=1)
        saved = http.post(f"/v1/sessions/{session}/snapshots").json()
        with httpx2.Client(base_url=elsewhere.url(), timeout=30) as there, elsewhere.client() as visitor:
            brought = there.post("/v1/snapshots", content=http.get(saved["url"]).content).json()
            visitor.say({"type": "restore", "version": 1, "snapshot": brought["name"], "formats": ["raw"]})
            moved = visitor.hear("chunk")
            stayed = next((each for each in client.heard if each.get("index") == moved["index"]), None)
            assert moved["index"] >= 2
            assert (stayed or client.hear("chunk", index=moved["index"]))["parts"] == moved["parts"]


def test_an_upload_that_is_no_snapshot_is_refused_and_not_kept(server: Serving, http: httpx2.Client) -> None:
    store = server.hub.archive.store
    before = set(store._kept["snapshots"]), sorted((store._folder / "snapshots").iterdir())
    for data in (
        b"",
        b"rubbish",
        b"\xff" * 8 + b"{}",
        json.dumps({"__metadata__": {}}).encode(),
        forged_snapshot(server),
    ):
        answer = http.post("/v1/snapshots", content=data)
        assert code(answer) == (400, "bad_message")
        assert "\n" not in answer.json()["error"]["message"]
    assert before == (set(store._kept["snapshots"]), sorted((store._folder / "snapshots").iterdir()))


def forged_snapshot(server: Serving) -> bytes:
    """A real one, but for a tensor of the VAE's state that is larger than the VAE's."""
    with server.client() as client:
        session = client.start()["session"]
        client.hear("chunk")
        archive = server.hub.archive
        job = server.hub.service.on_engine(
            session, lambda live: snapshot.capture(archive._engine, live, archive._header.fingerprint)
        )
        taken = job.result(30)
        client.say({"type": "stop"})
    larger = {**taken.tensors, "decoder.0": torch.zeros(1, 4, 2, 80, 80)}
    return save(larger, metadata={snapshot.KEY: msgspec.json.encode(taken.header).decode()})


@pytest.mark.parametrize("name", ["..%2f..%2fetc%2fpasswd", "a" * 22, "%00", "..", ".jsonl"])
@pytest.mark.parametrize("kind", ["recordings", "journals", "snapshots"])
def test_no_string_of_a_clients_is_ever_a_path(http: httpx2.Client, kind: str, name: str) -> None:
    answer = http.get(f"/v1/{kind}/{name}")
    assert answer.status_code == 404


def test_what_is_wrong_with_a_body_is_said_in_one_line(http: httpx2.Client) -> None:
    for body, expected in (
        (b"{", 400),
        (b"[]", 400),
        (b'{"prompt": "sea", "colour": "blue"}', 400),
        (b'{"prompt": "sea", "fps": -1}', 400),
        (b'{"prompt": "' + b"x" * 200_000 + b'"}', 413),
        (b"\xff\xfe", 400),
        (b"[" * 50_000, 413),
        (b"[" * 40, 413),
    ):
        answer = http.post("/v1/sessions", content=body)
        assert answer.status_code == expected, answer.text
        assert "\n" not in answer.json()["error"]["message"]
    assert http.get("/v1/sessions").json()["sessions"] == []


def test_a_server_that_is_full_says_why(tmp_path: Path) -> None:
    with serving(tmp_path, places=1) as small, httpx2.Client(base_url=small.url(), timeout=30) as http:
        opened(http)
        answer = http.post("/v1/sessions", json={"prompt": "sea"})
        assert code(answer) == (503, "refused")
        assert "GiB" in answer.json()["error"]["message"]
        assert list((tmp_path / "journals").iterdir()) == [], "a session that was refused leaves no journal"


def test_what_no_idle_server_could_take_is_not_told_to_try_again(tmp_path: Path) -> None:
    """503 says that it may be asked again; of a size that is too large for the whole device that is wrong."""
    ask = {"prompt": "sea", "size": "48x64"}
    with serving(tmp_path) as small, httpx2.Client(base_url=small.url(), timeout=30) as http:
        admission = small.hub.service.table.admission
        admission.config = replace(admission.config, memory_bytes=1)
        assert code(http.post("/v1/sessions", json=ask)) == (422, "refused")
        assert code(http.post("/v1/sessions", json=ask | {"wait": True})) == (422, "refused"), (
            "it would wait for ever"
        )
        clip = http.post("/v1/videos", json={"prompt": "sea"})
        assert (clip.status_code, clip.json()["error"]["type"]) == (422, "invalid_request_error")


NAMED = {
    "millstream_sessions", "millstream_sessions_waiting", "millstream_sessions_refused_total", "millstream_sessions_halted",
    "millstream_chunk_seconds_bucket", "millstream_phase_seconds_bucket", "millstream_deadline_misses_total",
    "millstream_late_seconds_total", "millstream_continuity_min", "millstream_first_frame_seconds_bucket",
    "millstream_control_seconds_bucket", "millstream_key_seconds_bucket", "millstream_outbox_items",
    "millstream_outbox_items_max",
    "millstream_encode_backlog", "millstream_sessions_ready", "millstream_session_memory_bytes",
    "millstream_reserved_memory_bytes", "millstream_device_memory_bytes", "process_resident_memory_bytes",
    "millstream_utilisation", "millstream_promised_share", "millstream_tasks", "millstream_threads",
}  # fmt: skip


def test_while_the_model_works_everybody_else_is_answered_at_once(
    server: Serving, http: httpx2.Client
) -> None:
    """The engine has a thread of its own; here it is held up in the middle of its work."""
    session = opened(http)["session"]
    held = threading.Event()
    go_on = threading.Event()
    job = server.hub.service.on_engine(session, lambda live: (held.set(), go_on.wait(30)))
    assert held.wait(30)
    begun = time.monotonic()
    assert http.get("/healthz").text == "ok"
    assert http.get("/metrics").status_code == 200
    other = opened(http)["session"]
    assert http.post(f"/v1/sessions/{other}/controls", json={"control": {"type": "cut"}}).status_code == 202
    with server.client() as client:
        client.say({"type": "ping", "t": 1})
        assert client.hear("pong")["t"] == 1
    assert time.monotonic() - begun < 5, "nobody waited for the engine"
    assert not job.done()
    go_on.set()
    job.result(30)


def test_health_readiness_metrics(server: Serving, http: httpx2.Client) -> None:
    assert http.get("/healthz").text == "ok"
    assert http.get("/readyz").status_code == 200
    server.hub.service.ready.clear()
    assert http.get("/readyz").status_code == 503
    server.hub.service.ready.set()
    with server.client() as client:
        client.start()
        client.say({"type": "control", "control": {"type": "cut"}})
        client.hear("receipt", state="applied")
        client.hear("chunk", index=2)
        text = http.get("/metrics").text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    samples = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
    assert {name.partition("{")[0] for name in samples} >= NAMED, "every figure that was promised"
    assert samples["millstream_sessions"] == 1
    assert samples["millstream_viewers"] == 1
    assert samples["millstream_chunks_total"] >= 3
    assert samples["millstream_control_seconds_count"] >= 1
    assert samples["millstream_first_frame_seconds_count"] >= 1
    assert samples['millstream_phase_seconds_count{phase="step"}'] >= 3
    assert samples["millstream_session_memory_bytes"] > 0
    assert samples["process_resident_memory_bytes"] > 0


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(FUZZED),
    JSON,
    st.text(alphabet=st.characters(codec="utf-8", exclude_characters="/?#"), max_size=20),
)
def test_no_body_and_no_path_makes_the_server_fail(
    http: httpx2.Client, endpoint: Any, body: Any, word: str
) -> None:
    path = re.sub(r"{\w+}", lambda _: word or "x", endpoint.path)
    try:
        content = json.dumps(body).encode()
        answer = http.request(endpoint.method, path, content=content)
    except (httpx2.InvalidURL, UnicodeError):
        return
    assert answer.status_code < 500 or (answer.status_code == 503 and "error" in answer.json()), answer.text
    assert "Traceback" not in answer.text
