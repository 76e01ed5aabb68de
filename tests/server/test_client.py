"""`millstream.client` at a real server: both kinds of client, and the examples of docs/client.md."""

from __future__ import annotations

import asyncio
import io
import math
import re
import socket
import ssl
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import av
import httpx2
import numpy as np
import pytest

from millstream.client import Ask, Client, ClientError, async_client, connect, connect_async
from millstream.client.chunk import ChunkBuffer, ClientChunk
from millstream.client.reading import read
from millstream.core.controls import Cut, Pause, Resume, SetPrompt, SetSteps
from millstream.core.errors import ConfigError
from millstream.core.server_messages import ChunkHeader
from millstream.server.access.auth import access_for
from millstream.server.app import AppConfig
from millstream.server.protocol.messages import with_header
from millstream.video.picture import png
from tests.server.serving import Serving, serving

ROOT = Path(__file__).parents[2]
KEY = "correct-horse-battery"
SEA = Ask(prompt="sea", fps=24.0, seed=5)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture(scope="module")
def locked() -> Iterator[Serving]:
    access = access_for("127.0.0.1", api_key=KEY, insecure=False, origins=[])
    with serving(config=AppConfig(access=access)) as running:
        yield running


def session_of(client: Client) -> str:
    assert client.live is not None
    return client.live.session


def next_chunk(client: Client) -> ClientChunk:
    chunk = client.next_chunk()
    assert chunk is not None
    return chunk


@pytest.mark.parametrize("field", ["fps", "noise_scale", "kv_bias", "lead_s"])
def test_a_number_that_is_none_is_not_sent_as_nothing(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be a number, got nan"):
        Ask(prompt="sea", **{field: math.nan})


@pytest.mark.parametrize("number", [0, 1])
def test_the_examples_run(server: Serving, number: int) -> None:
    example = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "client.md").read_text(), re.DOTALL)[number]
    code = example.replace("http://127.0.0.1:8000", server.url())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "chunk" in done.stdout.splitlines()[-1]
    server.until_empty()


def test_frames_are_arrays_raw_ones_the_same_for_the_same_seed_and_stills_close_to_them(
    server: Serving,
) -> None:
    seen = []
    for format in ("raw", "raw", "jpeg", "webp"):
        with connect(server.url(), format=format) as client:
            config = client.start(SEA).config
            frames = next_chunk(client).frames
        assert frames.shape == (9, config["height"], config["width"], 3)
        assert frames.dtype == np.uint8
        seen.append(frames.astype(int))
    raw, again, *stills = seen
    assert (raw == again).all()
    assert raw.std() > 1
    for still in stills:
        assert abs(still - raw).mean() < raw.std(), "a still shows the same picture"


def test_a_control_has_two_receipts_and_shows_at_the_chunk_they_name(server: Serving) -> None:
    with connect(server.url()) as client:
        client.start(SEA)
        queued = client.steer("a storm")
        applied = client.applied(queued)
        assert (queued.state, applied.state) == ("queued", "applied")
        assert applied.chunk_index >= queued.chunk_index
        assert client.applied(queued) == applied, "who asks later is told the same"
        shown = next(chunk for chunk in client.chunks() if chunk.index == applied.chunk_index)
        assert [prompt.text for prompt in shown.header.prompts] == ["a storm"]
        cut = client.applied(client.steer(Cut()))
        assert next(chunk for chunk in client.chunks() if chunk.index == cut.chunk_index).header.epoch == 1


def test_a_pause_holds_until_it_is_resumed(server: Serving) -> None:
    with connect(server.url()) as client:
        client.start(SEA)
        paused_at = client.applied(client.steer(Pause())).chunk_index
        client.steer(Resume())
        assert next(chunk.index for chunk in client.chunks() if chunk.index >= paused_at) == paused_at


def test_what_is_refused_is_one_error_with_the_servers_line_and_the_stream_goes_on(server: Serving) -> None:
    with connect(server.url()) as client:
        with pytest.raises(ClientError, match="say start, attach, view or restore first") as early:
            client.save()
        assert early.value.code == "bad_state"
        with pytest.raises(ClientError, match="HEIGHTxWIDTH"):
            client.start(Ask(prompt="sea", size="large"))
        client.start(SEA)
        with pytest.raises(ClientError, match="decrease") as wrong:
            client.steer(SetSteps(steps=(1.0, 2.0)))
        assert wrong.value.code == "bad_control"
        assert client.applied(client.steer("a storm")).state == "applied"


