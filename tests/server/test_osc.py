"""OSC: packets as the specification has them, addresses as the controls have them, and floods."""

from __future__ import annotations

import logging
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.client_messages import ProtocolError
from millstream.core.controls import (
    AnyControl,
    Cut,
    Receipt,
    SetNoiseScale,
    SetPrompt,
    SetSeed,
    SetSteps,
    SetWindow,
)
from millstream.core.errors import ConfigError
from millstream.core.keys import Key
from millstream.server.access.auth import access_for
from millstream.server.access.keys import Keyring
from millstream.server.app import AppConfig
from millstream.server.protocol.osc import KINDS, OscListener, OscPort, _Owed, bind_osc, control_of
from millstream.server.transport import osc
from tests.server.serving import PATIENCE_S, Client, Serving, serving

FREQUENCY = bytes.fromhex("2f6f7363696c6c61746f722f342f6672657175656e6379002c66000043dc0000")
"""The specification's first example: /oscillator/4/frequency 440.0"""
FOO = bytes.fromhex("2f666f6f000000002c69697366660000000003e8ffffffff68656c6c6f0000003f9df3b640b5b22d")
"""Its second one: /foo 1000 -1 "hello" 1.234 5.678"""


def read(packet: bytes) -> list[tuple[str, list[osc.Argument]]]:
    return [(address, osc.arguments(data)) for address, data in osc.messages(packet)]


def bundle(*parts: bytes) -> bytes:
    return b"#bundle\0" + bytes(7) + b"\1" + b"".join(struct.pack(">i", len(part)) + part for part in parts)


def deepest() -> bytes:
    """A packet that is all nesting."""
    packet = osc.message("/a", 1)
    while len(packet) < 60_000:
        packet = bundle(packet)
    return packet


def test_the_examples_of_the_specification_are_read_and_written() -> None:
    assert read(FREQUENCY) == [("/oscillator/4/frequency", [440.0])]
    assert osc.message("/oscillator/4/frequency", 440.0) == FREQUENCY
    ((address, values),) = read(FOO)
    assert (address, values) == ("/foo", [1000, -1, "hello", pytest.approx(1.234), pytest.approx(5.678)])
    assert osc.message("/foo", 1000, -1, "hello", 1.234, 5.678) == FOO


text = st.text(st.characters(min_codepoint=1, max_codepoint=0x2FF), max_size=9)
values = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(width=32, allow_nan=False), text)


@given(st.lists(values, max_size=8))
def test_what_is_written_is_read(sent: list[int | float | str]) -> None:
    packet = osc.message("/a", *sent)
    assert len(packet) % 4 == 0
    assert read(packet) == [("/a", sent)]


@given(st.lists(values, max_size=4))
def test_another_implementation_reads_and_writes_the_same(sent: list[int | float | str]) -> None:
    theirs = pytest.importorskip(
        "pythonosc.osc_message_builder", reason="parity needs python-osc: pip install python-osc"
    )
    from pythonosc.osc_packet import OscPacket

    builder = theirs.OscMessageBuilder("/a")
    for value in sent:
        builder.add_arg(value, "h" if isinstance(value, int) else None)
    assert read(builder.build().dgram) == [("/a", sent)]
    ((found,),) = [OscPacket(osc.message("/a", *sent)).messages]
    assert (found.message.address, found.message.params) == ("/a", sent)


def test_bundles_in_bundles_are_read_in_order() -> None:
    packet = bundle(
        osc.message("/a", 1), bundle(osc.message("/b"), osc.message("/c", "x")), osc.message("/a", 2)
    )
    assert read(packet) == [("/a", [1]), ("/b", []), ("/c", ["x"]), ("/a", [2])]
    deep = osc.message("/a", 1)
    for _ in range(250):
        deep = bundle(deep)
    assert read(deep) == [("/a", [1])]


@given(st.binary(max_size=64), st.integers(0, 40))
def test_whatever_comes_is_read_or_refused_in_words(noise: bytes, cut: int) -> None:
    for packet in (
        noise,
        FOO[:cut] + noise,
        bundle(FOO, FREQUENCY)[: cut + 16] + noise,
        b"/millstream/prompt\0\0" + noise,
    ):
        with suppress(ProtocolError):
            for address, given in read(packet):
                control_of(address.rpartition("/")[2], given)


