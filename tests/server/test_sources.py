"""Videos that a server offers as an input: files that loop, addresses that come and go, and who is told
what."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import av
import numpy as np
import pytest
import torch

from millstream.core.errors import ConfigError
from millstream.engine.engine import Engine
from millstream.engine.replay import replay
from millstream.server.sessions import sources
from millstream.server.sessions.sources import Sources
from millstream.serving.notices import Noted
from millstream.session.journal import read_journal
from millstream.video import live_source
from millstream.video.live_source import LiveSource, SourceAddress, parse_source, picture_of
from millstream.video.writer import VideoWriter
from tests.server.serving import Client, Serving, serving, wait_until

SIZE = (48, 64)


def frames_of(level: int, count: int = 8, size: tuple[int, int] = SIZE) -> np.ndarray:
    return np.full((count, *size, 3), level, np.uint8)


def film(path: Path, *levels: int, size: tuple[int, int] = SIZE) -> Path:
    with VideoWriter(path, fps=24) as writer:
        for level in levels:
            writer.write(frames_of(level, size=size))
    return path


def level_of(source: LiveSource) -> int:
    return -1 if source.latest is None else round(float(picture_of(source.latest, SIZE).mean()))


@contextmanager
def playing(place: str | Path, told: list[str] | None = None) -> Iterator[LiveSource]:
    source = LiveSource(SourceAddress(name="a", place=str(place)), (told if told is not None else []).append)
    try:
        yield source
    finally:
        source.close()
    assert not source._thread.is_alive()


def near(level: int) -> Callable[[LiveSource], bool]:
    return lambda source: abs(level_of(source) - level) < 12


def transport_stream(*films: np.ndarray) -> bytes:
    """MPEG-TS, as it comes over a wire; a film of another size begins anew."""
    whole = b""
    for frames in films:
        file = io.BytesIO()
        with av.open(file, "w", format="mpegts") as container:
            stream = container.add_stream("mpeg2video", rate=25)
            stream.height = frames.shape[1]
            stream.width = frames.shape[2]
            stream.pix_fmt = "yuv420p"
            for frame in frames:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            container.mux(stream.encode(None))
        whole += file.getvalue()
    return whole


class Sender:
    """Somebody who streams to whoever connects, once for each turn that is granted."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.turns = threading.Semaphore(0)
        self.asked = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self.asked += 1
            with peer:
                if self.turns.acquire(timeout=1):
                    peer.sendall(self.data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def sender() -> Iterator[Sender]:
    sender = Sender(transport_stream(frames_of(200, 30), frames_of(60, 30, (96, 32))))
    yield sender
    sender.close()


def test_a_file_plays_at_its_own_rate_and_begins_again(tmp_path: Path) -> None:
    with playing(film(tmp_path / "a.mp4", 40, 220)) as source:
        seen = []
        began = time.monotonic()
        for level in (40, 220, 40, 220):
            wait_until(lambda level=level: near(level)(source), f"it shows {level}")
            seen.append(time.monotonic() - began)
    assert seen[-1] > 0.5, "sixteen frames of 24 a second, then eight more"
    assert source.trouble == ""


def test_what_is_live_may_change_its_size_ends_in_words_and_is_tried_again(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_source, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(live_source, "STEADY_S", 0.0)
    told: list[str] = []
    sender.turns.release()
    with playing(sender.place, told) as source:
        wait_until(lambda: bool(told), "it has ended")
        assert told == ["the source a is gone: it has ended; its last frame stays and it is tried again"]
        assert near(60)(source), "the last frame, of another shape than the first"
        assert source.latest is not None
        assert (source.latest.height, source.latest.width) == (96, 32)
        wait_until(lambda: sender.asked > 2, "it was tried again")
        assert len(told) == 1, "told once"
        sender.turns.release()
        wait_until(lambda: len(told) > 1, "it is back")
        assert told[1] == "the source a is back"


@pytest.mark.parametrize(
    "break_it", [lambda data: data[:200], lambda data: bytes(4096), lambda data: b"", lambda data: data[::-1]]
)
def test_what_is_broken_is_told_in_words_without_the_address(
    sender: Sender, break_it: Callable[[bytes], bytes]
) -> None:
    sender.data = break_it(sender.data)
    sender.turns.release()
    told: list[str] = []
    with playing(sender.place, told):
        wait_until(lambda: bool(told), "it is told")
    assert told[0].startswith("the source a is gone: ")
    assert "tcp:" not in told[0]
    assert told[0].endswith("the stream waits for its first frame and it is tried again")


def test_a_place_where_nobody_is_and_frames_that_are_huge_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    with playing("rtmp://user:secret@127.0.0.1:9/live/key", told):
        wait_until(lambda: bool(told), "it is told")
    assert "connection refused" in told[0]
    assert "secret" not in told[0]
    monkeypatch.setattr(live_source, "MAX_PIXELS", 1000)
    with playing(film(tmp_path / "a.mp4", 40), told):
        wait_until(lambda: len(told) > 1, "it is told")
    assert "its frames are 64x48; at most 1000 pixels" in told[1]
    with playing(tmp_path / "none.mp4", told):
        wait_until(lambda: len(told) > 2, "it is told")
    assert "its file is not there" in told[2]
    assert str(tmp_path) not in told[2], "where it lies is nobody's business"


def test_a_video_at_a_web_address_plays_in_a_loop(tmp_path: Path) -> None:
    film(tmp_path / "a.mp4", 40, 220)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with playing(f"http://127.0.0.1:{server.server_port}/a.mp4") as source:
            for level in (40, 220, 40):
                wait_until(lambda level=level: near(level)(source), f"it shows {level}")
        server.shutdown()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a", "NAME=FILE"),
        ("=a.mp4", "NAME=FILE"),
        ("A b=x", "NAME=FILE"),
        ("a=ftp://x", "begins with one of"),
        ("a=file:///x", "one of"),
    ],
)
def test_a_source_that_cannot_be_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_source(text)


