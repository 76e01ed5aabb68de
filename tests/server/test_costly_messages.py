"""Bodies and messages that are small to send and dear to read: counted first, refused in a line, and nobody
else waits."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.client_messages import ProtocolError
from millstream.core.keys import Key
from millstream.server.access.auth import Access
from millstream.server.access.budgets import ClientAccount, ClientRates
from millstream.server.access.keys import Keyring
from millstream.server.access.limits import ClientLimits, TokenBucket
from millstream.server.access.reading import SMALL_BYTES, PaidReader
from millstream.server.access.shapes import check_json, check_msgpack
from millstream.server.app import AppConfig, create_app
from millstream.server.protocol.endpoints import Endpoint
from millstream.server.sessions.hub import SessionHub
from tests.server.dialect_clients import GENEROUS as GENEROUS_LIMITS
from tests.server.dialect_clients import Client, is_error, with_hub
from tests.server.fakes import FakeService, fake_hub
from tests.server.test_conversation import Client as NativeClient
from tests.server.test_wrong_messages import JSON
from tests.soak.abuses.costly import END, FORM, FORMS, PACKS, TEXTS, part

LONGEST_GAP_S = 1.0
"""Between two turns of the event loop while something is read; unmended it was seconds to minutes."""
FORM_BYTES = 600_000
PACK_BYTES = 2_800_000
GENEROUS = (1e9, 1e9)
WATCHER = "the-key-of-the-watcher"
OWNER = "the-key-of-the-owner"


@contextmanager
def ticking() -> Iterator[list[float]]:
    """Lengths of the event loop's turns while this is open."""
    loop = asyncio.get_running_loop()
    gaps: list[float] = []

    async def tick() -> None:
        while True:
            begun = loop.time()
            await asyncio.sleep(0.001)
            gaps.append(loop.time() - begun)

    task = loop.create_task(tick())
    try:
        yield gaps
    finally:
        task.cancel()


async def undisturbed(does: Awaitable[Any]) -> Any:
    """Return the awaited result; fail if the event loop stood still for `LONGEST_GAP_S` or longer."""
    with ticking() as gaps:
        await asyncio.sleep(0.01)
        found = await does
        await asyncio.sleep(0.01)
    assert max(gaps) < LONGEST_GAP_S, f"the event loop stood still for {max(gaps):.2f} s"
    return found


# What is counted


def num_values(value: Any) -> int:
    """Values and names of fields."""
    if isinstance(value, dict):
        return 1 + sum(1 + num_values(each) for each in value.values())
    return 1 + sum(map(num_values, value)) if isinstance(value, list) else 1


