"""Check that no message makes a dialect answer outside its protocol: mutated client messages, ten thousand
for each dialect.

    python -m tests.soak.mutated_messages
    python -m tests.soak.mutated_messages --count 1000 --dialects krea

It uses no sockets and no models; bodies over HTTP, those of Scope and of OpenAI, are in `mutated_bodies.py`.
Every answer must have the fields that the peer's own client reads, a wrong message must be answered with an
error, and nothing may be logged with a traceback. The suite does the same with fewer messages.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
from typing import Any

from millstream.server.sessions.hub import SessionHub
from tests.server.clients.facts import differences
from tests.server.dialect_clients import DIALECTS, Client, is_error, with_hub
from tests.server.fakes import FakeService
from tests.soak import mutated_bodies
from tests.soak.abuses.costly import a_text
from tests.soak.abuses.mutations import mutate, mutate_bytes
from tests.soak.abuses.phrases import KREA, SGLANG, VLLM
from tests.soak.report import write_report

COUNT = 10_000
SEED = 26
SCOPE_PHRASES: tuple[dict[str, Any], ...] = (
    {
        "prompts": [{"text": "storm", "weight": 100}, "sky"],
        "denoising_step_list": [1000, 500],
        "node_id": "a",
    },
    {
        "transition": {"target_prompts": [{"text": "night", "weight": 1.0}], "num_steps": 4},
        "manage_cache": True,
    },
    {
        "noise_scale": 0.5,
        "kv_cache_attention_bias": 0.3,
        "paused": False,
        "reset_cache": True,
        "recording": False,
    },
    {
        "input_mode": "video",
        "vace_context_scale": 1.0,
        "graph": {"nodes": [], "edges": []},
        "pipeline_ids": ["x"],
    },
)
SPOKEN = {"sglang": SGLANG, "vllm_omni": VLLM, "krea": KREA}
OVER_HTTP = {"scope_http": "scope", "openai": "openai"}
"""Whose bodies are mutated."""
ALL = (*DIALECTS, *OVER_HTTP)


def mutated(dialect: str, dice: random.Random) -> str | bytes:
    """Return a message of the dialect's clients with errors in its fields or its bytes."""
    if dialect in SPOKEN:
        return SPOKEN[dialect].mutated(dice)
    if dice.random() < 0.03:
        return a_text(dice)
    text = json.dumps(mutate(dice.choice(SCOPE_PHRASES), dice), default=repr)
    return mutate_bytes(text.encode(), dice).decode("latin-1") if dice.random() < 0.25 else text


def answers(dialect: str, count: int) -> dict[str, Any]:
    """Count the errors that a client was sent, and the answers that its own client would not have
    understood."""
    if dialect in OVER_HTTP:
        return mutated_bodies.answers(OVER_HTTP[dialect], count, SEED)
    found: dict[str, Any] = {"messages": count, "errors": 0, "not_in_its_words": []}

    async def play(hub: SessionHub, service: FakeService) -> None:
        dice = random.Random(SEED)
        client = Client(dialect, hub)
        for number in range(count):
            if number % 20 == 0:
                client.handler.on_disconnect()
                client = Client(dialect, hub)
                if dialect == "scope" or dice.random() < 0.7:
                    await client.open()
            for said in await client.say(mutated(dialect, dice)):
                found["not_in_its_words"] += not_in_its_words(dialect, said)
                found["errors"] += is_error(said)
            for name in list(service.sessions):
                service.picture(name)
        client.handler.on_disconnect()
        assert service.sessions == {}, f"{len(service.sessions)} sessions are left"

    with_hub(play, patience_s=600)
    return found


def not_in_its_words(dialect: str, said: Any) -> list[str]:
    """List what the peer's own client would miss in an answer. Scope's client reads none."""
    if not isinstance(said, dict) or dialect == "scope":
        return []
    kind = said.get("type") or next(name for name in ("error", "session_id", "status") if name in said)
    kind = {"session_id": "completed"}.get(kind, kind)
    own_id = isinstance(said.get("event_id"), str)  # no peer's client, but it comes back as it was sent
    return differences(dialect, kind, said | {"event_id": 1} if own_id and dialect == "sglang" else said)


class Tracebacks(logging.Handler):
    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.exc_info is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--dialects", nargs="*", default=list(ALL), choices=ALL)
    options = parser.parse_args()
    logging.getLogger().addHandler(tracebacks := Tracebacks())
    found = {dialect: answers(dialect, options.count) for dialect in options.dialects}
    measured = {"dialects": found, "tracebacks": tracebacks.count}
    if options.count == COUNT and len(found) == len(ALL):
        write_report("mutated_messages", {"count": COUNT, "seed": SEED}, measured)
    else:
        print(json.dumps(measured, indent=2))
    sys.exit(bool(tracebacks.count or any(each["not_in_its_words"] for each in found.values())))


if __name__ == "__main__":
    main()