def test_where_somebody_is_to_stream_to_us_the_pauses_stay_short() -> None:
    for place in ("rtmp://x/y?listen=1", "srt://:9?mode=listener"):
        assert SourceAddress(name="a", place=place).longest_wait_s == live_source.FIRST_WAIT_S
    assert SourceAddress(name="a", place="rtmp://x/y").longest_wait_s == live_source.LONGEST_WAIT_S


def test_files_are_looked_at_before_the_server_starts_and_names_are_unique(tmp_path: Path) -> None:
    (tmp_path / "notes.mp4").write_text("not a video")
    for place, words in (("notes.mp4", "is not a video"), ("none.mp4", "is not there")):
        with pytest.raises(ConfigError, match=f"--source a: .* {words}"):
            parse_source(f"a={tmp_path / place}")
    a = parse_source(f"a={film(tmp_path / 'a.mp4', 9)}")
    with pytest.raises(ConfigError, match="two --source a"):
        Sources.of([a, a])


def test_srt_without_ffmpeg_or_without_a_port_is_refused_with_the_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millstream.video.sender.ffmpeg_program", lambda: "/usr/bin/ffmpeg")
    assert parse_source("a=srt://:9000?mode=listener").scheme == "srt"
    for place in ("srt://camera", "srt://camera:", "srt://camera:123456", "srt://camera?passphrase=:9000"):
        with pytest.raises(ConfigError, match="--source a: an SRT address names a port"):
            parse_source(f"a={place}")
    monkeypatch.setattr("millstream.video.sender.ffmpeg_program", lambda: None)
    with pytest.raises(
        ConfigError, match=r"--source a: SRT needs the program ffmpeg: pip install 'millstream\[srt\]'"
    ):
        parse_source("a=srt://camera:9000")