def num_empty(value: Any) -> int:
    """Lists and maps without anything: JSON's count takes each for one value more."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else int(not inner) + sum(map(num_empty, inner))


def depth(value: Any) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def refuses(check: Callable[..., None], data: bytes, **most: int) -> bool:
    try:
        check(data, **{"max_values": 10**6, "max_depth": 10**6, **most})
    except ProtocolError as error:
        return error.code == "too_large"
    return False


@given(JSON)
def test_the_values_and_the_depth_of_json_are_counted_before_it_is_read(value: Any) -> None:
    data = json.dumps(value).encode()
    count = num_values(value) + num_empty(value)
    assert not refuses(check_json, data, max_values=count)
    assert count == 1 or refuses(check_json, data, max_values=count - 1)
    # only where there may be more than are allowed are brackets gone through
    assert not refuses(check_json, data, max_depth=depth(value))
    assert depth(value) == 0 or refuses(check_json, data, max_depth=depth(value) - 1)


@given(JSON)
def test_the_values_and_the_depth_of_messagepack_are_counted_before_it_is_read(value: Any) -> None:
    try:
        data = msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeError):  # MessagePack has no such number or text
        return
    assert not refuses(check_msgpack, data, max_values=num_values(value))
    assert num_values(value) == 1 or refuses(check_msgpack, data, max_values=num_values(value) - 1)
    filled = max(0, depth(value))
    assert not refuses(check_msgpack, data, max_depth=filled)


@given(st.binary(max_size=200))
def test_whatever_is_no_message_is_counted_without_a_failure(data: bytes) -> None:
    for check in (check_json, check_msgpack):
        refuses(check, data, max_values=5, max_depth=2)


def test_texts_count_once_whatever_is_in_them() -> None:
    for text in (',[{"', "\\", '\\"', "\\\\", '",', "[[[[", '\\\\\\"{'):
        assert not refuses(check_json, json.dumps({"prompt": text * 100}).encode(), max_values=3, max_depth=1)


@pytest.mark.parametrize(
    "size", [msgspec.msgpack.encode({"a": bytes(300), "b": "x" * 70_000, "c": 1.5, "d": -(2**40)})]
)
def test_the_bytes_of_texts_and_binaries_are_stepped_over(size: bytes) -> None:
    assert not refuses(check_msgpack, size, max_values=9, max_depth=1)
    assert refuses(check_msgpack, size, max_values=8)


def test_each_kind_of_messagepack_is_as_long_as_its_reader_says() -> None:
    """Check a value of each kind with a list after it: a wrong length would give a wrong count."""
    lengths = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4}
    for first in range(256):
        if first == 0xC1 or 0x80 <= first < 0xA0 or first in (0xDC, 0xDD, 0xDE, 0xDF):
            continue
        head = bytes([first])
        if first in lengths:
            head += (3).to_bytes(lengths[first], "big") + (b"\5" if first in (0xC7, 0xC8, 0xC9) else b"")
        for more in range(40):
            data = b"\x92" + head + b"a" * more + b"\x91\1"
            try:
                count = num_values(msgspec.msgpack.decode(data))
            except ValueError:
                continue
            assert not refuses(check_msgpack, data, max_values=count), hex(first)
            assert refuses(check_msgpack, data, max_values=count - 1), hex(first)
            break
        else:
            raise AssertionError(f"{first:#x} was never right")


# Who pays


def test_a_debt_is_paid_before_anything_passes() -> None:
    now = 0.0
    bucket = TokenBucket(0.1, 1.0, clock=lambda: now)
    bucket.owe(3.0)
    assert bucket.left == pytest.approx(-2.0)
    now = 19.0
    assert bucket.left < 0
    now = 21.0
    assert bucket.left > 0


@pytest.mark.parametrize("num_bytes", [10, SMALL_BYTES + 1])
def test_a_client_whose_messages_cost_much_is_refused_and_others_are_not(num_bytes: int) -> None:
    """Also where it leaves before they are read."""

    async def play() -> None:
        reader = PaidReader()
        greedy = ClientAccount(rates=ClientRates(reading=(0.001, 0.02)))
        other = ClientAccount()
        spin = lambda: sum(range(2_000_000))  # noqa: E731
        reading = asyncio.ensure_future(reader.read(greedy, num_bytes, spin))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait({reading})
        while greedy.reading.left > 0:
            await asyncio.sleep(0.01)
        with pytest.raises(ProtocolError) as refused:
            await reader.read(greedy, 10, lambda: 1)
        assert refused.value.code == "too_fast"
        assert await reader.read(other, num_bytes, lambda: 1) == 1
        reader.close()

    asyncio.run(asyncio.wait_for(play(), 60))


def test_what_waits_for_its_turn_is_not_read_once_the_client_owes_for_what_came_before() -> None:
    async def play() -> None:
        reader = PaidReader()
        client = ClientAccount(rates=ClientRates(reading=(0.001, 0.001)))
        read = list[int]()

        def parse() -> None:
            read.append(sum(range(2_000_000)))

        waiting = [reader.read(client, SMALL_BYTES + 1, parse) for _ in range(20)]
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert len(read) == 1
        assert sum(isinstance(each, ProtocolError) for each in found) == 19
        reader.close()

    asyncio.run(asyncio.wait_for(play(), 60))


# Messages


@pytest.mark.parametrize("dialect", ["sglang", "krea"])
@pytest.mark.parametrize("shape", sorted(PACKS))
def test_messagepack_of_any_shape_is_refused_and_the_event_loop_goes_on(dialect: str, shape: str) -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client(dialect, hub)
        await client.open()
        (answer,) = [
            said for said in await undisturbed(client.say(PACKS[shape](PACK_BYTES))) if is_error(said)
        ]
        short = shape in ("long_binary", "long_extension", "no_such_type")
        assert answer["code"] == ("bad_message" if short else "too_large"), "counted before it was read"
        other = Client(dialect, hub)
        await other.open()
        assert hub.live_sessions
        client.handler.on_disconnect()
        other.handler.on_disconnect()

    with_hub(play)


@pytest.mark.parametrize("shape", sorted(TEXTS))
def test_json_of_any_shape_is_refused_and_the_event_loop_goes_on(shape: str) -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        start = Client("vllm_omni", hub)  # the only one whose first message may hold a picture
        said = await undisturbed(start.say(TEXTS[shape](4_000_000).decode()))
        (answer,) = [each for each in said if is_error(each)]
        short = shape in ("digits", "decimals")
        assert answer["code"] == ("bad_message" if short else "too_large"), "counted before it was read"
        for dialect in ("scope", "vllm_omni"):
            client = Client(dialect, hub)
            await client.open()
            client.handler.on_disconnect()
        scope = Client("scope", hub)
        await scope.open()
        native = NativeClient(hub)
        text = TEXTS[shape](120_000).decode()
        assert any(is_error(each) or each["type"] == "note" for each in await undisturbed(scope.say(text)))
        assert await undisturbed(native.error(text)) in ("too_large", "bad_message")
        scope.handler.on_disconnect()
        start.handler.on_disconnect()

    with_hub(play)


def test_a_picture_as_text_is_read_beside_the_event_loop() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client("krea", hub)
        await client.say({"prompt": "sea", "webcam_mode": True})
        said = await undisturbed(client.say({"image": "A" * 4_000_000}))
        assert [each["code"] for each in said if is_error(each)] == ["bad_message"], "it is no picture"

    with_hub(play)


def test_the_number_of_values_is_told_with_the_other_limits() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        (hello,) = await NativeClient(hub).heard()
        assert (hello["limits"]["max_values"], hello["limits"]["max_depth"]) == (4096, 32)

    with_hub(play)


# Bodies


class App:
    """The real application without sockets: what it is sent comes in pieces, and it is counted how many it
    asked for."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.num_read = 0

    async def ask(
        self, path: str, content_type: str, body: bytes, *, key: str = OWNER, method: str = "POST"
    ) -> tuple[int, dict[str, Any]]:
        pieces = [body[at : at + 2**16] for at in range(0, len(body), 2**16)] or [b""]
        self.num_read = 0
        said: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if self.num_read == len(pieces):
                return {"type": "http.disconnect"}
            self.num_read += 1
            more = self.num_read < len(pieces)
            return {"type": "http.request", "body": pieces[self.num_read - 1], "more_body": more}

        async def send(message: dict[str, Any]) -> None:
            said.append(message)

        headers = [
            (b"host", b"127.0.0.1"),
            (b"content-type", content_type.encode()),
            (b"authorization", b"Bearer " + key.encode()),
        ]
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": headers, "query_string": b"",
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "scheme": "http", "root_path": "", "http_version": "1.1",
            "app": self._app,
        }  # fmt: skip
        await self._app(scope, receive, send)
        text = b"".join(each.get("body", b"") for each in said)
        return said[0]["status"], json.loads(text) if text else {}

    @property
    def endpoints(self) -> list[Endpoint]:
        made = [
            getattr(getattr(route, "endpoint", None), "__self__", None) for route in self._app.router.routes
        ]
        return [each for each in made if isinstance(each, Endpoint)]


