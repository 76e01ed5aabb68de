"""Every field that a peer's client can send, in every type it sends it in: read by its dialect, one at a
time."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.server.sessions.hub import SessionHub
from tests.server.clients.facts import facts
from tests.server.dialect_clients import DIALECTS, OPENINGS, Client, with_hub
from tests.server.fakes import FakeService

VALUES: dict[str, Any] = {
    "str": "2", "int": 2, "float": 0.5, "bool": True, "bytes": b"\xff\xd8", "list": [], "map": {}, "null": None,
}  # fmt: skip
OTHERS: dict[tuple[str, str], Any] = {
    ("interaction", "map"): {"event": {"prompt": "storm"}},
    ("transition", "map"): {"target_prompts": [{"text": "storm", "weight": 100}], "num_steps": 4},
    ("prompts", "list"): [{"text": "storm", "weight": 100}],
    ("denoising_step_list", "list"): [1000, 500],
    ("seed", "float"): 65536.0,
}
"""Where that is nothing they send."""
WRONG_TYPE = ", got `"
"""In what is said of a type that cannot be read; of a value that may not be, something else is."""
FIRST = {"sglang": "init", "vllm_omni": "session.start", "krea": "parameters"}
"""What opens a session; the rest is said in one."""
SAID = [(peer, kind) for peer in DIALECTS for kind in facts(peer)["sends"] if "/" not in kind]
"""HTTP is read elsewhere."""


def value_of(name: str, kind: str) -> Any:
    if kind.startswith("const:"):
        return kind.removeprefix("const:")
    return OTHERS.get((name, kind), VALUES[kind])


@pytest.mark.parametrize(("peer", "kind"), SAID)
def test_no_field_of_theirs_is_of_a_type_that_is_not_read(peer: str, kind: str) -> None:
    sends = {name: each["type"] for name, each in facts(peer)["sends"][kind].items()}
    types = {name: each.removeprefix("?").split("|") for name, each in sends.items()}
    needed = {
        name: value_of(name, types[name][0]) for name, each in sends.items() if not each.startswith("?")
    }

    async def play(hub: SessionHub, service: FakeService) -> None:
        for name, kinds in types.items():
            for each in kinds:
                client = Client(peer, hub)
                if kind == FIRST.get(peer):
                    needed.update(OPENINGS[peer])
                else:
                    await client.open()
                heard = await client.say(needed | {name: value_of(name, each)})
                client.handler.on_disconnect()
                assert WRONG_TYPE not in str(heard), f"{name} as {each}: {heard}"

    with_hub(play)