def test_frames_that_are_sent_become_the_stream_and_what_is_no_frame_is_said(server: Serving) -> None:
    grey = np.full((64, 48, 3), 128, np.uint8)
    with connect(server.url()) as client:
        client.start(Ask(prompt="sea", input=True, noise_scale=0.5))
        for _ in range(9):
            client.send_frame(grey)
        assert len(next_chunk(client).frames) == 9
        with pytest.raises(ClientError, match=r"\(height, width, 3\), got float64"):
            client.send_frame(grey / 255)
        client.send_frame(b"no picture")
        server.until(lambda: any("picture" in note for note in client.notes), "it was told")


def test_leaving_ends_a_session_and_detaching_lets_it_stand_for_attach(server: Serving) -> None:
    with connect(server.url()) as client:
        client.start(SEA)
        next_chunk(client)
    server.until_empty()
    with connect(server.url()) as client:
        client.start(SEA)
        session = session_of(client)
        before = next_chunk(client).index
        client.detach()
    with connect(server.url()) as client:
        assert client.attach(session).session == session
        assert next_chunk(client).index >= before
        assert client.stop().cause == "closed"
        assert client.ended is not None
        while client.next_chunk() is not None:
            pass
        with pytest.raises(ClientError, match="has ended"):
            client.steer("too late")
    server.until_empty()


def test_a_view_shows_the_session_and_does_not_steer_it(server: Serving) -> None:
    with connect(server.url()) as owner, connect(server.url()) as viewer:
        live = owner.start(SEA)
        assert viewer.view(live.view).session == ""
        assert next_chunk(viewer).frames.any()
        with pytest.raises(ClientError, match="its owner steers it") as refused:
            viewer.steer("mine")
        assert refused.value.code == "read_only"
        owner.stop()
        indices = [chunk.index for chunk in viewer.chunks()]
        assert indices == sorted(indices), "the chunks that had come, then no more"
        assert viewer.ended is not None


def test_a_saved_session_is_restored_and_goes_on_to_the_same_bits(server: Serving) -> None:
    with connect(server.url(), format="raw") as client:
        client.start(SEA)
        paused_at = client.applied(client.steer(Pause())).chunk_index
        snapshot = client.save().snapshot
        client.steer(Resume())
        expected = next(chunk for chunk in client.chunks() if chunk.index == paused_at)
    with connect(server.url(), format="raw") as client:
        client.restore(snapshot)
        client.steer(Resume())
        found = next(chunk for chunk in client.chunks() if chunk.index == paused_at)
        assert (found.frames == expected.frames).all()


def untaken(client: Client) -> int:
    return len(client._client._buffer._chunks)


def test_the_first_chunk_after_a_recording_was_asked_for_is_the_first_in_its_film(server: Serving) -> None:
    with connect(server.url()) as client:
        client.start(SEA)
        server.until(lambda: untaken(client) >= 2, "chunks wait to be taken")
        begins = client.applied(client.steer(Pause())).chunk_index
        server.until(lambda: untaken(client) >= begins, "all that were made have come")
        assert client.record(True).on
        client.steer(Resume())
        chunks = list(client.chunks(3))
        assert [chunk.index for chunk in chunks] == [begins, begins + 1, begins + 2]
        assert client.dropped == 0, "what is of no use any more was not lost"
        client.applied(client.steer(Pause()))
        chunks += client.chunks(untaken(client))
        film = client.record(False).url
        with av.open(io.BytesIO(httpx2.get(server.url(film)).content)) as container:
            num_frames = sum(1 for _ in container.decode(video=0))
        assert num_frames == sum(len(chunk.frames) for chunk in chunks), "no more and no less"


def test_the_first_chunk_after_a_rewind_is_of_the_new_path(server: Serving) -> None:
    with connect(server.url()) as client:
        client.start(SEA)
        server.until(lambda: untaken(client) >= 3, "chunks of the old path wait to be taken")
        went = client.rewind(2)
        first, second = client.chunks(2)
        assert (first.index, second.index) == (went.from_chunk, went.from_chunk + 1)
        assert went.from_chunk > 0, "or the oldest of those that waited would pass for it"