@pytest.mark.parametrize(
    ("packet", "words"),
    [
        (b"", "begins with /"),
        (FREQUENCY[:-1], "ends before"),
        (osc.message("/a")[:-4] + b"f\0\0\0", "needs its types"),
        (b"/a\0\0,b\0\0" + bytes(4), "'b' is none of them"),
        (b"/a\0\0,s\0\0\xff\xfe\0\0", "not UTF-8"),
        (b"/\xff\0\0", "plain letters"),
        (bundle(b""), "empty or cut short"),
        (bundle(*[b"/a\0\0"] * 256), "255 messages and bundles"),
        (deepest(), "255 messages and bundles"),
    ],
)
def test_what_is_no_osc_is_refused_in_one_line(packet: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        read(packet)


@pytest.mark.parametrize(
    ("name", "given", "control"),
    [
        ("prompt", ["a storm"], SetPrompt(prompt="a storm")),
        ("prompt", ["a storm", "blend", 8.0], SetPrompt(prompt="a storm", mode="blend", chunks=8)),
        ("noise_scale", [0.5], SetNoiseScale(noise_scale=0.5)),
        ("steps", [1000, 750.0, 500], SetSteps(steps=(1000.0, 750.0, 500.0))),
        ("seed", [6.7], SetSeed(seed=7)),
        ("window", [6, 3], SetWindow(window=6, sink=3)),
        ("cut", [], Cut()),
        ("cut", [1.0], Cut()),
        ("pause", [0.0], None),
        ("control", ['{"type": "prompt", "prompts": [{"text": "a"}]}'], SetPrompt(prompts=({"text": "a"},))),  # type: ignore[arg-type]
    ],
)
def test_an_address_is_a_control_and_its_arguments_are_the_fields(
    name: str, given: list[Any], control: AnyControl
) -> None:
    expected = control and msgspec.convert(msgspec.to_builtins(control), AnyControl)
    assert control_of(name, given) == expected


def test_every_control_has_an_address_and_the_page_has_them_all() -> None:
    assert set(KINDS.values()) == set(get_args(AnyControl))
    page = (Path(__file__).parents[2] / "docs" / "inputs.md").read_text()
    assert [name for name in KINDS if f"/{name}" not in page] == []


@pytest.mark.parametrize(
    ("name", "given"),
    [("seed", [float("nan")]), ("seed", ["seven"]), ("prompt", [1]), ("window", [3, 0, 1]), ("cut", [1, 1]), ("nothing", []),
     ("control", ["[" * 5000]), ("noise_scale", [True]), ("steps", ["a"])],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_refused(name: str, given: list[Any]) -> None:
    with pytest.raises(ProtocolError):
        control_of(name, given)


@pytest.mark.parametrize(
    ("place", "words"), [("x", "takes a UDP port"), ("99999", "takes a UDP port"), ("192.0.2.1:0", "another")]
)
def test_a_place_that_cannot_be_listened_at_is_refused(place: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"--osc.*{words}"):
        bind_osc(place, insecure=False)


def test_only_on_this_machine_or_if_told_so_is_the_newest_session_meant() -> None:
    for place, insecure, is_open in (
        ("0", False, True),
        ("[::1]:0", False, True),
        ("0.0.0.0:0", False, False),
        ("0.0.0.0:0", True, True),
    ):
        port = bind_osc(place, insecure=insecure)
        assert port.is_open is is_open
        port.socket.close()


class FaderClient:
    """Somebody who sends OSC and hears what is answered."""

    def __init__(self, port: OscPort) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(("127.0.0.1", port.socket.getsockname()[1]))
        self.socket.settimeout(PATIENCE_S)

    def say(self, address: str, *given: int | float | str) -> None:
        self.socket.send(osc.message(address, *given))

    def hear(self) -> tuple[str, list[osc.Argument]]:
        ((address, told),) = read(self.socket.recv(4096))
        return address, told


@contextmanager
def with_desk(*, is_open: bool = True, **options: Any) -> Iterator[tuple[Serving, FaderClient]]:
    port = bind_osc("127.0.0.1:0", insecure=False)
    with serving(config=AppConfig(osc=port._replace(is_open=is_open), **options)) as server:
        desk = FaderClient(port)
        yield server, desk
        desk.socket.close()


@pytest.fixture(scope="module")
def scene() -> Iterator[tuple[Serving, FaderClient]]:
    with with_desk() as scene:
        yield scene


def stop(server: Serving, *clients: Client) -> None:
    for client in clients:
        client.say({"type": "stop"})
    server.until_empty()


def test_a_desk_steers_the_newest_session_or_one_by_its_id_and_hears_both_receipts(
    scene: tuple[Serving, FaderClient],
) -> None:
    server, desk = scene
    with server.client() as first, server.client() as second:
        one = first.start()["session"]
        second.start()
        desk.say("/millstream/prompt", "a storm", "cut")
        told = [desk.hear(), desk.hear()]
        assert [(address, given[:2]) for address, given in told] == [
            ("/millstream/receipt", ["/millstream/prompt", "queued"]),
            ("/millstream/receipt", ["/millstream/prompt", "applied"]),
        ]
        chunk = second.hear("chunk", index=told[1][1][2])
        assert [prompt["text"] for prompt in chunk["prompts"]] == ["a storm"]
        assert first.hear("chunk", index=1)["prompts"][0]["text"] == "sea"
        desk.say(f"/millstream/{one}/seed", 7)
        assert first.hear("receipt", state="applied")["control_id"].startswith("osc-seed-")
        assert [desk.hear()[1][1], desk.hear()[1][1]] == ["queued", "applied"]
        stop(server, first, second)


def test_a_control_that_comes_while_the_last_one_is_being_made_hears_of_its_own_chunk() -> None:
    class Session:
        ended = False
        latest = Receipt(control_id="a", state="queued", chunk_index=1)

        def find(self, control_id: str) -> Receipt:
            return self.latest

        @property
        def receipts(self) -> Session:
            return self

    session = Session()
    port = bind_osc("127.0.0.1:0", insecure=False)
    desk = FaderClient(port)
    listener = OscListener(port, hub=None)  # type: ignore[arg-type]
    about = ("/millstream/prompt", SetPrompt)
    listener._owed[about] = _Owed(session, session.latest, desk.socket.getsockname())  # type: ignore[arg-type]
    for state, chunk_index in (
        ("queued", 1),
        ("applied", 0),
        ("applied", 1),
    ):  # the second is of the one before
        session.latest = Receipt(control_id="a", state=state, chunk_index=chunk_index)  # type: ignore[arg-type]
        assert list(listener._owed) == [about]
        listener._tell_applied()
    assert listener._owed == {}
    assert desk.hear() == ("/millstream/receipt", ["/millstream/prompt", "applied", 1])
    desk.socket.close()
    port.socket.close()


def test_what_cannot_be_is_answered_and_harms_nobody(scene: tuple[Serving, FaderClient]) -> None:
    server, desk = scene
    desk.say("/millstream/cut")
    assert desk.hear() == (
        "/millstream/error",
        ["/millstream/cut", "no session is there to steer; start one"],
    )
    with server.client() as client:
        client.start()
        wrong = (
            ("/millstream/nobody/cut",), ("/other/cut",), ("/millstream/noise_scale", 0.5), ("/a/b/c/d",), ("/",), ("/cut",),
            ("/millstream",), ("/millstream/",), ("//cut",), ("/millstream//cut",), ("/millstream/cut/",),
        )  # fmt: skip
        for address, *given in wrong:
            desk.say(address, *given)
            assert desk.hear()[0] == "/millstream/error"
        desk.socket.send(b"\0" * 32)
        assert desk.hear()[0] == "/millstream/error"
        client.hear("chunk", index=2)
        stop(server, client)


def test_of_a_flood_the_last_value_counts_once_a_chunk_and_the_log_has_one_line(
    scene: tuple[Serving, FaderClient], caplog: pytest.LogCaptureFixture
) -> None:
    server, desk = scene
    with server.client() as other, server.client() as owner, caplog.at_level(logging.WARNING):
        other.start()
        session = owner.start()["session"]
        until = time.monotonic() + 0.7
        sent = 0
        while time.monotonic() < until:
            for _ in range(100):
                sent += 1
                desk.say("/millstream/seed", sent)
                desk.say("/millstream/nothing", sent)
        time.sleep(0.2)  # what the kernel still holds is read
        desk.say("/millstream/seed", 2**24)
        timeline = server.hub.service.table.find(session).session.timeline  # type: ignore[union-attr]
        server.until(lambda: timeline.seed == 2**24, "the last value counts")
        assert sent > 1000
        live_session = server.hub.live_sessions.find(session)
        assert len(live_session.receipts.all()) <= timeline.chunk_index + 1, "one of an address a chunk"
        assert len([record for record in caplog.records if "OSC" in record.message]) <= 1
        other.hear("chunk", index=other.hear("chunk")["index"] + 2)
        owner.say({"type": "control", "control": {"type": "cut", "id": "mine"}})
        owner.hear("receipt", control_id="mine", state="applied")
        stop(server, other, owner)


def test_from_elsewhere_a_session_is_steered_by_its_id_alone_and_one_of_a_named_key_not_at_all() -> None:
    keyring = Keyring()
    keyring.add("a-secret-key", Key(name="a"))
    access = access_for("127.0.0.1", api_key=None, insecure=False, origins=(), keyring=keyring)
    with (
        with_desk(is_open=False, access=access) as (server, desk),
        server.client(additional_headers={"Authorization": "Bearer a-secret-key"}) as client,
    ):
        session = client.start()["session"]
        desk.say("/millstream/cut")
        assert "name the session" in str(desk.hear()[1][1])
        desk.say(f"/millstream/{session}/cut")
        assert "no such session" in str(desk.hear()[1][1])