def test_trouble_that_comes_at_once_reaches_the_session_that_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self, address: SourceAddress, tell: Callable[[str], None]) -> None:
            tell(f"{address.name} is gone")

    class Heard:
        notes: ClassVar[list[str]] = []

        def tell(self, note: Noted) -> None:
            self.notes.append(note.words)

    monkeypatch.setattr(sources, "LiveSource", Broken)
    Sources.of([SourceAddress(name="a", place="tcp://x")])._start("a", Heard())  # type: ignore[arg-type]
    assert Heard.notes == ["a is gone"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("sources")
    addresses = [
        parse_source(f"sea={film(folder / 'sea.mp4', 40, 220)}"),
        SourceAddress(name="gone", place="tcp://127.0.0.1:9"),
    ]
    with serving(folder / "data") as server:
        server.hub.card = replace(server.hub.card, sources=Sources.of(addresses))
        yield server


def start(client: Client, **changes: Any) -> dict[str, Any]:
    return client.start(noise_scale=0.5, size="32x32", **changes)


def test_a_session_restyles_a_named_source_beside_one_of_words_alone_and_can_be_replayed(
    server: Serving,
) -> None:
    with server.client() as client, server.client() as words:
        assert client.heard[0]["sources"] == ["sea", "gone"]
        live = start(client, source="sea")
        words.start()
        client.hear("chunk", index=3)
        words.hear("chunk", index=3)
        client.say(b"a frame")
        assert client.hear("error")["code"] == "bad_state"
        client.say({"type": "control", "control": {"type": "noise_scale", "id": "n", "noise_scale": 0.3}})
        client.hear("receipt", control_id="n", state="applied")
        client.say({"type": "stop"})
        client.hear("ended")
        words.say({"type": "stop"})
        server.until_empty()
        server.until(lambda: not server.hub.card.sources._playing, "nobody takes it, so it does not play")
    store = server.hub.archive.store
    server.until(lambda: store.get("journals", live["journal"]) is not None, "its journal is whole")
    journal = store.get("journals", live["journal"])
    assert journal is not None
    torch.set_num_threads(1)
    engine = Engine("wan-tiny", weights="random", device="cpu", dtype="float32")
    replayed = list(replay(engine, read_journal(journal.path)))
    assert len(replayed) > 3
    assert all(each.identical for each in replayed)


def test_a_source_that_is_not_there_is_told_and_harms_nobody(server: Serving) -> None:
    with server.client() as client, server.client() as other, server.client() as stranger:
        start(client, source="gone")
        note = client.hear("note")["message"]
        assert note.startswith("the source gone is gone: connection refused; the stream waits")
        other.start()
        other.hear("chunk", index=2)
        stranger.say({"type": "start", "version": 1, "prompt": "sea", "source": "/etc/passwd"})
        error = stranger.hear("error")
        assert (error["code"], error["message"]) == (
            "not_found",
            "there is no source '/etc/passwd'; there are sea, gone",
        )
        stranger.say({"type": "start", "version": 1, "prompt": "sea", "source": "sea", "input": True})
        assert "leave source or input out" in stranger.hear("error")["message"]
        for each in (client, other):
            each.say({"type": "stop"})
        server.until_empty()


@pytest.mark.slow
def test_a_session_that_is_kept_comes_back_with_its_source(tmp_path: Path) -> None:
    offered = Sources.of([parse_source(f"sea={film(tmp_path / 'sea.mp4', 40, 220)}")])
    session = ""
    for number in range(2):
        with serving(tmp_path / "data", keep_chunks=1) as server, server.client() as client:
            server.hub.card = replace(server.hub.card, sources=offered)
            if number == 0:
                session = start(client, source="sea")["session"]
            else:
                client.say({"type": "attach", "version": 1, "session": session})
            chunk = client.hear("chunk")["index"]
    assert chunk > 0, "it goes on"