def test_a_key_is_brought_and_without_it_the_servers_line_is_told(locked: Serving) -> None:
    with pytest.raises(ClientError, match="a key is needed"), connect(locked.url()):
        pass
    with pytest.raises(ClientError, match="the key is wrong"), connect(locked.url(), key="another"):
        pass
    with connect(locked.url(), key=KEY) as client:
        assert client.hello.model == "wan-tiny"
    with pytest.raises(ClientError, match="the client is closed"):
        client.stop()


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "", "ftp://127.0.0.1", "http://", "http://127.0.0.1:port", "http://[::1"]
)
def test_what_is_no_address_is_said_in_one_line(url: str) -> None:
    with pytest.raises(ClientError, match="must look like"), connect(url):
        pass


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"key": KEY + "\n"}, "the key holds something that no key does"),
        ({"format": "mp4"}, "format must be one of jpeg, webp, raw, got 'mp4'"),
        ({"tls": ssl.create_default_context()}, "tls is for an address that begins with https"),
    ],
)
def test_what_no_connection_can_have_is_said_in_one_line(
    server: Serving, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(ClientError, match=said) as refused, connect(server.url(), **wrong):
        pass
    assert KEY not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_another_address_of_a_server_is_called_that(
    server: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        pytest.raises(ClientError, match="no WebSocket is at this address"),
        connect(server.url("/elsewhere")),
    ):
        pass
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


class FileHandler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"


def test_a_server_of_another_kind_is_called_that(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), partial(FileHandler, directory=tmp_path)) as other:
        answering = threading.Thread(target=other.handle_request)
        answering.start()
        url = f"http://127.0.0.1:{other.server_port}"
        with pytest.raises(ClientError, match=r"no stream is at this address \(HTTP 404\)"), connect(url):
            pass
        answering.join()


def test_what_can_never_come_is_not_waited_for(server: Serving) -> None:
    with connect(server.url()) as client:
        with pytest.raises(ClientError, match="there is no session yet: start"):
            client.next_chunk()
        client.start(SEA)
        with pytest.raises(ClientError, match="steer takes a text or a control"):
            client.steer({"type": "cut"})  # type: ignore[arg-type]
        assert next_chunk(client).frames.any()


def test_an_error_that_is_met_again_and_again_stays_as_long_as_it_is(server: Serving) -> None:
    async def lengths() -> list[int]:
        async with connect_async(server.url()) as client:
            await client.start(SEA)
            client.detach()
            await client._connection._connection.vanish()
            found = []
            for _ in range(50):
                with suppress(ClientError):
                    while True:
                        await client.next_chunk()
                assert client._broken is not None
                found.append(len(traceback.extract_tb(client._broken.__traceback__)))
            return found

    first, *_, last = asyncio.run(lengths())
    assert first == last


