"""Invalid requests at the gateway: each costs one line, leaves nothing behind and affects no other client."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from websockets import InvalidStatus
from websockets.sync.client import connect

from millstream.core.errors import NotAllowed
from millstream.core.keys import Key
from millstream.fleet.membership import Membership
from millstream.server.protocol import bodies
from tests.fleet.playing import SmallFleet, small_fleet
from tests.server.attacked import quiet_log
from tests.server.serving import START, Client, wait_until
from tests.soak.abuses.campaign import run_campaign
from tests.soak.abuses.target import Target

WATCHER = "the-key-of-the-watcher"
STUDIO = "the-key-of-the-studio"
KEYS = f"""
[keys.watcher]
key = "{WATCHER}"
read-only = true
[keys.studio]
key = "{STUDIO}"
"""
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallFleet]:
    with small_fleet(tmp_path_factory.mktemp("fleet"), ("tiny-a",)) as running:
        yield running


@contextmanager
def line_to(fleet: SmallFleet, to: str = "") -> Iterator[socket.socket]:
    host, _, port = (to or fleet.url.removeprefix("http://")).partition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as line:
        yield line


def ask_raw(fleet: SmallFleet, head: bytes, body: bytes = b"", to: str = "") -> tuple[int, str]:
    """A status and what was said with it, of a request that no library would send; `to` is another
    address."""
    with line_to(fleet, to) as line:
        line.sendall(head + b"\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n" + body)
        data = b""
        while piece := line.recv(2**16):
            data += piece
    return int(data.split(b" ", 2)[1]), data.partition(b"\r\n\r\n")[2].decode()


def post_raw(
    fleet: SmallFleet, body: bytes, path: bytes = b"/v1/sessions", *headers: bytes
) -> tuple[int, str]:
    length = b"Content-Length: %d" % len(body)
    return ask_raw(fleet, b"\r\n".join((b"POST " + path + b" HTTP/1.1", length, *headers)), body)


def num_places(fleet: SmallFleet) -> int:
    """That the gateway has given away."""
    return len(fleet.sessions_on("tiny-a"))


@contextmanager
def stranger(fleet: SmallFleet, path: str = "/v1/stream", **options: Any) -> Iterator[Client]:
    with connect(fleet.url.replace("http", "ws") + path, compression=None, max_size=None, **options) as line:
        yield Client(line)


def test_a_header_byte_above_127_is_answered_as_a_server_does(fleet: SmallFleet) -> None:
    with quiet_log():
        for name in (b"X-Odd", b"Accept", b"Range", b"If-None-Match", b"Content-Type", b"Cookie"):
            assert ask_raw(fleet, b"GET /v1/models HTTP/1.1\r\n" + name + b": caf\xe9")[0] == 200, name
        assert (
            post_raw(fleet, b"x", b"/v1/videos", b"Content-Type: multipart/form-data; boundary=\xff")[0]
            == 400
        )


@pytest.mark.parametrize(
    "path",
    [
        b"/v1/models/%00", b"/v1/sessions/%00", b"/v1/models/%0a", b"/v1/models/%7f", b"/v1/sessions/%2e%2e/fleet/link",
        b"/v1/sessions/../fleet/link", b"/v1/views/%2E%2e/fleet", b"/v1/models/.", b"/api/%2e%2e/v1/fleet",
    ],
)  # fmt: skip
def test_a_path_that_says_something_else_to_the_next_reader_is_refused(
    fleet: SmallFleet, path: bytes
) -> None:
    with quiet_log():
        status, said = ask_raw(fleet, b"GET " + path + b" HTTP/1.1")
    assert (status, "a path may hold no" in said) == (400, True), said


def test_odd_letters_in_paths_and_queries_reach_the_replica_as_they_were_meant(fleet: SmallFleet) -> None:
    with quiet_log():
        for path in (
            b"/v1/models/caf%C3%A9",
            b"/v1/models/%ff",
            b"/v1/models/a%2Fb",
            b"/v1/models/%252e%252e?x=%00&y=[|",
        ):
            assert ask_raw(fleet, b"GET " + path + b" HTTP/1.1")[0] == 404, path
        assert "'%2e%2e'" in ask_raw(fleet, b"GET /v1/models/%252e%252e HTTP/1.1")[1], "taken apart once"


def test_what_is_no_text_or_no_number_is_refused_in_a_line(fleet: SmallFleet) -> None:
    with quiet_log():
        for body in (
            b'{"prompt":"\xff"}', b'{"prompt":"sea","seed":123456789012345678901234567890}', b"[]", b"nothing",
            b'{"prompt":"sea","sneed":1}', b'{"prompt":"\\ud800"}',
        ):  # fmt: skip
            status, said = post_raw(fleet, body)
            assert status == 400, said
            assert "\n" not in json.loads(said)["error"]["message"]
            assert post_raw(fleet, body, b"/v1/webrtc/offer")[0] == 400
            assert post_raw(fleet, body, b"/api/v1/webrtc/offer")[0] == 400
        status, said = post_raw(fleet, b"[" * 5000)
        assert status == 413, "deeper than a message may be"
        assert "\n" not in json.loads(said)["error"]["message"]
    assert num_places(fleet) == 0


def test_a_body_that_is_declared_too_long_is_refused_before_it_comes(fleet: SmallFleet) -> None:
    begun = time.monotonic()
    for path in (
        b"/v1/sessions",
        b"/v1/videos",
        b"/v1/snapshots",
        b"/v1/webrtc/offer",
        b"/v1/sessions/mine/controls",
    ):
        status, said = ask_raw(fleet, b"POST " + path + b" HTTP/1.1\r\nContent-Length: 99999999999")
        assert status == 413, said
    assert time.monotonic() - begun < bodies.PATIENCE_S, "nothing was waited for"


def test_a_server_alone_refuses_it_too(fleet: SmallFleet) -> None:
    head = b"POST /v1/sessions HTTP/1.1\r\nContent-Length: 99999999999\r\nAuthorization: Bearer "
    begun = time.monotonic()
    status, said = ask_raw(
        fleet, head + fleet.ticket("tiny-a", "mine").encode(), to=fleet.servers["tiny-a"].address
    )
    assert status == 413, said
    assert time.monotonic() - begun < bodies.PATIENCE_S


def test_a_body_without_a_length_is_held_to_one_message(fleet: SmallFleet) -> None:
    pieces = (b" " * 2**16 for _ in range(1000))
    with quiet_log():
        try:
            refused = httpx2.post(f"{fleet.url}/v1/sessions", content=pieces).status_code
        except httpx2.HTTPError:  # the line is closed while it writes on
            refused = 413
    assert refused == 413


def test_a_slow_body_is_not_held_for_ever(fleet: SmallFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "PATIENCE_S", 0.3)
    for path in (b"/v1/sessions", b"/v1/videos", b"/v1/snapshots"):
        status, said = ask_raw(fleet, b"POST " + path + b" HTTP/1.1\r\nContent-Length: 1000", b"{")
        assert (status, "too slowly" in said) == (400, True), said


def test_a_large_body_goes_through_as_it_comes(fleet: SmallFleet) -> None:
    """The replica has some of it before the gateway has all of it."""
    folder = fleet.shared.parent / "tiny-a"

    def num_bytes() -> int:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    before = num_bytes()
    with line_to(fleet) as line:
        line.sendall(
            b"POST /v1/snapshots HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000000\r\n\r\n"
            + bytes(2**23)
        )
        wait_until(lambda: num_bytes() >= before + 2**22, "half of what was sent is on the replica's disk")
    wait_until(lambda: num_bytes() <= before, "what never came to its end is gone")


def test_clients_that_leave_leave_nothing_behind(fleet: SmallFleet) -> None:
    with quiet_log():
        for text in (
            b"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{",
            b"POST /v1/videos HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{",
            b"POST /v1/snapshots HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe",
            b"GET /v1/sessions/nobodys HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
            b"POST /v1/webrtc/offer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n{}",
        ):
            with line_to(fleet) as line:
                line.sendall(text)
        view = json.dumps({"type": "view", "version": 1, "view": "nobodys"})
        for said in ("", b"x", "no message", json.dumps(START), view):
            with stranger(fleet) as client:
                client.say(said)
                client.connection.socket.shutdown(socket.SHUT_RDWR)
        for path in ("/v1/realtime/video", "/session/me", "/v1/realtime_video/generate"):
            with stranger(fleet, path) as client:
                client.connection.socket.shutdown(socket.SHUT_RDWR)
        wait_until(
            lambda: num_places(fleet) <= len(fleet.servers["tiny-a"].hub.live_sessions),
            "their places are given back",
        )
    for session in list(fleet.servers["tiny-a"].hub.live_sessions):
        httpx2.delete(f"{fleet.url}/v1/sessions/{session}")
    fleet.servers["tiny-a"].until_empty()


def test_a_session_that_its_replica_refuses_gives_its_place_back_at_once(fleet: SmallFleet) -> None:
    assert (
        httpx2.post(f"{fleet.url}/api/v1/webrtc/offer", json={"sdp": "", "type": "offer"}).status_code == 400
    )
    offer = {"sdp": "", "type": "offer", "start": {"version": 1, "prompt": "sea"}}
    assert httpx2.post(f"{fleet.url}/v1/webrtc/offer", json=offer).status_code == 400
    assert httpx2.post(f"{fleet.url}/v1/videos", json={"prompt": ""}).status_code == 400
    wait_until(lambda: num_places(fleet) == 0, "no place is kept for them", patience_s=20)


def test_a_first_message_that_is_no_text_is_an_error_and_no_end(fleet: SmallFleet) -> None:
    with quiet_log(), stranger(fleet) as client:
        client.hear("hello")
        client.say(b"\xff")
        assert client.hear("error")["code"] == "bad_state"
        client.say(START | {"seed": 123456789012345678901234567890})
        assert client.hear("error")["code"] == "bad_message"
        client.say('{"type": "start", "version": 1, "prompt": "' + "x" * 200_000 + '"}')
        assert client.hear("error")["code"] == "too_large"
        client.start()
        client.say({"type": "stop"})
        client.hear("ended")


def test_an_address_without_a_socket_takes_no_place(fleet: SmallFleet) -> None:
    with quiet_log(), pytest.raises(InvalidStatus) as refused, stranger(fleet, "/nothing"):
        pass
    assert refused.value.response.status_code == 404
    assert num_places(fleet) == 0


def test_a_replica_counts_clients_and_not_their_gateway(fleet: SmallFleet) -> None:
    """Limits are counted per client address: over REST, over the relayed WebSocket and in other protocols."""

    def by(source: str) -> httpx2.Client:
        return httpx2.Client(
            base_url=fleet.url, timeout=PATIENCE_S, transport=httpx2.HTTPTransport(local_address=source)
        )

    hub = fleet.servers["tiny-a"].hub
    with by("127.5.0.1") as one, by("127.5.0.2") as other:
        made = {
            each: each.post("/v1/sessions", json={"prompt": "sea", "fps": 4.0}).json()["session"]
            for each in (one, other)
        }
        assert [hub.live_sessions[made[each]].client for each in (one, other)] == ["127.5.0.1", "127.5.0.2"]
        previews = {each: f"/v1/sessions/{made[each]}/previews" for each in (one, other)}
        spent = [one.post(previews[one], json={}).status_code for _ in range(20)]
        assert 429 in spent, "its share is at an end"
        assert other.post(previews[other], json={}).status_code != 429
        headers = {"X-Forwarded-For": "127.5.0.9"}  # a client's own word is not taken
        forged = one.post("/v1/sessions", json={"prompt": "sea", "fps": 4.0}, headers=headers)
        made_up = hub.live_sessions[forged.json()["session"]].client
        with stranger(fleet, source_address=("127.5.0.3", 0)) as client:
            client.hear("hello")
            live = client.start()
            assert hub.live_sessions[live["session"]].client == "127.5.0.3"
            client.say({"type": "stop"})
            client.hear("ended")
        for session in (*made.values(), forged.json()["session"]):
            one.delete(f"/v1/sessions/{session}")
    assert made_up == "127.5.0.1"
    fleet.servers["tiny-a"].until_empty()


def test_over_webrtc_a_session_is_joined_where_it_is(fleet: SmallFleet) -> None:
    made = httpx2.post(f"{fleet.url}/v1/sessions", json={"prompt": "sea", "fps": 4.0}).json()
    for start, status in (
        ({"type": "attach", "session": made["session"]}, 400),  # found; its offer is none
        ({"type": "view", "view": made["view"]}, 400),
        ({"type": "attach", "session": "nobodys"}, 404),
        ({"type": "view", "view": "nobodys"}, 404),
    ):
        offer = {"sdp": "", "type": "offer", "start": {"version": 1, **start}}
        answer = httpx2.post(f"{fleet.url}/v1/webrtc/offer", json=offer, timeout=PATIENCE_S)
        assert answer.status_code == status, (start, answer.text)
    assert num_places(fleet) == 1, "no place was taken for those who join"
    httpx2.delete(f"{fleet.url}/v1/sessions/{made['session']}")
    fleet.servers["tiny-a"].until_empty()


def test_a_read_only_key_sees_figures_and_no_machines(tmp_path: Any) -> None:
    with small_fleet(tmp_path, ("tiny-a",), keys=KEYS) as fleet:
        studio, watcher = ({"Authorization": f"Bearer {key}"} for key in (STUDIO, WATCHER))
        made = httpx2.post(
            f"{fleet.url}/v1/sessions", json={"prompt": "sea", "fps": 4.0}, headers=studio
        ).json()
        all_of_it = httpx2.get(f"{fleet.url}/v1/fleet", headers=studio).json()
        assert all_of_it["replicas"][0]["pid"] > 0
        seen = httpx2.get(f"{fleet.url}/v1/fleet", headers=watcher)
        (replica,) = seen.json()["replicas"]
        assert set(replica) == {"id", "pool", "state", "promised", "misses", "chunk_ms", "num_sessions"}
        assert set(seen.json()) == {"replicas", "waiting", "metrics"}
        assert made["session"][:8] not in seen.text
        assert fleet.servers["tiny-a"].address not in seen.text
        for path in ("/v1/realtime/video", "/session/me"):
            with pytest.raises(InvalidStatus) as refused, stranger(fleet, path, additional_headers=watcher):
                pass
            assert refused.value.response.status_code == 403
        with stranger(fleet, additional_headers=watcher) as client:
            client.say(START)
            assert client.hear("error")["code"] == "read_only"
        assert num_places(fleet) == 1, "a key that opens nothing takes no place"


def test_a_key_that_a_replica_does_not_know_opens_nothing_there() -> None:
    member = Membership(
        secret=bytes(32), replica_id="a", pool="p", storage="s", keys={"known": Key(name="known")}
    )
    assert member.key("known").name == "known"
    assert member.key("").name == ""
    with pytest.raises(NotAllowed, match="does not know the key 'new'"):
        member.key("new")


def test_mutated_messages_and_requests_through_the_gateway_are_answered_without_a_traceback(
    tmp_path: Any,
) -> None:
    with small_fleet(tmp_path, ("tiny-a",), places=200) as fleet, quiet_log():
        target = Target.at(fleet.url.replace("http", "ws"))
        tally = asyncio.run(run_campaign(target, mutations=800, seed=7, limit_s=240))
        assert httpx2.get(f"{fleet.url}/readyz").status_code == 200
    assert set(tally.sent) == {"native", "sglang", "vllm-omni", "krea", "rest", "webrtc"}
    assert (tally.failures, tally.unanswered) == ([], [])
