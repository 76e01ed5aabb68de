"""Attacks that a server once did not stand, over real sockets: each must be answered, and nobody beside it
may notice."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.load.host import Host, is_ready
from millstream.server.access.auth import access_for
from millstream.server.app import AppConfig
from tests.server.attacked import STRANGER, Attacked, attacked_here, attacked_process, quiet_log, said
from tests.server.serve_process import server_process
from tests.soak.abuses.frames import CONTINUATION, PING, TEXT, RawSocket, Turned, frame
from tests.soak.abuses.http import Request, post
from tests.soak.abuses.scene import Scene, hear
from tests.soak.abuses.server import MODEL, SHORT, Log
from tests.soak.abuses.signalling import ENDINGS, bomb, offer

MIB = 2**20
ANSWER_S = 20.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with attacked_here(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture
def server(running: Attacked) -> Iterator[Attacked]:
    """After each attack it is still ready, and its log is quiet."""
    with quiet_log():
        yield running
    assert running.is_ready()


async def next_chunk(socket: RawSocket) -> None:
    """A picture. Raises where the session ends instead."""
    while (heard := await asyncio.wait_for(socket.hear(), ANSWER_S)) is not None:
        opcode, payload = heard
        if opcode != TEXT and b'"chunk"' in payload[:64]:
            return
        assert b'"ended"' not in payload[:64], payload
    raise AssertionError(f"closed with {socket.close_code}")


async def closed(socket: RawSocket) -> int | None:
    """The code it is closed with."""
    while await asyncio.wait_for(socket.hear(), ANSWER_S) is not None:
        pass
    return socket.close_code


async def see_a_picture(scene: Scene) -> None:
    socket, _ = await scene.session(size="64x64", fps=2.0, wait=True)
    with socket:
        await next_chunk(socket)
        socket.send(said(type="stop"))
        await hear(socket, "ended")


def test_three_ordinary_sessions_leave_the_engine_alive() -> None:
    """A large one, a small one, and one that waits for what hardly any device keeps. Then the second goes."""

    async def play(scene: Scene) -> None:
        large, _ = await scene.session(size="256x256", fps=1.0)
        with large:
            small, _ = await scene.session(fps=1.0, wait=True)
            with small, await scene.socket() as greedy:
                ask = {"type": "start", "version": 1, "prompt": "sea", "size": "16x16", "fps": 240.0}
                greedy.send(said(**ask, strict=True, wait=True))
                answer = await asyncio.wait_for(hear(greedy, "live", "waiting", "error"), ANSWER_S)
                assert answer["type"] == "live" or answer.get("reason") or answer.get("message"), (
                    "it is told why"
                )
                small.send(said(type="stop"))
                await asyncio.wait_for(hear(small, "ended"), ANSWER_S)
                await next_chunk(large)

    with attacked_process() as server:
        log = Log(server.host)
        server.run(play)
        assert server.is_ready()
        assert log.tracebacks() == {}
        server.run(see_a_picture, STRANGER)


def test_one_huge_slow_session_is_in_nobodys_way(tmp_path: Path) -> None:
    """It is refused, or cut where it must be: others see pictures and save meanwhile, and the server stops
    when told to."""

    async def beside(scene: Scene) -> None:
        try:
            huge, _ = await scene.session(size="1536x1536", fps=0.1, wait=True)
        except ConnectionRefusedError:
            huge = await scene.socket()
        with huge:
            mine, _ = await server.scene(STRANGER).session(fps=2.0, wait=True)
            with mine:
                await next_chunk(mine)
                mine.send(said(type="save"))
                assert (await asyncio.wait_for(hear(mine, "saved", "error"), ANSWER_S))["type"] == "saved"
            assert await is_ready(server.host.url)
            process.terminate()
            assert await asyncio.to_thread(process.wait, ANSWER_S) == 0

    with server_process(*MODEL, *SHORT, "--data", str(tmp_path)) as (process, url):
        server = Attacked(Host(url=url.replace("http", "ws", 1), pid=process.pid))
        server.run(beside)


@pytest.mark.parametrize("ending", ENDINGS, ids=[repr(each) for each in ENDINGS])
def test_an_offer_is_counted_however_its_lines_end(server: Attacked, ending: str) -> None:
    start = {"version": 1, "prompt": "sea", "size": "16x16", "fps": 1.0}
    body = {"sdp": bomb(60, 2, ending), "type": "offer", "start": start}
    before = server.load()
    for path, more in (("/v1/webrtc/offer", body), ("/api/v1/webrtc/offer", _scope(body))):
        assert server.ask(post(path, more)).status in (400, 413)
    assert server.load().descriptors <= before.descriptors + 8, "an offer that is refused takes no sockets"


def _scope(body: dict[str, object]) -> dict[str, object]:
    return {
        "sdp": body["sdp"],
        "type": "offer",
        "initialParameters": {"prompts": [{"text": "sea", "weight": 1.0}]},
    }


@pytest.mark.parametrize(
    "gone", ["m=application", "a=fingerprint", "a=mid:", "a=group", "a=ice-", "a=setup", "m=video"]
)
def test_an_offer_that_lacks_a_line_is_used_or_refused(server: Attacked, gone: str) -> None:
    sdp = "".join(line for line in offer().splitlines(keepends=True) if not line.startswith(gone))
    start = {"version": 1, "prompt": "sea", "size": "16x16", "fps": 1.0}
    answer = server.ask(post("/v1/webrtc/offer", {"sdp": sdp, "type": "offer", "start": start}))
    assert answer.status in (200, 400)
    if answer.status == 200:
        assert (
            server.ask(Request(method="DELETE", path=f"/v1/sessions/{answer.field('session')}")).status == 204
        )


def test_fragments_that_hold_nothing_end_their_connection(server: Attacked) -> None:
    async def flood(scene: Scene) -> int | None:
        with await scene.socket() as socket:
            socket.writer.write(frame(b"", TEXT, fin=False))
            try:
                for _ in range(100):
                    socket.writer.write(frame(b"", CONTINUATION, fin=False) * 2000)
                    await socket.drain()
            except ConnectionError:
                return 1006
            return await closed(socket)

    assert server.run(flood) in (1002, 1006, 1008, 1009)


def test_pings_that_nobody_reads_do_not_pile_up(server: Attacked) -> None:
    burst = frame(bytes(125), PING) * 1000

    async def flood(scene: Scene) -> None:
        sockets = [await scene.socket(small=True) for _ in range(4)]
        for socket in sockets:
            try:
                for _ in range(300):
                    socket.writer.write(burst)
                    await socket.drain(1.0)
            except ConnectionError:
                continue
        grown.append(server.load().resident_bytes - before)
        for socket in sockets:
            socket.vanish()

    grown: list[int] = []
    before = server.load().resident_bytes
    server.run(flood)
    assert grown[0] < 48 * MIB


@pytest.mark.parametrize("path", ["/v1/models", "/openapi.json", "/v1/nothing"])
def test_a_request_whose_body_is_none_is_answered_once(server: Attacked, path: str) -> None:
    async def send(scene: Scene) -> bytes:
        reader, writer = await scene.target.dial(scene.source)
        head = Request(path=path, headers=(("Transfer-Encoding", "chunked"),)).encode(scene.target.name)
        writer.write(head + b"zz\r\n")
        answers = await asyncio.wait_for(reader.read(), ANSWER_S)
        writer.close()
        return answers

    answers = server.run(send)
    assert answers.startswith(b"HTTP/1.1 400")
    assert answers.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "null", "http://evil.example", "\u00ff"])
def test_an_origin_that_is_none_is_turned_away(server: Attacked, origin: str) -> None:
    answer = server.ask(post("/v1/sessions", {"prompt": "sea"}, ("Origin", origin)))
    assert answer.status == 403

    async def knock(scene: Scene) -> int | None:
        try:
            await RawSocket.open(scene.target, "/v1/stream", f"Origin: {origin}")
        except Turned as turned:
            return turned.status
        return 101

    assert server.run(knock) == 403


@pytest.mark.parametrize("path", ["/v1/stream", "/v1/realtime/video"])
def test_text_that_is_no_text_closes_with_the_code_for_it(server: Attacked, path: str) -> None:
    async def mumble(scene: Scene) -> int | None:
        with await scene.socket(path) as socket:
            socket.writer.write(frame(b'{"type": "ping"\xff}', TEXT))
            return await closed(socket)

    assert server.run(mumble) == 1007


@pytest.mark.parametrize("fps", [0.0004, 1e-9, 5e-324, 1e308])
def test_no_rate_breaks_a_film(server: Attacked, fps: float) -> None:
    """It is refused, or it plays."""

    async def film(scene: Scene) -> None:
        try:
            socket, _ = await scene.session(fps=fps, formats=["mp4"])
        except ConnectionRefusedError:
            return
        with socket:
            await next_chunk(socket)
            socket.send(said(type="stop"))
            await hear(socket, "ended")

    server.run(film)


async def saved(scene: Scene, *controls: dict[str, object]) -> bytes:
    """A snapshot of a session that was steered so; nothing where a control was refused."""
    socket, _ = await scene.session(fps=8.0)
    with socket, scene.caller() as caller:
        for number, control in enumerate(controls):
            socket.send(said(type="control", control={"id": str(number), **control}))
            if (await hear(socket, "receipt", "error"))["type"] == "error":
                return b""
            await next_chunk(socket)
            await next_chunk(socket)
        socket.send(said(type="save"))
        name = (await hear(socket, "saved"))["snapshot"]
        answer = await caller.ask(Request(path=f"/v1/snapshots/{name}"))
        assert answer is not None
        assert answer.status == 200
        socket.send(said(type="stop"))
        await hear(socket, "ended")
        return answer.body


@pytest.mark.parametrize("depth", [500, 5000, 100_000])
def test_a_snapshot_with_a_nested_header_is_refused_in_a_line(server: Attacked, depth: int) -> None:
    for nested in (b'{"a":' * depth, b"[" * depth + b"]" * depth):
        answer = server.ask(post("/v1/snapshots", struct.pack("<Q", len(nested)) + nested))
        assert (answer.status, b"\n" in answer.body) == (400, False)


@pytest.mark.parametrize("mode", ["recompute", "blend"])
def test_a_mix_of_extreme_weights_is_refused_or_can_be_saved_and_restored(
    server: Attacked, mode: str
) -> None:
    weights = [
        {"text": "sea", "weight": 1e308},
        {"text": "sky", "weight": 1e308},
        {"text": "sand", "weight": 5e-324},
    ]
    mix: dict[str, object] = {"type": "prompt", "prompts": weights, "mode": mode, "chunks": 2}
    whole = server.run(lambda scene: saved(scene, mix, mix))
    if whole:
        name = server.ask(post("/v1/snapshots", whole)).field("name")
        opened = server.ask(Request(method="POST", path=f"/v1/snapshots/{name}/sessions"))
        assert opened.status == 201
        server.ask(Request(method="DELETE", path=f"/v1/sessions/{opened.field('session')}"))


def test_a_journal_is_fetched_whole_while_it_grows(server: Attacked) -> None:
    async def fetch(scene: Scene) -> None:
        with scene.caller() as caller, await scene.socket() as socket:
            session = await scene.open_by_rest(caller, fps=60.0, unattended="run")
            socket.send(said(type="attach", version=1, session=session))
            reading = asyncio.ensure_future(scene.read_on(socket))
            answers = []
            for _ in range(80):
                answers.append(await caller.ask(Request(path=f"/v1/sessions/{session}/journal")))
                await asyncio.sleep(0.02)
            await scene.end_by_rest(caller, session)
            await reading
        assert None not in answers, "one was cut off"
        assert {answer.status for answer in answers if answer is not None} <= {200, 404}

    server.run(fetch)


def test_an_owner_comes_back_past_any_number_of_viewers(server: Attacked) -> None:
    async def crowd(scene: Scene) -> str:
        owner, live = await scene.session(fps=1.0)
        owner.vanish()
        viewers = []
        for number in range(70):
            source = f"127.7.{number}.7"  # people of their own, not one client with many connections
            viewers.append(await RawSocket.open(scene.target, source=source))
            viewers[-1].send(said(type="view", version=1, view=live["view"], formats=["jpeg"]))
        await hear(viewers[-1], "live", "error")
        back = await scene.socket()
        back.send(said(type="attach", version=1, session=live["session"]))
        heard = await hear(back, "live", "error")
        back.send(said(type="stop"))
        for socket in (*viewers, back):
            await asyncio.sleep(0.01)
            socket.vanish()
        return str(heard)

    assert "'live'" in server.run(crowd)


def test_one_client_does_not_fill_the_server(server: Attacked) -> None:
    """However many sessions it may have, there is a place for somebody else."""

    async def fill(scene: Scene) -> None:
        opened = []
        with scene.caller() as caller:
            try:
                while True:
                    opened.append(await scene.open_by_rest(caller, fps=0.1, unattended="pause"))
            except ConnectionRefusedError:
                await see_a_picture(server.scene(STRANGER))
            finally:
                for session in opened:
                    await scene.end_by_rest(caller, session)

    server.run(fill)


def test_a_flood_of_saves_costs_a_stranger_no_snapshot(server: Attacked) -> None:
    async def keep(scene: Scene) -> str:
        socket, _ = await scene.session()
        with socket:
            socket.send(said(type="save"))
            name = str((await hear(socket, "saved"))["snapshot"])
            socket.send(said(type="stop"))
            await hear(socket, "ended")
        return name

    async def flood(scene: Scene) -> None:
        socket, _ = await scene.session()
        with socket:
            for _ in range(250):
                socket.send(said(type="save"))
                await asyncio.sleep(0.022)
            socket.send(said(type="stop"))
            await hear(socket, "ended")

    mine = server.run(keep, STRANGER)
    server.run(flood)
    assert server.ask(Request(path=f"/v1/snapshots/{mine}"), STRANGER).status == 200


def test_requests_sent_ahead_are_not_read_once_they_are_too_many(server: Attacked) -> None:
    async def send(scene: Scene) -> bytes:
        reader, writer = await scene.target.dial(scene.source)
        writer.write(Request(path="/openapi.json").encode(scene.target.name) * 1000)
        answers = await asyncio.wait_for(reader.read(), 2 * ANSWER_S)
        writer.close()
        return answers

    answers = server.run(send)
    assert answers.count(b"HTTP/1.1 200") >= 200
    assert answers.count(b"HTTP/1.1 429") == 1


def test_wrong_keys_are_throttled_and_keep_nobody_out(tmp_path: Path) -> None:
    key = "a-key-for-tests"

    async def guess(scene: Scene) -> set[int]:
        seen = set()
        with scene.caller() as caller:
            for number in range(100):
                headers = (("Authorization", f"Bearer wrong-{number}"),)
                answer = await caller.ask(Request(path="/v1/models", headers=headers))
                seen.add(0 if answer is None else answer.status)
        return seen

    access = access_for("127.0.0.1", api_key=key, insecure=False, origins=[])
    with attacked_here(tmp_path, AppConfig(access=access)) as server, quiet_log():
        assert server.run(guess) >= {401, 429}
        answer = server.ask(
            Request(path="/v1/models", headers=(("Authorization", f"Bearer {key}"),)), STRANGER
        )
        assert answer.status == 200


def test_the_page_says_who_may_frame_it_and_what_it_may_load(server: Attacked) -> None:
    async def look(scene: Scene) -> bytes:
        reader, writer = await scene.target.dial()
        writer.write(Request(path="/").encode(scene.target.name))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), ANSWER_S)
        writer.close()
        return head.lower()

    head = server.run(look)
    assert b"content-security-policy:" in head
    assert b"frame-ancestors" in head or b"x-frame-options" in head
