"""REST and WebRTC signalling by somebody who does it wrong: a guest opens what it can, asks on, and tidies up
behind itself."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field, replace
from typing import Any

from tests.soak.abuses.costly import a_form, a_text
from tests.soak.abuses.http import ANSWER_S, Caller, Headers, Request, post
from tests.soak.abuses.mutations import DEEP, ODD, mutate, mutate_bytes
from tests.soak.abuses.phrases import CONTROLS, SMALL
from tests.soak.abuses.signalling import mutated_candidate, mutated_offer, offer
from tests.soak.abuses.tally import CallCount
from tests.soak.abuses.target import Target

NOBODY = "AAAAAAAAAAAAAAAAAAAAAA"
VISIT_S = 0.85
"""That so many requests take at least: one address may make 50 a second."""
BROKEN_S = 0.3
"""Patience with an answer to what is no request: the server may well wait for the rest of it."""
FORM = 0.1
"""Share of forms among bodies."""
BODIES: dict[str, tuple[dict[str, Any], ...]] = {
    "/v1/sessions": (
        {"prompt": "sea", **SMALL},
        {
            "prompts": [{"text": "sea", "weight": 1.0}],
            **SMALL,
            "wait": True,
            "weight": 0.5,
            "unattended": "run",
        },
    ),
    "/v1/sessions/{session}/controls": tuple({"control": control, "at_chunk": None} for control in CONTROLS),
    "/v1/sessions/{session}/recording": ({"on": True}, {"on": False}),
    "/v1/sessions/{session}/snapshots": ({},),
    "/v1/snapshots": ({},),
    "/v1/snapshots/{name}/sessions": ({},),
    "/api/v1/pipeline/load": (
        {"pipeline_id": "wan-tiny", "load_params": {"height": 16, "width": 16, "seed": 1}},
    ),
}
GETS = (
    "/", "/v1/models", "/v1/sessions", "/v1/sessions/{session}", "/v1/sessions/{session}/controls",
    "/v1/sessions/{session}/journal", "/v1/sessions/{session}/recordings", "/v1/sessions/{session}/snapshots",
    "/v1/recordings/{name}", "/v1/journals/{name}", "/v1/snapshots/{name}", "/openapi.json", "/healthz", "/readyz", "/metrics",
    "/api/v1/pipeline/status", "/api/v1/webrtc/ice-servers", "/main.js", "/v1/stream", "/session/me", "/nothing",
)  # fmt: skip
METHODS = ("GET", "POST", "DELETE", "PATCH", "PUT", "HEAD", "OPTIONS", "TRACE", "G\0T", "get", "")
NAMES = (
    NOBODY,
    "..",
    "%2e%2e",
    "%2e%2e%2f",
    "%2e%2e/fleet/link",
    "%252e%252e",
    "%00",
    "%0a",
    "%7f",
    "%ff",
    "\u00e9",
    "x" * 5000,
    "",
    " ",
    "?",
    "#",
    "%",
    "{session}",
    "a/b",
    "CON",
)
HEADERS: tuple[tuple[str, str], ...] = (
    ("Origin", "http://["), ("Origin", "null"), ("Origin", "http://evil.example"), ("Origin", "http://[::1"),
    ("Origin", "\u00ff"),
    ("Host", "["), ("Host", ""), ("Host", "evil.example"), ("Host", "127.0.0.1:x"), ("Host", "[::1"),
    ("Authorization", "Bearer"), ("Authorization", "Bearer \u00ff"), ("Authorization", "Basic eA=="),
    ("X-Odd", "\u00ff"), ("Accept", "\u00ff"), ("Content-Type", "multipart/form-data; boundary=\u00ff"),
    ("X-Forwarded-For", "\u00ff"), ("Content-Length", "99999999999"),
    ("Content-Length", "-1"), ("Content-Length", "1e3"), ("Content-Length", "99999999999999999999"),
    ("Transfer-Encoding", "chunked"), ("Transfer-Encoding", "gzip"), ("Content-Type", "\ud800"), ("Content-Encoding", "gzip"),
    ("Range", "bytes=0-"), ("Range", "bytes=9-1"), ("Range", "bytes=-99999999999999999999"), ("Range", "bytes=0-0," * 500),
    ("If-Range", "x"), ("If-None-Match", "*"), ("If-Modified-Since", "never"), ("Accept-Encoding", "\0"),
    ("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Expect", "100-continue"), ("Cookie", "x" * 10_000),
    ("X", "y\r\nZ: 1"),
)  # fmt: skip
FRAMING = ("Content-Length", "Transfer-Encoding", "Upgrade", "Connection", "Expect", "X")
"""Headers that say where a request ends, or that what follows is none."""


@dataclass(slots=True)
class Guest:
    target: Target
    kind: str
    """rest or webrtc."""
    chance: random.Random
    tally: CallCount
    _session: str = field(default="", init=False)
    _peer: str = field(default="", init=False)

    async def visit(self, size: int) -> None:
        """So many requests from one address, and what they opened is closed again."""
        begun = time.monotonic()
        self._session = self._peer = ""
        with Caller.from_anywhere(self.target, self.chance) as caller:
            for _ in range(size):
                await self._ask(caller, self._request() if self.kind == "rest" else self._signal())
            await self._tidy(caller)
        await asyncio.sleep(max(0.0, begun + VISIT_S - time.monotonic()))

    async def _ask(self, caller: Caller, request: Request) -> None:
        data = request.encode(self.target.name)
        whole = True
        if self.chance.random() < 0.1:
            data = mutate_bytes(data, self.chance)
            whole = False
        whole = whole and not any(name in FRAMING for name, _ in request.headers)
        self.tally.sent[self.kind] += 1
        about = f"{self.kind}: {data[:300]!r}"
        try:
            answer = await caller.ask_bytes(data, request.method, patience_s=ANSWER_S if whole else BROKEN_S)
        except asyncio.TimeoutError:
            if whole:
                self.tally.silence(about)
            else:
                self.tally.answered("waits for more", about)
            return
        except ConnectionRefusedError as error:
            self.tally.silence(f"{self.kind}: no connection: {error}")
            return
        except OSError:
            answer = None
        if not whole:
            caller.hang_up()  # nobody knows where the next request would begin
        if answer is None:
            self.tally.answered("closed", about)
            return
        self.tally.answered(str(answer.status), about)
        if answer.status in (200, 201):
            self._session = answer.field("session") or self._session
            self._peer = answer.field("sessionId") or self._peer

    async def _tidy(self, caller: Caller) -> None:
        """Not counted: it is done right."""
        for path, name in (("/v1/sessions", self._session), ("/api/v1/webrtc/offer", self._peer)):
            if name:
                try:
                    await caller.ask(Request(method="DELETE", path=f"{path}/{name}"))
                except (OSError, asyncio.TimeoutError):
                    self.tally.answered("closed", f"{self.kind}: DELETE {path}")

    def _request(self) -> Request:
        chance = self.chance
        if chance.random() < 0.4:
            request = Request(path=self._filled(chance.choice(GETS)))
        elif chance.random() < FORM:
            content_type, body = a_form(chance)
            body = mutate_bytes(body, chance) if chance.random() < 0.5 else body
            request = Request(
                method="POST", path="/v1/videos", headers=(("Content-Type", content_type),), body=body
            )
        else:
            path = chance.choice(list(BODIES))
            request = post(self._filled(path), self._body(chance.choice(BODIES[path])))
        return self._bent(request)

    def _signal(self) -> Request:
        chance = self.chance
        sdp = offer() if chance.random() < 0.02 else mutated_offer(chance)
        match chance.randrange(4):
            case 0 if self._peer:
                candidates = [
                    {"candidate": mutated_candidate(chance), "sdpMid": "0", "sdpMLineIndex": 0}
                    for _ in range(3)
                ]
                request = Request(
                    method="PATCH",
                    path=f"/api/v1/webrtc/offer/{self._peer}",
                    body=self._body({"candidates": candidates}),
                )
            case 1:
                request = post("/api/v1/webrtc/offer", self._body(_scope_offer(sdp)))
            case _:
                start = {"type": "start", "version": 1, "prompt": "sea", **SMALL}
                request = post("/v1/webrtc/offer", self._body({"sdp": sdp, "type": "offer", "start": start}))
        return self._bent(request) if chance.random() < 0.2 else request

    def _body(self, fields: dict[str, Any]) -> bytes:
        chance, dice = self.chance, self.chance.random()
        if dice < 0.02:
            return chance.choice(DEEP) if dice < 0.01 else a_text(chance).encode()
        if dice < 0.5:
            fields = mutate(fields, chance)
        return json.dumps(fields, default=repr).encode()

    def _filled(self, path: str) -> str:
        name = self._session if self._session and self.chance.random() < 0.8 else self.chance.choice(NAMES)
        return path.replace("{session}", name).replace("{name}", self.chance.choice(NAMES))

    def _bent(self, request: Request) -> Request:
        """Perhaps with another method, one more header, or a question at the end of its path."""
        chance = self.chance
        if chance.random() < 0.1:
            request = replace(request, method=chance.choice(METHODS))
        if chance.random() < 0.2:
            extra: Headers = tuple(chance.choice(HEADERS) for _ in range(chance.randint(1, 2)))
            request = replace(request, headers=(*request.headers, *extra))
        if chance.random() < 0.05:
            request = replace(request, path=f"{request.path}?{chance.choice(ODD)}"[:6000])
        return request


def _scope_offer(sdp: str) -> dict[str, Any]:
    first = {
        "prompts": [{"text": "sea", "weight": 1.0}],
        "denoising_step_list": [1000, 500],
        "noise_scale": 0.5,
        "paused": False,
    }
    return {"sdp": sdp, "type": "offer", "initialParameters": first}
