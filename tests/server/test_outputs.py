"""A session's pictures in other people's tools: sent to real receivers, and fetched by real players."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.client_messages import ProtocolError
from millstream.core.errors import ConfigError, MillstreamError, NotAllowed
from millstream.server.access.auth import access_for
from millstream.server.app import AppConfig
from millstream.server.sessions.outbox import Outbox
from millstream.server.sessions.outputs import hls, output, outputs
from millstream.server.sessions.outputs.destinations import Destination, check_address
from millstream.server.sessions.paced_frames import PacedFrames
from millstream.video import sender
from millstream.video.receivers import (
    ReceivedVideo,
    can_srt,
    free_port,
    read_film,
    rtmp_receiver,
    srt_receiver,
)
from millstream.video.sender import KEY_FRAMES_S
from tests.server.serving import Serving, serving
from tests.server.test_outbox import picture

ALLOWED = tuple(
    Destination.parse(text) for text in ("rtmp://127.0.0.1", "srt://127.0.0.1", "v4l2://*", "ndi://*")
)
FPS = 24.0
KEY = "letmein8"
HEADER = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    access = access_for("127.0.0.1", api_key=KEY, insecure=False, origins=())
    with serving(config=AppConfig(access=access), destinations=ALLOWED) as running:
        yield running


@pytest.fixture
def http(server: Serving) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url(), timeout=30, headers=HEADER) as client:
        yield client
    for session_id in list(server.hub.live_sessions):
        server.hub.service.end(session_id)
    server.until(lambda: not server.hub.live_sessions, "all sessions are gone")


@pytest.fixture
def session(http: httpx2.Client) -> dict[str, Any]:
    return dict(http.post("/v1/sessions", json={"prompt": "sea", "fps": FPS}).json())


def send(http: httpx2.Client, session: dict[str, Any], url: str, **more: Any) -> httpx2.Response:
    return http.post(f"/v1/sessions/{session['session']}/outputs", json={"url": url} | more)


def listed(http: httpx2.Client, session: dict[str, Any]) -> list[dict[str, Any]]:
    return list(http.get(f"/v1/sessions/{session['session']}/outputs").json()["outputs"])


def notes(http: httpx2.Client, session: dict[str, Any]) -> list[str]:
    return list(http.get(f"/v1/sessions/{session['session']}").json()["notes"])


def last_chunk(http: httpx2.Client, session: dict[str, Any]) -> int:
    return int(http.get(f"/v1/sessions/{session['session']}").json()["chunk_index"] or 0)


def ndi_pixels(name: str, wait_s: float = 60.0) -> np.ndarray:
    """[H, W, 4]: the first picture of the one who sends under that name by NDI."""
    from cyndilib.finder import Finder
    from cyndilib.receiver import Receiver
    from cyndilib.video_frame import VideoFrameSync
    from cyndilib.wrapper.ndi_recv import RecvColorFormat

    give_up = time.monotonic() + wait_s
    receiver = Receiver(color_format=RecvColorFormat.RGBX_RGBA)
    frame = VideoFrameSync()
    receiver.frame_sync.set_video_frame(frame)
    with Finder() as finder:
        while time.monotonic() < give_up:
            finder.wait_for_sources(0.2)
            found = next((each for each in finder.iter_sources() if each.stream_name == name), None)
            if found is not None and not receiver.is_connected():
                receiver.set_source(found)
            receiver.frame_sync.capture_video()
            if frame.xres:
                pixels: np.ndarray = frame.get_array().reshape(frame.yres, frame.xres, 4)
                return pixels
            time.sleep(0.05)
    raise TimeoutError(f"nobody sends as {name} by NDI")


def check_film(received: ReceivedVideo, session: dict[str, Any], count: int) -> None:
    """Whole pictures of the right size, at the session's rate by the stream's own clock."""
    times = [at for _, at, _ in received.frames[:count]]
    assert len(times) == count, f"{len(times)} frames came"
    assert received.frames[0][2].shape == (session["config"]["height"], session["config"]["width"], 3)
    assert times == sorted(set(times)), "each has a time of its own"
    assert np.median(np.diff(times)) == pytest.approx(1 / FPS, abs=2e-3)
    assert received.frames[0][2].std() > 1, "something is to be seen"


def test_rtmp_survives_a_receiver_that_is_started_again_and_ends_with_its_session(
    server: Serving, http: httpx2.Client, session: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "RETRY_S", (0.3,))
    port = free_port()
    with rtmp_receiver(port, frames=60) as first:
        started = send(http, session, f"rtmp://127.0.0.1:{port}/live/secret?token=hidden", kbps=800)
        assert started.status_code == 201
        assert started.json()["url"] == f"rtmp://127.0.0.1:{port}", "keys in an address are not told"
        server.until(lambda: first.done.is_set(), "60 frames came")
    check_film(first, session, 60)
    due = first.key_frames[0] + KEY_FRAMES_S - 2e-3
    assert first.key_frames[1] == next(at for _, at, _ in first.frames if at >= due)
    server.until(lambda: listed(http, session)[0]["state"] == "retrying", "it is noticed")
    with rtmp_receiver(port) as second:
        server.until(lambda: len(second.frames) >= 10, "it is sent there again")
        (state,) = listed(http, session)
        assert (state["state"], state["reason"], state["kbps"]) == ("live", "", 800)
        assert state["reconnects"] >= 1
        http.delete(f"/v1/sessions/{session['session']}")
        server.until(lambda: second.done.is_set(), "the receiver hears the end")
    check_film(second, session, 10)
    told = server.hub.live_sessions.find_known(session["session"]).viewers.notes
    words = [note.words for note in told if "output" in note.words]
    assert [" ".join(each.split()[:5]) for each in words] == [
        "an output has no receiver",
        "an output has its receiver",
    ]
    assert listed(http, session) == []


@pytest.mark.skipif(not can_srt(), reason="no ffmpeg with SRT: pip install 'millstream[srt]'")
def test_srt_survives_a_receiver_that_is_started_again(
    server: Serving, http: httpx2.Client, session: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "RETRY_S", (0.3,))
    port = free_port(socket.SOCK_DGRAM)
    with srt_receiver(port) as first:
        assert send(http, session, f"srt://127.0.0.1:{port}?latency=120000").status_code == 201
        server.until(lambda: len(first.frames) >= 30, "30 frames came")
    check_film(first, session, 30)
    server.until(lambda: listed(http, session)[0]["state"] == "retrying", "it is noticed")
    with srt_receiver(port) as second:
        server.until(lambda: len(second.frames) >= 10, "it is sent there again")
        server.until(lambda: listed(http, session)[0]["state"] == "live", "that is known")
        (state,) = listed(http, session)
        assert http.delete(f"/v1/sessions/{session['session']}/outputs/{state['output']}").status_code == 204
        server.until(lambda: second.done.is_set(), "the receiver hears the end")
    assert listed(http, session) == []
    assert last_chunk(http, session) > 0


def test_a_receiver_that_refuses_is_told_of_once_and_given_up_in_the_end(
    server: Serving, http: httpx2.Client, session: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "RETRY_S", (0.1,))
    with server.client(additional_headers=HEADER) as client:
        client.say({"type": "attach", "version": 1, "session": session["session"]})
        client.say({"type": "output", "url": f"rtmp://127.0.0.1:{free_port()}/live/key"})
        (connecting,) = client.hear("outputs")["outputs"]
        assert connecting["state"] == "connecting"
        assert "Connection refused" in client.hear("note")["message"]
        server.until(lambda: listed(http, session)[0]["reconnects"] > 0, "it is tried again")
        monkeypatch.setattr(output, "GIVE_UP_S", 0.0)
        assert "given up" in client.hear("note")["message"]
        seen = [message["index"] for message in client.heard if message["type"] == "chunk"]
        assert seen == list(range(seen[0], seen[0] + len(seen))), "nobody else misses anything"
        (failed,) = listed(http, session)
        assert (failed["state"], failed["reason"]) == ("failed", "Connection refused")
        with server.client(additional_headers=HEADER) as again:
            again.say({"type": "attach", "version": 1, "session": session["session"]})
            assert again.hear("outputs")["outputs"] == [failed], "whoever comes back is told what there is"
        client.say({"type": "stop_output", "output": connecting["output"]})
        assert client.hear("outputs")["outputs"] == []
        client.say({"type": "stop_output", "output": connecting["output"]})
        assert client.hear("error")["code"] == "not_found"
    assert len(notes(http, session)) == 2


@pytest.mark.parametrize("is_open", [False, True])
def test_a_receiver_that_takes_nothing_slows_nobody_and_is_left(
    server: Serving,
    http: httpx2.Client,
    session: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    is_open: bool,
) -> None:
    """One that never answers, and one whose sender waits for it ever after."""
    monkeypatch.setattr(output, "PATIENCE_S", 2.0)
    if is_open:
        monkeypatch.setattr(output, "SENDER", ("sh", "-c", "echo open; exec sleep 60"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert send(http, session, f"rtmp://127.0.0.1:{silent.getsockname()[1]}/live/key").status_code == 201
        server.until(lambda: bool(notes(http, session)), "it is noticed")
        (state,) = listed(http, session)
        assert (state["state"], state["reason"]) == (
            "retrying",
            "it takes no pictures" if is_open else "it does not answer",
        )
        server.until(lambda: last_chunk(http, session) >= 4, "the session has gone on meanwhile")


def test_outputs_are_few(
    http: httpx2.Client, session: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "MAX_OF_SESSION", 0)
    refused = send(http, session, "rtmp://127.0.0.1/live/key")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "refused")


BAD = [
    "", "nonsense", "http://127.0.0.1/live", "file:///etc/passwd", "rtmp://", "rtmp:///live/key", "rtmp://127.0.0.1", "rtmp://*/live/k",
    "rtmp://127.0.0.1/live", "rtmp://127.0.0.1:0/live/key", "rtmp://127.0.0.1:99999/live/key", "rtmp://a@127.0.0.1/live/key",
    "rtmp://127.0.0.1\\@evil/live/key", "rtmp://127.0.0.1/live/key\nx", "rtmp://[::1/live/key", "srt://127.0.0.1", "rtmp://ü/a/b",
    "srt://127.0.0.1:9000?mode=listener", "srt://127.0.0.1:9000?localport=80", "v4l2://video", "v4l2://sda", "v4l2://video1/../sda",
    "v4l2:///dev/video1", "ndi://", "ndi://a:1", "ndi://a/b", "rtmp://127.0.0.1/live/" + 2000 * "k",
]  # fmt: skip


def test_a_bad_address_is_refused_in_one_line_before_anything_is_connected_to(
    http: httpx2.Client, session: dict[str, Any]
) -> None:
    for url in BAD:
        with pytest.raises(ProtocolError, match=r"\A[^\n]+\Z") as refused:
            check_address(url, ALLOWED)
        assert refused.value.code == "bad_message", url
    answer = send(http, session, BAD[-1])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_message")
    elsewhere = send(http, session, "rtmp://10.0.0.7:1935/live/key")
    assert elsewhere.status_code == 403
    assert elsewhere.json()["error"]["message"].endswith("--allow-output rtmp://10.0.0.7:1935")
    assert send(http, session, "rtmp://127.0.0.1/live/key", kbps=1).status_code == 400
    assert listed(http, session) == []


@given(
    st.text("rtmpsabc:/@?#[]*.\\ 0127ü\n", max_size=40),
    st.sampled_from(["", "rtmp://", "srt://", "rtmp://127.0.0.1"]),
)
def test_nothing_is_sent_where_nothing_is_allowed(text: str, start: str) -> None:
    for allowed, errors in (((), (NotAllowed, ProtocolError)), (ALLOWED, MillstreamError)):
        try:
            name = check_address(start + text, allowed)
        except errors as error:
            name = str(error)
        assert len(name.splitlines()) == 1
        assert " " in name or re.fullmatch(r"(rtmp|srt)://127\.0\.0\.1(:\d+)?", name), (
            "an error, or where it is allowed"
        )


def test_what_is_allowed_is_a_scheme_a_host_and_perhaps_a_port() -> None:
    anywhere = Destination.parse("srt://*:9000")
    one = Destination.parse("rtmps://Live.Example.org/")
    assert check_address("srt://10.0.0.7:9000?streamid=a", [anywhere]) == "srt://10.0.0.7:9000"
    assert check_address("rtmps://live.example.ORG:443/app/key", [one]) == "rtmps://live.example.org:443"
    for url in ("srt://10.0.0.7:9001", "rtmp://live.example.org/app/key", "rtmps://evil.example.org/app/key"):
        with pytest.raises(NotAllowed):
            check_address(url, [anywhere, one])
    for text in ("rtmp", "rtmp://", "http://example.org", "rtmp://a/b", "srt://a:0"):
        with pytest.raises(ConfigError, match="allow-output"):
            Destination.parse(text)


def test_a_camera_or_ndi_that_is_not_here_is_refused_with_the_fix(
    http: httpx2.Client, session: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sender, "DEVICES", tmp_path)
    monkeypatch.setattr(sender, "find_spec", lambda name: None)
    for url, fix in (
        ("v4l2://video10", "sudo modprobe v4l2loopback video_nr=10 exclusive_caps=1"),
        ("ndi://stage", "NDI needs its library: pip install 'millstream[ndi]'"),
    ):
        error = send(http, session, url).json()["error"]
        assert error["code"] == "bad_state"
        assert error["message"].endswith(fix)
    assert listed(http, session) == []


def frames_for(asked: sender.Sending, *levels: int) -> io.BytesIO:
    """What a sender is given: a frame of each grey."""
    size = asked.height * asked.width * 3
    heads = (sender.FRAME_HEADER.pack(place / asked.fps) for place in range(len(levels)))
    return io.BytesIO(
        b"".join(head + size * bytes([level]) for head, level in zip(heads, levels, strict=True))
    )


@pytest.fixture
def no_alarm() -> Iterator[None]:
    """A sender ends its process when it hangs; here it is in ours."""
    yield
    signal.alarm(0)


@pytest.mark.usefixtures("no_alarm")
def test_a_virtual_camera_is_given_whole_frames_in_the_colours_of_cameras(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Into a plain file, by the muxer that only writes: the device's own asks the kernel for its size
    first."""
    monkeypatch.setattr(sender, "DEVICES", tmp_path)
    monkeypatch.setattr(sender, "CAMERA_FORMAT", "rawvideo")
    asked = sender.Sending(url="v4l2://video10", height=48, width=64, fps=FPS, kbps=1000)
    sender.send(asked, frames_for(asked, 0, 255))
    planes = np.frombuffer((tmp_path / "video10").read_bytes(), np.uint8).reshape(2, 48 * 64 * 3 // 2)
    for plane, luma in zip(planes, (16, 235), strict=True):
        assert set(plane[: 48 * 64]) == {luma}
        assert set(plane[48 * 64 :]) == {128}
    monkeypatch.undo()
    monkeypatch.setattr(sender, "DEVICES", tmp_path)
    with pytest.raises(OSError, match="ioctl"):
        sender.send(asked, frames_for(asked, 0))  # a file is no device


@pytest.mark.usefixtures("no_alarm")
def test_ndi_is_seen_under_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ndi-config.v1.json").write_text(json.dumps({"ndi": {"networks": {"ips": "127.0.0.1"}}}))
    monkeypatch.setenv("NDI_CONFIG_DIR", str(tmp_path))  # found without the network's announcements
    pytest.importorskip("cyndilib", reason="no NDI: pip install 'millstream[ndi]'")
    name = f"millstream-{os.getpid()}"
    asked = sender.Sending(url=f"ndi://{name}", height=48, width=64, fps=FPS, kbps=1000)
    with ThreadPoolExecutor(1) as pool:
        seeing = pool.submit(ndi_pixels, name)

        class Frames(io.BytesIO):
            """Grey ones, until one was seen."""

            def read(self, count: int | None = -1) -> bytes:
                time.sleep(1 / FPS)
                return b"" if seeing.done() else frames_for(asked, 200).getvalue()

        sender.send(asked, Frames())
        pixels_HW4 = seeing.result()
    assert pixels_HW4.shape == (48, 64, 4)
    assert np.abs(pixels_HW4[..., :3].astype(int) - 200).max() < 8


def test_mjpeg_comes_one_picture_a_part(
    server: Serving, http: httpx2.Client, session: dict[str, Any]
) -> None:
    received = ReceivedVideo()
    path = f"/v1/views/{session['view']}/live.mjpg"
    with http.stream("GET", path) as answer:
        assert answer.headers["content-type"] == "multipart/x-mixed-replace; boundary=picture"
        assert answer.headers["cache-control"] == "no-store"
        first = next(answer.iter_raw())
        assert first == b"--picture\r\n"
    read_film(server.url(f"{path}?api_key={KEY}"), received, frames=24, format="mpjpeg")
    assert len(received.frames) == 24
    assert received.frames[0][2].shape == (session["config"]["height"], session["config"]["width"], 3)
    server.until(
        lambda: not server.hub.live_sessions.find(session["session"]).viewers, "players that go are let go"
    )
    assert http.get("/v1/views/nobody/live.mjpg").status_code == 404


def test_hls_is_played_its_list_is_short_and_ends_with_the_session(
    server: Serving, http: httpx2.Client, session: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hls, "LISTED", 2)
    folder = f"/v1/views/{session['view']}"
    received = ReceivedVideo()
    assert http.get(f"{folder}/0.m4s").status_code == 503
    read_film(server.url(f"{folder}/live.m3u8?api_key={KEY}"), received, frames=24)
    check_film(received, session, 24)
    server.until(
        lambda: last_chunk(http, session) > 2 * hls.LISTED + 1, "more chunks have come than are kept"
    )
    lines = http.get(f"{folder}/live.m3u8").text.splitlines()
    names = [line for line in lines if not line.startswith("#")]
    assert len(names) == hls.LISTED
    target = int(next(line for line in lines if "TARGETDURATION" in line).rpartition(":")[2])
    assert all(float(line[8:-1]) <= target for line in lines if line.startswith("#EXTINF:"))
    assert http.get(f"{folder}/{names[0]}").headers["content-type"] == "video/mp4"
    assert http.get(f"{folder}/0.m4s").status_code == 404, "old ones are let go"
    http.delete(f"/v1/sessions/{session['session']}")
    server.until(lambda: "#EXT-X-ENDLIST" in http.get(f"{folder}/live.m3u8").text, "players hear the end")
    assert http.get(f"{folder}/{names[-1]}").status_code == 200, "and can play to it"


def test_players_bring_the_key_in_their_address_and_nobody_else_does(
    server: Serving, http: httpx2.Client, session: dict[str, Any]
) -> None:
    folder = server.url(f"/v1/views/{session['view']}")
    assert httpx2.get(f"{folder}/live.m3u8").status_code == 401
    assert httpx2.get(f"{folder}/live.m3u8?api_key=wrong-one").status_code == 401
    assert httpx2.get(server.url(f"/v1/sessions?api_key={KEY}")).status_code == 401, "only films"
    lines = httpx2.get(f"{folder}/live.m3u8?api_key={KEY}", timeout=30).text.splitlines()
    assert f'#EXT-X-MAP:URI="init.mp4?api_key={KEY}"' in lines
    assert httpx2.get(f"{folder}/{lines[-1]}").status_code == 200
    assert httpx2.get(f"{folder}/{lines[-1].partition('?')[0]}").status_code == 401


def test_whoever_takes_frames_late_gets_the_newest_and_not_all() -> None:
    async def play() -> None:
        outbox = Outbox()
        for index in range(20):
            outbox.put(picture(index, size=index + 1))
        outbox.finish()
        frames = PacedFrames(outbox)
        sizes = []
        while (shown := await frames.next()) is not None:
            sizes.append(len(shown[0]))
        assert sizes == [17, 18, 19, 20]

    asyncio.run(play())