def with_app(play: Callable[[App], Awaitable[None]], rates: ClientRates | None = None) -> None:
    ring = Keyring()
    ring.add(WATCHER, Key(name="watcher", read_only=True))
    ring.add(OWNER, Key(name="owner"))
    rates = rates or ClientRates(requests=GENEROUS, offers=GENEROUS, reading=GENEROUS, uploads=GENEROUS)

    async def main() -> None:
        app = create_app(lambda: fake_hub(FakeService()), AppConfig(access=Access(keyring=ring), rates=rates))
        async with app.router.lifespan_context(app):
            await play(App(app))

    asyncio.run(asyncio.wait_for(main(), 120))


def one_line(answer: dict[str, Any]) -> str:
    message = str(answer["error"]["message"])
    assert message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("shape", sorted(FORMS))
def test_a_form_of_any_shape_is_answered_and_the_event_loop_goes_on(shape: str) -> None:
    content_type, body = FORMS[shape](FORM_BYTES)

    async def play(app: App) -> None:
        status, answer = await undisturbed(app.ask("/v1/videos", content_type, body))
        assert status in (400, 413) or "no recordings" in one_line(answer), "nothing is kept here"
        assert one_line(answer)
        assert (await app.ask("/v1/videos", content_type, body, key=WATCHER))[0] == 403
        assert app.num_read == 0, "rights come before reading"

    with_app(play)


