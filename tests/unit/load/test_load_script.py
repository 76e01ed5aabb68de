"""What the people of a load run do, what they say, and where they may be sent."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.client.reading import read, write
from millstream.core.client_messages import Start, Steer
from millstream.core.controls import SetPrompt
from millstream.core.errors import ConfigError, ProtocolBroken
from millstream.core.server_messages import LiveMessage
from millstream.load.loopback import check_loopback
from millstream.load.run import LoadRequest
from millstream.load.script import TEMPERS, Idle, Leave, Rest, ScriptedChange, SendGarbage, acts

# Scripts.


def test_the_same_seed_and_person_act_the_same_and_others_do_not() -> None:
    def begins(seed: int, person: int) -> list[Any]:
        return list(itertools.islice(acts(TEMPERS["rude"], ["a", "b"], seed=seed, person=person), 40))

    assert begins(1, 2) == begins(1, 2)
    assert begins(1, 2) != begins(1, 3) != begins(2, 3)


def test_one_deck_of_the_rude_has_everything() -> None:
    temper = TEMPERS["rude"]
    dealt = [act for _, act in itertools.islice(acts(temper, [], seed=0, person=0), len(temper.deck))]
    assert {type(act) for act in dealt} == {ScriptedChange, Rest, Leave, Idle, SendGarbage}
    modes = {
        act.control.mode
        for act in dealt
        if isinstance(act, ScriptedChange) and isinstance(act.control, SetPrompt)
    }
    assert modes == {"cut", "recompute", "keep", "blend"}
    assert {act.abruptly for act in dealt if isinstance(act, Leave)} == {True, False}


@given(st.sampled_from(sorted(TEMPERS)), st.integers(0, 2**32), st.integers(0, 63))
def test_every_control_that_is_dealt_is_one_that_can_apply(name: str, seed: int, person: int) -> None:
    for think_s, act in itertools.islice(acts(TEMPERS[name], ["a kite"], seed=seed, person=person), 30):
        assert TEMPERS[name].think_s[0] <= think_s <= TEMPERS[name].think_s[1]
        if isinstance(act, ScriptedChange):
            act.control.check()


# Messages and addresses.


def test_what_is_said_is_what_the_protocol_names() -> None:
    start = write(Start(version=1, prompt="a kite", fps=16.0, seed=3, formats=("webp",), wait=False))
    assert start == '{"type":"start","prompt":"a kite","fps":16.0,"seed":3,"version":1,"formats":["webp"]}'
    assert '"control":{"type":"prompt"' in write(Steer(control=SetPrompt(prompt="a kite")))


def test_fields_that_a_client_does_not_know_are_ignored() -> None:
    text = '{"type":"live","session":"s","view":"v","format":"jpeg","config":{"lead_s":1.5},"paused":false,"note":"","new":1}'
    assert read(text) == LiveMessage(
        session="s", view="v", format="jpeg", config={"lead_s": 1.5}, paused=False, note=""
    )


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff\xff{}", "{}", '{"type":"sing"}', "\x00"])
def test_what_the_protocol_does_not_know_is_said_in_one_line(data: str | bytes) -> None:
    with pytest.raises(ProtocolBroken, match="does not know"):
        read(data)


@pytest.mark.parametrize(
    "url",
    ["ws://127.0.0.1:8000", "ws://localhost:1", "ws://[::1]:8000", "ws://127.8.9.1", "http://127.0.0.1:80"],
)
def test_addresses_of_this_machine_are_fine(url: str) -> None:
    check_loopback(url)


@pytest.mark.parametrize(
    "url",
    ["ws://10.0.0.1:8000", "ws://example.org", "wss://127.0.0.1", "https://127.0.0.1:8000", "127.0.0.1:8000",
     "ws://127.0.0.1.example.org", "ws://user@192.168.0.1:8000", "ws://0.0.0.0:8000", "ws://127.0.0.1:port", ""],
)  # fmt: skip
def test_load_is_put_on_no_other_machine(url: str) -> None:
    with pytest.raises(ConfigError):
        LoadRequest(url=url)


@pytest.mark.parametrize(
    "options", [{"sessions": 0}, {"sessions": 65}, {"seconds": 0}, {"seconds": 3601}, {"connects": 1001}, {"fps": 0},
                {"fps": float("nan")}, {"seconds": float("inf")}, {"script": "drunk"}],
)  # fmt: skip
def test_a_run_is_bounded_in_count_and_time(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LoadRequest(**options)
