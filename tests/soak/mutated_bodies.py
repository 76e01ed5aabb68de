"""Bodies that clients of Scope and of OpenAI send over HTTP, mutated, and whether they are answered in those
clients' words.

A part of `tests/soak/mutated_messages.py`. The real application, without sockets; sessions have no model.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2

from millstream.engine.engine import Engine
from millstream.server.access.budgets import ClientRates
from millstream.server.app import AppConfig, create_app
from millstream.server.sessions.archive import Archive
from millstream.server.sessions.file_store import FileStore, StoreLimits
from millstream.server.sessions.hub import SessionHub
from tests.server.clients.facts import differences
from tests.server.fakes import CARD, FakeService, until
from tests.soak.abuses.costly import a_form, a_text
from tests.soak.abuses.mutations import DEEP, mutate, mutate_bytes
from tests.soak.abuses.signalling import CANDIDATE, mutated_candidate, mutated_offer, offer

GENEROUS = (1e9, 1e9)
RATES = ClientRates(requests=GENEROUS, saves=GENEROUS, uploads=GENEROUS, offers=GENEROUS, reading=GENEROUS)
WHOLE = 0.1
BYTES = 0.25
COSTLY = 0.1
"""Shares of bodies that are right, of those that are wrong in their bytes, and of forms that are dear to
read."""
SCOPE_OFFERS = "/api/v1/webrtc/offer"
VIDEOS = "/v1/videos"
PARAMETERS = {
    "prompts": [{"text": "sea", "weight": 1.0}],
    "denoising_step_list": [1000, 500],
    "input_mode": "text",
}
LOADS: tuple[dict[str, Any], ...] = (
    {
        "pipelines": [
            {
                "node_id": "a",
                "pipeline_id": CARD.name,
                "load_params": {"height": 16, "width": 16, "base_seed": 1},
            }
        ]
    },
    {
        "pipeline_ids": [CARD.name],
        "load_params": {"height": 16, "width": 16, "seed": 1, "vace_enabled": False},
    },
)
CLIPS: tuple[dict[str, Any], ...] = (
    {"prompt": "sea", "model": CARD.name, "seconds": "1", "size": "16x16", "seed": 7},
    {"prompt": "sea", "seconds": 4, "size": "16x16", "num_inference_steps": 2, "quality": "high"},
)
BOUNDARY = "x8x"


@dataclass(frozen=True, slots=True)
class Sent:
    method: str
    path: str
    answer: str
    """Kind of answer that the peer's client expects."""
    body: bytes = b""
    content_type: str = "application/json"


def scope_body(chance: random.Random, opened: str) -> Sent:
    match chance.randrange(3):
        case 0:
            return Sent("POST", "/api/v1/pipeline/load", "load", _wrong(chance.choice(LOADS), chance))
        case 1 if opened:
            candidates = [
                {"candidate": mutated_candidate(chance), "sdpMid": "0", "sdpMLineIndex": 0},
                {"candidate": CANDIDATE},
            ]
            return Sent("PATCH", f"{SCOPE_OFFERS}/{opened}", "", _wrong({"candidates": candidates}, chance))
    sdp = offer() if chance.random() < 0.1 else mutated_offer(chance)
    asked = {"sdp": sdp, "type": "offer", "initialParameters": PARAMETERS}
    return Sent("POST", SCOPE_OFFERS, "answer", _wrong(asked, chance))


def openai_body(chance: random.Random, opened: str) -> Sent:
    """JSON, a form, or one in parts: its Python client sends parts, others what they like."""
    if chance.random() < COSTLY:
        content_type, body = a_form(chance)
        return Sent("POST", VIDEOS, "video", _bent(body, chance), content_type)
    fields = chance.choice(CLIPS)
    match chance.randrange(3):
        case 0:
            return Sent("POST", VIDEOS, "video", _wrong(fields, chance))
        case 1:
            body = urlencode(_mutated(fields, chance), errors="surrogatepass").encode()
            kind = "x-www-form-urlencoded"
            return Sent("POST", VIDEOS, "video", _bent(body, chance), f"application/{kind}")
    named = [(str(name), str(value)) for name, value in _mutated(fields, chance).items()]
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in named
    ]
    body = "".join([*parts, f"--{BOUNDARY}--\r\n"]).encode("utf-8", "surrogatepass")
    kind = f"multipart/form-data; boundary={BOUNDARY}" if chance.random() < 0.95 else "multipart/form-data"
    return Sent("POST", VIDEOS, "video", _bent(body, chance), kind)