@pytest.mark.parametrize("shape", sorted(TEXTS))
def test_a_json_body_of_any_shape_is_answered_and_the_event_loop_goes_on(shape: str) -> None:
    async def play(app: App) -> None:
        for path, size in (
            ("/v1/videos", 4_000_000),
            ("/v1/sessions", 120_000),
            ("/api/v1/pipeline/load", 120_000),
        ):
            status, answer = await undisturbed(app.ask(path, "application/json", TEXTS[shape](size)))
            assert status in (400, 404, 413), answer

    with_app(play)


def test_who_only_watches_is_refused_before_any_of_a_body_is_read() -> None:
    """On every address that takes one, but for offers: a view link can be watched over WebRTC."""

    async def play(app: App) -> None:
        taking = [each for each in app.endpoints if each.body is not None]
        assert len(taking) > 12
        for endpoint in taking:
            if endpoint.for_viewers:
                continue
            path = endpoint.path.replace("{", "").replace("}", "")
            status, _ = await app.ask(path, "application/json", b"{}", key=WATCHER, method=endpoint.method)
            assert (status, app.num_read) == (403, 0), f"{endpoint.method} {path}"
        assert [each.path for each in taking if each.for_viewers] == ["/v1/webrtc/offer"]

    with_app(play)


def test_a_session_that_is_not_theirs_is_refused_before_any_of_a_body_is_read() -> None:
    async def play(app: App) -> None:
        for endpoint in app.endpoints:
            if endpoint.body is not None and "{session}" in endpoint.path:
                path = endpoint.path.replace("{session}", "A" * 22)
                status, _ = await app.ask(path, "application/json", b"{}", method=endpoint.method)
                assert (status, app.num_read) == (404, 0), path

    with_app(play)


def test_reading_a_form_is_paid_for_piece_by_piece() -> None:
    """A client that owes is refused in the middle of a body; nothing behind it is read."""

    async def play(app: App) -> None:
        content_type, body = FORMS["lines_in_a_part"](4_000_000)
        status, answer = await app.ask("/v1/videos", content_type, body)
        assert (status, answer["error"]["code"]) == (429, "too_fast")
        assert app.num_read < math.ceil(len(body) / 2**16)

    with_app(play, ClientRates(reading=(1e-9, 1e-6)))


def test_a_form_in_parts_is_read_as_its_clients_send_it() -> None:
    file = b"--x8x--\r\n\r\n--x8\x00\xff"

    async def play(app: App) -> None:
        body = part("mär".encode()) + part(b"1", "seconds") + part(b"", "size") + part(b"", "unknown") + END
        status, answer = await app.ask("/v1/videos", FORM, body + b"and more")
        assert (status, "no recordings" in one_line(answer)) == (404, True), (
            "it was read; nothing is kept here"
        )
        picture = part(file[9:], 'input_reference"; filename="a.png', b"Content-Type: image/png")
        status, answer = await app.ask("/v1/videos", FORM, part() + picture + END)
        assert (status, "no recordings" in one_line(answer)) == (404, True), "its picture too"

    with_app(play)


@pytest.mark.parametrize("at", range(1, 40))
def test_a_form_is_the_same_wherever_it_is_cut_into_pieces(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.server.protocol.forms.SLICE_BYTES", at)

    async def play(app: App) -> None:
        status, answer = await app.ask(
            "/v1/videos", FORM, part(b"sea\r\n--x8") + part(b"wrong", "size") + END
        )
        assert (status, "WIDTHxHEIGHT, for example 832x480, got 'wrong'" in one_line(answer)) == (
            400,
            True,
        ), answer

    with_app(play)


def test_limits_of_one_conversation_are_those_that_it_was_given() -> None:
    limits = ClientLimits(max_values=20, max_depth=4)
    assert GENEROUS_LIMITS.max_values == ClientLimits().max_values
    assert refuses(lambda data, **_: limits.check_json(data), b"[" + b"1," * 30 + b"1]")
    assert refuses(lambda data, **_: limits.check_msgpack(data), b"\x91" * 6)
