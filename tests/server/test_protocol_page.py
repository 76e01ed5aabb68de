"""docs/protocol.md says what is so: every message in it is played against a server, and none is missing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from PIL import Image

from millstream.core.client_messages import AnyClientMessage, Code
from millstream.core.controls import AnyControl
from millstream.core.server_messages import Header, Told
from millstream.server.protocol.endpoints import STATUS
from millstream.server.protocol.messages import decode
from millstream.server.sessions.outputs.destinations import Destination
from millstream.serving.notices import Ended
from tests.server.clients.facts import DOCS, written
from tests.server.serving import Client, serving

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
SECTION = PAGE.partition("## Every message once")[2].partition("\n## ")[0]
BLOCKS = [block.strip().splitlines() for block in re.findall(r"```\n(.*?)```", SECTION, re.S)]
ALONE = [json.loads(text) for text in re.findall(r"`(\{.*?\})`", SECTION.rpartition("```")[2], re.S)]
TOLD = {kind.__struct_config__.tag: kind for kind in (*get_args(Told), *get_args(Header))}
NAMES = ("SESSION", "VIEW", "SNAPSHOT")
FIELDS = {"SESSION": "session", "VIEW": "view", "SNAPSHOT": "snapshot"}


def said(mark: str) -> list[dict[str, Any]]:
    return [json.loads(line[1:]) for block in BLOCKS for line in block if line.startswith(mark)]


def test_every_message_and_every_control_has_an_example_that_is_read() -> None:
    read = [decode(json.dumps(message)) for message in said(">")]
    assert {type(message) for message in read} == set(get_args(AnyClientMessage))
    controls = {message["control"]["type"] for message in said(">") if message["type"] == "control"}
    assert controls == {kind.__struct_config__.tag for kind in get_args(AnyControl)}


def test_every_message_of_the_servers_is_there_whole() -> None:
    shown = {
        message["type"]: message for message in (*reversed(said("<")), *ALONE)
    }  # the first of a kind is the whole one
    assert shown.keys() == TOLD.keys()
    for kind, message in shown.items():
        fields = {field.encode_name for field in msgspec.structs.fields(TOLD[kind])}
        assert message.keys() - {"type"} == fields, kind


def test_the_page_names_every_cause_of_an_end() -> None:
    causes = get_args(get_type_hints(Ended)["cause"])
    told = PAGE.partition("Causes of an end:")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z ]+)` \(", told)) == set(causes)


def test_the_page_names_every_code_of_an_error_with_its_status() -> None:
    told = PAGE.partition("Codes of an `error`")[2].partition("\n\nMessages")[0]
    named = {code: int(status) for code, status in re.findall(r"`([a-z_]+)` \((\d+)\)", told)}
    assert named == {code: STATUS.get(code, 400) for code in get_args(Code)}


def test_what_the_page_says_is_what_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known: dict[str, str] = {}
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path, look_ahead=True, destinations=(Destination.parse("rtmp://127.0.0.1"),)) as server:
        (whole,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
        exec(whole.replace("127.0.0.1:8000", server.address), {})
        heard = [json.loads(line)["type"] for line in capsys.readouterr().out.splitlines()]
        assert (heard[:2], heard[-1], heard.count("receipt")) == (["hello", "live"], "ended", 2)
        assert len(list(tmp_path.glob("0-*.jpg"))) == 9
        with Image.open(tmp_path / "4-11.jpg") as picture:
            assert picture.size == (32, 16)
        for block in BLOCKS[:-1]:
            with server.client() as client:
                _play(client, block, known)
        for session_id in list(server.hub.live_sessions):
            server.hub.service.end(session_id)
    with serving(places=1) as full, full.client() as first:
        first.start()
        with full.client() as second:
            _play(second, BLOCKS[-1], known)


def _play(client: Client, block: list[str], known: dict[str, str]) -> None:
    for line in block:
        message = json.loads(line[1:])
        if line.startswith(">"):
            client.say(
                {
                    name: known.get(value, value) if isinstance(value, str) else value
                    for name, value in message.items()
                }
            )
            continue
        heard = client.heard[0] if message["type"] == "hello" else _hear(client, message)
        for name in message:
            assert name in heard, f"{message['type']} has no {name}: {heard}"
            kinds = (
                (int, float) if isinstance(message[name], (int, float)) else (type(message[name]), type(None))
            )
            assert message[name] is None or isinstance(heard[name], kinds), f"{name} of {heard}"
        if message["type"] == "outputs" and message["outputs"]:
            known["OUTPUT"] = heard["outputs"][0]["output"]
            assert heard["outputs"][0].keys() == message["outputs"][0].keys()
        for placeholder in NAMES:
            if message.get(FIELDS[placeholder]) == placeholder:
                known[placeholder] = heard[FIELDS[placeholder]]


def _hear(client: Client, message: dict[str, Any]) -> dict[str, Any]:
    """The next such message; others are passed over, but for an error that the page does not show."""
    kind = message["type"]
    told = {name: message[name] for name in ("control_id", "state") if message["type"] == "receipt"}
    while True:
        heard = client.next()
        assert heard["type"] != "error" or kind == "error", f"{kind} was expected: {heard}"
        if heard["type"] == kind and all(heard.get(name) == value for name, value in told.items()):
            break
    assert all(
        heard[name] == message[name] for name in ("code", "cause", "format", "on") if name in message
    ), heard
    return heard


def test_the_tables_of_other_clients_are_those_that_are_tested() -> None:
    assert DOCS.read_text() == written(DOCS.read_text()), "run python -m tests.server.clients.facts"