MAKES = {"scope": scope_body, "openai": openai_body}


def _mutated(fields: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """As fields of a form, which has names whatever becomes of it."""
    changed = fields if chance.random() < WHOLE else mutate(fields, chance)
    return changed if isinstance(changed, dict) else {"prompt": changed}


def _wrong(fields: dict[str, Any], chance: random.Random) -> bytes:
    """As JSON."""
    changed = fields if chance.random() < WHOLE else mutate(fields, chance)
    return _bent(json.dumps(changed, default=repr).encode(), chance)


def _bent(body: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.01:
        return chance.choice(DEEP) if chance.random() < 0.5 else a_text(chance).encode()
    return mutate_bytes(body, chance) if chance.random() < BYTES else body


def not_as_read(peer: str, sent: Sent, answer: httpx2.Response) -> Iterator[str]:
    """Yield what the peer's client would not have understood in an answer."""
    about = f"{sent.method} {sent.path} {sent.body[:300]!r}: {answer.status_code} {answer.text[:200]!r}"
    if answer.status_code == 204:
        return
    try:
        said = answer.json()
    except ValueError:
        yield f"no JSON: {about}"
        return
    if answer.status_code < 400:
        yield from (f"{found}: {about}" for found in differences(peer, sent.answer, said))
    elif answer.status_code == 500:
        yield f"its own failure: {about}"
    elif peer == "scope":
        yield from [] if isinstance(said.get("detail"), str) else [f"no detail: {about}"]
    else:
        yield from (f"{found}: {about}" for found in differences(peer, "error", said.get("error", {})))


def answers(peer: str, count: int, seed: int) -> dict[str, Any]:
    found: dict[str, Any] = {"messages": count, "errors": 0, "not_in_its_words": []}

    async def play(http: httpx2.AsyncClient, service: FakeService) -> None:
        chance = random.Random(seed)
        opened = ""
        for number in range(count):
            sent = MAKES[peer](chance, opened)
            headers = {"Content-Type": sent.content_type}
            answer = await http.request(sent.method, sent.path, content=sent.body, headers=headers)
            found["not_in_its_words"] += not_as_read(peer, sent, answer)
            found["errors"] += answer.status_code >= 400
            if answer.status_code == 200 and sent.answer in ("answer", "video"):
                opened = await _take(peer, http, service, opened, answer.json(), number)
        await _end(peer, http, opened)
        await until(lambda: not service.sessions)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_with_app(play, Path(folder)))
    return found


async def _take(
    peer: str, http: httpx2.AsyncClient, service: FakeService, opened: str, said: dict[str, Any], number: int
) -> str:
    """Return the name of the session or video that a valid enough message opened, and end the previous one.
    At every tenth message number, pictures are sent too."""
    await _end(peer, http, opened)
    if number % 10 == 0:
        for name in list(service.sessions):
            service.picture(name)
            await asyncio.sleep(0)
    return str(said["sessionId"] if peer == "scope" else said["id"])


async def _end(peer: str, http: httpx2.AsyncClient, opened: str) -> None:
    if opened:
        path = f"{SCOPE_OFFERS if peer == 'scope' else VIDEOS}/{opened}"
        answer = await http.delete(path)
        assert answer.status_code in (200, 204, 404), f"DELETE {path}: {answer.text}"


async def _with_app(play: Any, folder: Path) -> None:
    service = FakeService()
    engine = Engine("wan-tiny", weights="random", device="cpu", dtype="float32")
    archive = Archive(engine, FileStore(folder, StoreLimits(max_files=8)))
    app = create_app(lambda: SessionHub(service, CARD, archive=archive), AppConfig(rates=RATES))  # type: ignore[arg-type]
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as http,
    ):
        await play(http, service)
