"""Ten thousand messages that are wrong in every way we can think of."""

from __future__ import annotations

import json
import random
import threading
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.core.client_messages import ProtocolError
from millstream.server.protocol.messages import decode
from millstream.server.sessions.hub import SessionHub
from tests.server.fakes import FakeService, until
from tests.server.test_conversation import START, Client, with_hub

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
WORDS = ("start", "attach", "view", "restore", "control", "record", "save", "ping", "stop", "nonsense")
FIELDS = (
    "version", "prompt", "prompts", "size", "fps", "seed", "steps", "first_steps", "window", "sink", "noise_scale", "lead_s",
    "formats", "input", "wait", "unattended", "session", "view", "snapshot", "control", "at_chunk", "on", "t", "extra",
)  # fmt: skip


@settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow])
@given(JSON | st.binary(max_size=60).map(lambda data: data.decode("latin-1")))
def test_decoding_never_fails_but_in_one_way(value: Any) -> None:
    for text in (json.dumps(value), json.dumps({"type": "start", "version": 1, "prompt": value}), str(value)):
        said = "something"
        try:
            decode(text)
        except ProtocolError as error:
            said = str(error)
        assert said


def rubbish(dice: random.Random) -> Any:
    """A value of any kind, some of them almost right."""
    plain = [
        None,
        True,
        False,
        0,
        1,
        -1,
        2**63,
        10**40,
        1e308,
        float("nan"),
        float("inf"),
        [],
        {},
        [1000, 500],
        ["jpeg"],
    ]
    words = [
        "",
        "x",
        "64x64",
        "mp4",
        "\ud800",
        "\0",
        "é" * 9,
        [{"text": "sea", "weight": 0.5}],
        {"a": {"b": [1]}},
    ]
    controls = [{"type": name} for name in ("cut", "stop", "resume", "pause", "prompt")] + [
        {"type": "prompt", "prompt": "sky"},
        {"type": "steps", "steps": [1000]},
        {"type": "window", "window": 6, "id": "a"},
        {"type": "prompt", "prompt": "a", "mode": "blend", "chunks": 10**9},
    ]
    return dice.choice(plain + words + controls)


def message(dice: random.Random, names: list[str]) -> str | bytes:
    """Mostly the right shape with something wrong in it; now and then noise."""
    if dice.random() < 0.1:
        return bytes(dice.randrange(256) for _ in range(dice.randrange(40)))
    if dice.random() < 0.1:
        return "".join(chr(dice.randrange(0x20, 0xD7FF)) for _ in range(dice.randrange(40)))
    said: dict[str, Any] = {"type": dice.choice(WORDS)}
    if dice.random() < 0.9:
        said["version"] = 1
    if dice.random() < 0.8:
        likely: dict[str, dict[str, Any]] = {
            "start": {"prompt": "sea"},
            "attach": {"session": dice.choice(names)},
            "view": {"view": dice.choice(names)},
            "control": {"control": {"type": "cut"}},
            "record": {"on": True},
            "ping": {"t": 1},
        }
        said |= likely.get(said["type"], {})
        if said["type"] in ("control", "record", "save", "ping", "stop"):
            said.pop("version", None)
    for _ in range(dice.choice([0, 0, 0, 1, 2, 3])):
        said[dice.choice(FIELDS)] = rubbish(dice)
    text = json.dumps(said)
    return text if dice.random() < 0.95 else text[: dice.randrange(len(text) + 1)]


def test_ten_thousand_wrong_messages_harm_nobody_and_leave_nothing_behind() -> None:
    """Many clients that talk rubbish, leave and come again, beside one that does everything right."""
    dice = random.Random(4)
    heard = {"live": 0, "error": 0, "receipt": 0, "pong": 0, "ended": 0}
    before = threading.active_count()

    async def play(hub: SessionHub, service: FakeService) -> None:
        calm = Client(hub)
        session = (await calm.say(START))[-1]["session"]
        clients: list[Client] = []
        for number in range(10_000):
            if number % 30 == 0:
                clients.append(Client(hub))
            if len(clients) > 8:
                clients.pop(0).conversation.on_disconnect()
            client = dice.choice(clients)
            names = [
                "nobody",
                *hub.live_sessions,
                *(live_session.view_id for live_session in hub.live_sessions.values()),
            ]
            for answer in await client.say(
                message(dice, [name for name in names if name != session] or ["nobody"])
            ):
                heard[answer["type"]] = heard.get(answer["type"], 0) + 1
            if number % 100 == 0:
                service.picture(session)
                await until(lambda: len(calm.outbox) > 0)
                assert await calm.say({"type": "ping", "t": number}) == [{"type": "pong", "t": number}]
                for other in [
                    name for name, each in service.sessions.items() if each.viewers == 0 and name != session
                ]:
                    service.end(other, "abandoned")
        assert next(iter(service.sessions)) == session, "the calm client's session has lived through it all"
        for client in (*clients, calm):
            client.conversation.on_disconnect()
        assert all(each.viewers == 0 for each in service.sessions.values())

    with_hub(play, places=40)
    assert threading.active_count() <= before
    assert min(heard["live"], heard["error"], heard["receipt"], heard["pong"]) > 50, heard
    assert heard["ended"] > 10, heard
