"""WebRTC, program to server and browser to server: pictures at media time, words on the channel, and nothing
stays behind."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from aiortc import RTCIceTransport

from millstream.core.client_messages import ProtocolError
from millstream.core.errors import ConfigError
from millstream.server.access.auth import Access
from millstream.server.access.budgets import ClientRates
from millstream.server.access.keys import Keyring
from millstream.server.app import AppConfig
from millstream.server.sessions.paced_frames import LATE_S, Playhead
from millstream.server.transport import channels
from millstream.server.transport.offers import checked_offer
from millstream.server.transport.peers import IceServer
from tests.server.clients.webrtc_client import Camera, WebRTCClient
from tests.server.serving import Serving, serving
from tests.soak.abuses.signalling import offer as good_offer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

KEY = "a-key-for-tests"
PATIENCE_MS = 20_000


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(config=AppConfig(rates=ClientRates(offers=(1e9, 1e9)))) as server:
        yield server


def with_client(server: Serving, does: Callable[[WebRTCClient], Awaitable[Any]]) -> None:
    """Run a client to its end, then end its sessions, and see that nothing of them is left."""

    async def run() -> None:
        client = WebRTCClient(server.url())
        try:
            await does(client)
        finally:
            await client.close()

    asyncio.run(run())
    server.until(lambda: len(server.peers) == 0, "the connection is gone")
    for session_id in list(server.hub.live_sessions):
        server.hub.service.end(session_id)
    server.until_empty()


@pytest.mark.parametrize("codec", ["VP8", "H264"])
def test_pictures_come_at_the_pace_of_media_time(server: Serving, codec: str) -> None:
    async def watch(client: WebRTCClient) -> None:
        answer = await client.start(codec=codec, prompt="sea", fps=16)
        assert codec in answer["sdp"]
        assert server.hub.live_sessions.find(answer["session"]) is server.hub.live_sessions.find_view(
            answer["view"]
        )
        frames = await client.frames(30)
        times = np.array([float(frame.time) for frame in frames])
        assert {(frame.height, frame.width) for frame in frames} == {(16, 32)}
        assert np.median(np.diff(times)) == pytest.approx(1 / 16, abs=0.005)
        assert (
            np.abs(
                frames[0].to_ndarray(format="gray").astype(int) - frames[-1].to_ndarray(format="gray")
            ).mean()
            > 1
        )
        await client.say(type="stop")
        assert (await client.hear("ended"))["cause"] == "closed"

    with_client(server, watch)


def test_the_channel_carries_the_native_protocol_with_both_receipts(server: Serving) -> None:
    async def steer(client: WebRTCClient) -> None:
        await client.start(prompt="sea")
        hello = await client.hear("hello")
        assert hello["model"] == "wan-tiny"
        assert (await client.hear("live"))["format"] == "raw"
        await client.frames(1)
        await client.say(type="control", control={"type": "prompt", "prompt": "a storm", "id": "mine"})
        queued = await client.hear("receipt", control_id="mine")
        applied = await client.hear("receipt", control_id="mine")
        assert (queued["state"], applied["state"]) == ("queued", "applied")
        assert applied["chunk_index"] >= queued["chunk_index"]
        await client.say(type="start", version=1, prompt="another")
        assert (await client.hear("error"))["code"] == "bad_state"
        client.channel.send("{" * 200_000)
        assert (await client.hear("error"))["code"] == "too_large"
        await client.frames(2)

    with_client(server, steer)


def test_a_camera_is_the_input_of_a_session_that_takes_one(server: Serving) -> None:
    async def show(client: WebRTCClient) -> None:
        answer = await client.start(camera=Camera(), prompt="sea", input=True, noise_scale=0.5)
        await client.frames(24)
        feed = server.hub.live_sessions.find(answer["session"]).request.feed
        assert feed is not None
        assert feed.dropped == 0, "no more frames are taken than the session plays"
        await client.say(type="control", control={"type": "noise_scale", "noise_scale": 0.2, "id": "n"})
        await client.hear("receipt", control_id="n", state="queued")

    with_client(server, show)


def test_a_camera_that_nobody_asked_for_is_declined(server: Serving) -> None:
    async def show(client: WebRTCClient) -> None:
        answer = await client.start(camera=Camera(), prompt="sea")
        assert "a=sendonly" in answer["sdp"]
        assert "a=sendrecv" not in answer["sdp"]
        await client.frames(2)

    with_client(server, show)


def test_a_view_only_shows_and_a_lost_owner_comes_back(server: Serving) -> None:
    async def share(owner: WebRTCClient) -> None:
        mine = await owner.start(prompt="sea")
        await owner.frames(1)
        guest = WebRTCClient(server.url())
        again = WebRTCClient(server.url())
        try:
            theirs = await guest.start(type="view", view=mine["view"])
            assert theirs["session"] == ""
            await guest.frames(2)
            await guest.say(type="control", control={"type": "cut"})
            assert (await guest.hear("error"))["code"] == "read_only"
            await owner.close()
            assert (await again.start(type="attach", session=mine["session"]))["session"] == mine["session"]
            await again.frames(2)
        finally:
            await guest.close()
            await again.close()

    with_client(server, share)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"sdp": "v=0", "type": "offer", "start": {"version": 1, "prompt": "sea"}}, 400, "bad_message"),
        ({"sdp": "v=0", "type": "answer", "start": {"version": 1, "prompt": "sea"}}, 400, "bad_message"),
        ({"sdp": "v=0", "type": "offer", "start": {"version": 2, "prompt": "sea"}}, 400, "bad_version"),
        (
            {"sdp": "v=0", "type": "offer", "start": {"version": 1, "prompt": "sea", "size": "640x640000"}},
            400,
            "bad_message",
        ),
        ({"sdp": "v=0", "type": "offer", "start": {"type": "ping"}}, 409, "bad_state"),
        ({"sdp": "v=0", "type": "offer", "start": {"type": [], "version": 1}}, 409, "bad_state"),
        (
            {"sdp": "v=0", "type": "offer", "start": {"type": "attach", "version": 1, "session": "guess"}},
            404,
            "not_found",
        ),
        (
            {"sdp": "v=0\nm=video" * 9, "type": "offer", "start": {"version": 1, "prompt": "sea"}},
            413,
            "too_large",
        ),
        (
            {"sdp": "v=0\rm=video 9 UDP 96" * 9, "type": "offer", "start": {"version": 1, "prompt": "sea"}},
            413,
            "too_large",
        ),
        (
            {"sdp": "v=0\u2028m=a" * 9, "type": "offer", "start": {"version": 1, "prompt": "sea"}},
            413,
            "too_large",
        ),
        (
            {"sdp": "v=0\ra=candidate:1" * 65, "type": "offer", "start": {"version": 1, "prompt": "sea"}},
            413,
            "too_large",
        ),
        (
            {"sdp": "v=0\ra=rtpmap:96 V" * 129, "type": "offer", "start": {"version": 1, "prompt": "sea"}},
            413,
            "too_large",
        ),
        (
            {"sdp": "v=0\r" * 1001, "type": "offer", "start": {"version": 1, "prompt": "sea"}},
            413,
            "too_large",
        ),
        (
            {"sdp": "v=" + "0" * 3000, "type": "offer", "start": {"version": 1, "prompt": "sea"}},
            413,
            "too_large",
        ),
        ({"sdp": "v=0", "type": "offer"}, 400, "bad_message"),
        ({"sdp": "v" * 200_000, "type": "offer", "start": {}}, 413, "too_large"),
        ("offer", 400, "bad_message"),
    ],
)
def test_an_offer_that_cannot_be_used_is_refused_and_leaves_nothing(
    server: Serving, body: Any, status: int, code: str
) -> None:
    async def offer(client: WebRTCClient) -> None:
        response = await client.post("/v1/webrtc/offer", body)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text

    with_client(server, offer)


def test_an_offer_that_fails_on_the_way_ends_its_connection_without_a_traceback(
    server: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(transport: RTCIceTransport, parameters: object) -> None:
        raise AssertionError("what aiortc took for granted")

    monkeypatch.setattr(RTCIceTransport, "start", fails)

    async def call(client: WebRTCClient) -> None:
        body = {"sdp": good_offer(), "type": "offer", "start": {"version": 1, "prompt": "sea"}}
        assert (await client.post("/v1/webrtc/offer", body)).status_code == 200
        await asyncio.to_thread(server.until, lambda: len(server.peers) == 0, "the connection is gone")

    with_client(server, call)
    gc.collect()  # an error that nobody asked for is logged when its task is forgotten
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("packet", ["no text", "many channels"])
def test_a_channel_that_is_abused_ends_its_connection_without_a_traceback(
    server: Serving, packet: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def abuse(client: WebRTCClient) -> None:
        await client.start(prompt="sea")
        await client.hear("hello")
        if packet == "no text":
            await client.connection.sctp._send(
                client.channel.id, 51, b"\xff\xfe"
            )  # 51: a text, says the protocol
        else:
            for number in range(40):
                client.connection.createDataChannel(str(number))
        await asyncio.to_thread(server.until, lambda: len(server.peers) == 0, "the connection is gone")

    with_client(server, abuse)
    assert not [record for record in caplog.records if record.exc_info or "Traceback" in record.getMessage()]


class FakeStream:
    def __init__(self) -> None:
        self.reassembly: list[bytes] = []


class FakeTransport:
    """As much of aiortc's as is watched: a client sends pieces of messages that never end."""

    def __init__(self) -> None:
        self._advertised_rwnd = 2**20
        self._inbound_streams = {0: FakeStream()}

    async def _handle_data(self, data: bytes) -> None:
        self._advertised_rwnd -= len(data)
        self._inbound_streams[0].reassembly.append(data)