def test_in_line_one_waits_for_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not only who starts, also who comes back: longer than a server may take to answer."""
    with serving(tmp_path, places=1) as crowded:
        with connect(crowded.url()) as client:
            client.start(SEA)
            snapshot = client.save().snapshot
        with connect(crowded.url()) as first, connect(crowded.url()) as second:
            first.restore(snapshot)  # slower than all that follow
            monkeypatch.setattr(async_client, "PATIENCE_S", 1.5)
            coming = threading.Thread(target=second.restore, args=(snapshot,))
            coming.start()
            crowded.until(lambda: second.waiting is not None, "it stands in line")
            coming.join(1.6)
            assert second.live is None
            first.stop()
            coming.join()
            assert second.live is not None
            assert next_chunk(second).frames.any()


def test_nobody_there_is_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with (
        pytest.raises(ClientError, match=f"no connection to ws://127.0.0.1:{port}"),
        connect(f"ws://127.0.0.1:{port}"),
    ):
        pass


def test_one_task_steers_while_another_takes_chunks(server: Serving) -> None:
    async def both() -> tuple[int, list[int]]:
        async with connect_async(server.url()) as client:
            await client.start(SEA)
            steering = asyncio.create_task(client.steer(SetPrompt(prompt="a storm", mode="cut"), at_chunk=3))
            indices = [chunk.index async for chunk in client.chunks(5)]
            return (await client.applied(await steering)).chunk_index, indices

    assert asyncio.run(both()) == (3, [0, 1, 2, 3, 4])


def test_a_question_that_is_given_up_leaves_no_answer_for_the_next(server: Serving) -> None:
    async def give_up_and_ask() -> tuple[str, str]:
        async with connect_async(server.url()) as client:
            await client.start(SEA)
            given_up = asyncio.create_task(client.steer("given up"))
            await asyncio.sleep(0)
            given_up.cancel()
            asked = await client.steer("a storm")
            return asked.control_id, (await client.applied(asked)).control_id

    asked, applied = asyncio.run(give_up_and_ask())
    assert asked == applied == "client-2"


def test_a_connection_that_is_lost_is_an_error_for_whoever_waits(server: Serving) -> None:
    async def lose() -> None:
        async with connect_async(server.url()) as client:
            await client.start(SEA)
            client.detach()
            await client._connection._connection.vanish()
            async for _ in client.chunks():
                pass

    with pytest.raises(ClientError, match="connection"):
        asyncio.run(lose())


def packed(index: int, *parts: bytes) -> ClientChunk:
    header = ChunkHeader(
        index=index, epoch=0, media_s=0.0, fps=24.0, frames=len(parts), format="jpeg", sizes=tuple(map(len, parts)),
        prompts=(), unknown=(), receipts=(), total_ms=0.0, phases_ms={}, late_s=0.0, dropped=0,
    )  # fmt: skip
    chunk = read(with_header(header, *parts))
    assert isinstance(chunk, ClientChunk)
    return chunk


def test_chunks_that_nobody_takes_go_oldest_first_and_are_counted() -> None:
    buffer = ChunkBuffer(max_bytes=100)
    for index in range(5):
        buffer.put(replace(packed(index, bytes(40)), size=(2, 2)))
    assert buffer.dropped == 3
    assert [chunk.index for chunk in (buffer.pop(), buffer.pop()) if chunk] == [3, 4]
    assert buffer.pop() is None
    buffer.put(replace(packed(5, bytes(1000)), size=(2, 2)))
    assert buffer.pop() is not None, "one is kept however large it is"


def test_a_chunk_without_pictures_has_no_frames_and_a_broken_picture_is_an_error() -> None:
    assert replace(packed(0), size=(4, 6)).frames.shape == (0, 4, 6, 3)
    with pytest.raises(ClientError, match="chunk 1 has a picture that is no jpeg"):
        assert replace(packed(1, b"no picture"), size=(4, 6)).frames is None


def test_an_encrypted_address_needs_no_more_than_the_system_trusts() -> None:
    """Nobody listens there: what is wrong is the connection, and not that `tls` was left out."""
    with pytest.raises(ClientError, match="no connection to https"), connect("https://127.0.0.1:1"):
        pass


def test_a_session_begins_and_goes_on_from_a_picture_that_is_a_file_or_its_bytes(
    server: Serving, tmp_path: Path
) -> None:
    photo = png(np.full((40, 160, 3), (200, 30, 10), np.uint8))
    (tmp_path / "photo.png").write_bytes(photo)
    with connect(server.url()) as client:
        assert client.hello.takes.image
        client.start(Ask(prompt="sea", fps=24), image=tmp_path / "photo.png")
        assert next_chunk(client).header.frames == 13, "the picture's own frame is shown first"
        again = client.applied(client.image(photo))
        while (chunk := next_chunk(client)).index < again.chunk_index:
            assert chunk.header.epoch == 0
        assert chunk.header.epoch == 1
        assert "width is cut away" in client.notes[0]
        with pytest.raises(ClientError, match="not a picture"):
            client.image(b"words")
        with pytest.raises(ClientError, match=r"cannot read .*no\.png"):
            client.image(tmp_path / "no.png")
        next_chunk(client)


def test_keys_wait_for_no_answer_and_what_is_refused_is_a_note(server: Serving) -> None:
    with connect(server.url()) as client:
        client.start(Ask(prompt="sea", fps=24))
        client.actions(["w"], look=(3.0, 0.0))
        client.steer(Cut())  # is answered after it
        assert client.notes == ("this model takes no keys; steer it by prompts",)
        with pytest.raises(ClientError, match="takes no camera"):
            client.camera([1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0.1])
        next_chunk(client)
