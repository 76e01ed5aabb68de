"""Thousands of wrong messages, in every dialect: refused in its own words, with no traceback, and nobody else
notices."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from millstream.server.dialects.krea import KreaParameters
from millstream.server.dialects.scope_parameters import ScopeParameters
from millstream.server.dialects.sglang import Init
from millstream.server.dialects.vllm_omni import SessionStart
from millstream.server.sessions.hub import SessionHub
from tests.server.dialect_clients import DIALECTS, OPENINGS, PACKS, Client, is_error, with_hub
from tests.server.fakes import FakeService
from tests.soak.mutated_messages import OVER_HTTP, answers


def rubbish(dice: random.Random) -> Any:
    """A value of any kind, some of them almost right."""
    plain = [
        None,
        True,
        0,
        1,
        -1,
        2**63,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "x",
        "64x64",
        "\0",
        [],
        {},
        [1000, 500],
        0.5,
        3,
    ]
    right = [
        [{"text": "sky", "weight": 0.5}],
        {"prompt": "sky"},
        {"event": {"prompt": "sky"}, "transition_chunks": 2},
        {"event_id": "a", "event": {"prompt": "sky"}},
        {"target_prompts": [{"text": "sky"}], "num_steps": 3},
        "prompt",
        "reset",
        "camera_actions",
    ]
    return dice.choice(plain + right)


def message(dice: random.Random, dialect: str) -> str | bytes:
    """Mostly the right shape with something wrong in it; now and then noise."""
    if dice.random() < 0.1:
        return bytes(dice.randrange(256) for _ in range(dice.randrange(40)))
    if dice.random() < 0.05:
        return "".join(chr(dice.randrange(0x20, 0xD7FF)) for _ in range(dice.randrange(40)))
    kinds = (
        "init",
        "event",
        "session.start",
        "session.interaction",
        "session.ping",
        "session.stop",
        "nonsense",
    )
    fields = (
        *Init.__struct_fields__,
        *SessionStart.__struct_fields__,
        *KreaParameters.__struct_fields__,
        *ScopeParameters.__struct_fields__,
    )
    said: dict[str, Any] = (
        dict(OPENINGS.get(dialect, {})) if dice.random() < 0.3 else {"type": dice.choice(kinds)}
    )
    for _ in range(dice.randrange(4)):
        name = dice.choice(
            (
                *fields,
                "kind",
                "payload",
                "event_id",
                "interaction",
                "interp_steps",
                "action",
                "image",
                "extra",
            )
        )
        said[name] = rubbish(dice)
    if dialect not in PACKS:
        return json.dumps(said)
    try:
        return msgspec.msgpack.encode(said)
    except OverflowError:
        return b""


@pytest.mark.parametrize("dialect", DIALECTS)
def test_thousands_of_wrong_messages_harm_nobody_and_leave_nothing_behind(dialect: str) -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        dice = random.Random(4)
        errors = 0
        opened = 0
        calm = Client(dialect, hub)
        await calm.open()
        (session,) = service.sessions
        client = Client(dialect, hub)
        for number in range(2000):
            if number % 25 == 0:
                client.handler.on_disconnect()
                client = Client(dialect, hub)
                if dialect == "scope" or dice.random() < 0.5:
                    await client.open()
            heard = await client.say(message(dice, dialect))
            errors += any(is_error(said) for said in heard)
            opened += len(service.sessions) > 1
            for name in list(service.sessions):
                service.picture(name)
            await calm.heard()
        assert errors > 200
        assert opened > 200
        client.handler.on_disconnect()
        assert list(service.sessions) == [session]
        calm.handler.on_disconnect()

    with_hub(play)


@pytest.mark.parametrize(
    ("dialect", "count"), [*((name, 1000) for name in DIALECTS), *((name, 150) for name in OVER_HTTP)]
)
def test_mutated_messages_are_answered_in_its_own_words_and_never_with_a_traceback(
    dialect: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten thousand of them: `python -m tests.soak.mutated_messages`."""
    found = answers(dialect, count)
    assert found["not_in_its_words"] == []
    assert found["errors"] > 50
    assert not [record for record in caplog.records if record.exc_info], (
        "something was logged with a traceback"
    )