@pytest.mark.parametrize(
    ("size", "most"), [(1200, 2**20 // 1200 + 2), (0, channels.MAX_PIECES + 1)], ids=["bytes", "pieces"]
)
def test_a_message_that_never_ends_is_not_kept_without_end(
    size: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "PACKETS_PER_S", 1e9)
    transport = FakeTransport()
    given_up = []

    async def send() -> None:
        channels.watch_packets(transport, lambda: given_up.append(True))  # type: ignore[arg-type]
        for _ in range(3 * most):
            await transport._handle_data(bytes(size))

    asyncio.run(send())
    assert given_up
    assert len(transport._inbound_streams[0].reassembly) <= most


@pytest.mark.parametrize("sdp", ["", "x", "m=video 9"])
def test_what_is_no_session_description_is_called_that(sdp: str) -> None:
    with pytest.raises(ProtocolError, match="begins with v=0"):
        checked_offer(sdp)


def test_offers_of_one_client_have_a_rate() -> None:
    with serving(config=AppConfig(rates=ClientRates(offers=(0.001, 2)))) as server:

        async def offer(client: WebRTCClient) -> None:
            body = {"sdp": "v=0", "type": "offer", "start": {"version": 1, "prompt": "sea"}}
            answers = [await client.post("/v1/webrtc/offer", body) for _ in range(3)]
            assert [answer.status_code for answer in answers] == [400, 400, 429]

        with_client(server, offer)


def test_an_offer_whose_client_never_comes_is_forgotten(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.server.transport.peers.CONNECT_S", 0.2)

    async def vanish(client: WebRTCClient) -> None:
        start = {"version": 1, "prompt": "sea"}
        response = await client.post(
            "/v1/webrtc/offer", {"sdp": await client.offer(), "type": "offer", "start": start}
        )
        assert response.status_code == 200
        assert len(server.peers) == 1

    with_client(server, vanish)


def test_one_connection_too_many_is_refused_and_its_session_ends(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.peers, "max_peers", 0)

    async def offer(client: WebRTCClient) -> None:
        start = {"version": 1, "prompt": "sea"}
        response = await client.post(
            "/v1/webrtc/offer", {"sdp": await client.offer(), "type": "offer", "start": start}
        )
        assert response.status_code == 503
        await asyncio.to_thread(server.until_empty)

    with_client(server, offer)


def test_nobody_connects_without_the_key_and_the_servers_ice_servers_are_told() -> None:
    ice = (IceServer.parse("stun:127.0.0.1:9"), IceServer.parse("turn:127.0.0.1:9,me,secret"))
    with serving(config=AppConfig(access=Access(keyring=Keyring.of_one(KEY)), ice_servers=ice)) as locked:

        async def knock() -> None:
            body = {"sdp": "v=0", "type": "offer", "start": {"version": 1, "prompt": "sea"}}
            for path in ("/v1/webrtc/offer", "/api/v1/webrtc/offer"):
                stranger = WebRTCClient(locked.url())
                friend = WebRTCClient(locked.url(), headers={"Authorization": f"Bearer {KEY}"})
                assert (await stranger.post(path, body)).status_code == 401
                assert (await friend.post(path, body)).status_code == 400
                for client in (stranger, friend):
                    await client.close()

        asyncio.run(knock())
        assert [server.as_json() for server in locked.peers.ice_servers] == [
            {"urls": ["stun:127.0.0.1:9"]},
            {"urls": ["turn:127.0.0.1:9"], "username": "me", "credential": "secret"},
        ]


def test_an_ice_server_is_a_stun_or_turn_address() -> None:
    for text in ("http://example.org", "stun:a,b", ""):
        with pytest.raises(ConfigError, match="--ice-server takes"):
            IceServer.parse(text)


def test_frames_are_shown_at_media_time_and_late_ones_move_all_that_follow() -> None:
    playhead = Playhead()
    assert playhead.show_at(5.0, 0.1, 100.0) == 100.0, "the first is shown at once, wherever it lies"
    assert playhead.show_at(5.1, 0.1, 100.05) == pytest.approx(100.1)
    assert playhead.show_at(5.2, 0.1, 100.2 + LATE_S / 2) == pytest.approx(100.2 + LATE_S / 2), (
        "a little late: at once"
    )
    assert playhead.show_at(5.3, 0.1, 100.28) == pytest.approx(100.3), "and the next in time again"
    assert playhead.show_at(5.4, 0.1, 103.4) == 103.4, "very late: at once"
    assert playhead.show_at(5.5, 0.1, 103.42) == pytest.approx(103.5), "and the next after it"
    assert playhead.show_at(9.5, 0.1, 103.55) == pytest.approx(103.6), "what was left out is not waited for"
    assert playhead.elapsed_s(103.6) == pytest.approx(3.6)


CALL = """async ([codec, camera, start]) => {
    const connection = new RTCPeerConnection();
    const channel = connection.createDataChannel("parameters", { ordered: true });
    window.heard = [];
    channel.onmessage = (event) => window.heard.push(JSON.parse(event.data));
    const stream = camera ? await navigator.mediaDevices.getUserMedia({ video: true }) : null;
    const sent = camera ? stream.getVideoTracks()[0] : "video";
    const transceiver = connection.addTransceiver(sent, { direction: camera ? "sendrecv" : "recvonly" });
    const codecs = RTCRtpReceiver.getCapabilities("video").codecs;
    transceiver.setCodecPreferences(codecs.filter((each) => each.mimeType === codec));
    connection.ontrack = (event) => {
        const video = document.createElement("video");
        Object.assign(video, { muted: true, autoplay: true, id: "live", srcObject: new MediaStream([event.track]) });
        document.body.append(video);
        video.play();
    };
    await connection.setLocalDescription();
    const body = JSON.stringify({ sdp: connection.localDescription.sdp, type: "offer", start });
    const headers = { "Content-Type": "application/json" };
    const response = await fetch("/v1/webrtc/offer", { method: "POST", headers, body });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error.message);
    await connection.setRemoteDescription({ type: answer.type, sdp: answer.sdp });
    await new Promise((done) => (channel.readyState === "open" ? done() : (channel.onopen = done)));
    Object.assign(window, { connection, channel });
    return answer.session;
}"""
HAS_CODEC = (
    """(codec) => RTCRtpReceiver.getCapabilities("video").codecs.some((each) => each.mimeType === codec)"""
)
PIXELS = """() => {
    const video = document.getElementById("live");
    if (!video || !video.videoWidth) return null;
    const copy = new OffscreenCanvas(video.videoWidth, video.videoHeight).getContext("2d");
    copy.drawImage(video, 0, 0);
    return [video.videoWidth, ...copy.getImageData(0, 0, video.videoWidth, video.videoHeight).data];
}"""


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    """Only what comes last here asks for it: no other loop may run on this thread beside Playwright's."""
    pytest.importorskip("playwright", reason="needs playwright: pip install 'millstream[dev]'")
    from tests.server.browser import CHROMIUM, chromium

    if CHROMIUM is None:
        pytest.skip("no chromium on PATH: apt install chromium")
    with chromium() as browser:
        yield browser


@pytest.mark.parametrize(
    ("codec", "camera"), [("video/VP8", False), ("video/H264", False), ("video/VP8", True)]
)
def test_a_real_browser_sees_pictures_move_and_gets_its_receipts(
    server: Serving, chrome: Browser, codec: str, camera: bool
) -> None:
    with chrome.new_context() as context:
        page = context.new_page()
        page.goto(server.url("/"))
        if not page.evaluate(HAS_CODEC, codec):
            pytest.skip(f"this chromium has no {codec}")
        session = page.evaluate(CALL, [codec, camera, {"version": 1, "prompt": "sea", "input": camera}])
        assert server.hub.live_sessions.find(session).viewers
        page.wait_for_function(f"() => ({PIXELS})() !== null", timeout=PATIENCE_MS)
        first = page.evaluate(PIXELS)
        assert first[0] == 32
        page.wait_for_function(
            f"(first) => ({PIXELS})().some((value, i) => Math.abs(value - first[i]) > 24)",
            arg=first,
            timeout=PATIENCE_MS,
        )
        control = {"type": "control", "control": {"type": "prompt", "prompt": "a storm", "id": "mine"}}
        page.evaluate("(text) => window.channel.send(text)", json.dumps(control))
        receipts = "window.heard.filter((each) => each.type === 'receipt' && each.control_id === 'mine')"
        page.wait_for_function(f"() => {receipts}.length === 2", timeout=PATIENCE_MS)
        assert page.evaluate(f"{receipts}.map((each) => each.state)") == ["queued", "applied"]
        page.evaluate("window.connection.close()")
        server.until(lambda: len(server.peers) == 0, "the server has noticed that the browser left")
    server.hub.service.end(session)
    server.until_empty()
