"""Abuse of whoever reads: forms and messages that are small to send and dear to take apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tests.soak.abuses.costly import FORMS, PACKS, TEXTS, Form
from tests.soak.abuses.frames import RawSocket
from tests.soak.abuses.http import Request
from tests.soak.abuses.phrases import KREA, SGLANG, VLLM, Protocol
from tests.soak.abuses.scene import Scene

FORM_BYTES = 600_000
PACK_BYTES = 2_800_000
TEXT_BYTES = 120_000
PICTURE_TEXT_BYTES = 4_000_000
"""Size of a first message that may hold a picture."""
MANY = 20


@cache
def _form(shape: str) -> Form:
    """Made once: an attacker is to send, not to compute."""
    return FORMS[shape](FORM_BYTES)


@cache
def _pack(shape: str) -> bytes:
    return PACKS[shape](PACK_BYTES)


@cache
def _text(shape: str, size: int) -> bytes:
    return TEXTS[shape](size)


async def costly_forms(scene: Scene) -> None:
    """Nested ones, with thousands of header parameters, of empty lines: as bodies of requests for a clip."""

    async def post_them() -> None:
        with scene.caller() as caller:
            for _ in range(MANY):
                content_type, body = _form(scene.chance.choice(list(FORMS)))
                headers = (("Content-Type", content_type),)
                answer = await caller.ask(
                    Request(method="POST", path="/v1/videos", headers=headers, body=body)
                )
                scene.did["none" if answer is None else str(answer.status)] += 1

    await scene.crowd(4, post_them)


async def costly_bodies(scene: Scene) -> None:
    """JSON of many values, or deep, to every address that takes some."""

    async def post_them() -> None:
        with scene.caller() as caller:
            for _ in range(MANY):
                path = scene.chance.choice(
                    ("/v1/sessions", "/v1/videos", "/v1/webrtc/offer", "/api/v1/pipeline/load")
                )
                size = PICTURE_TEXT_BYTES if path == "/v1/videos" else TEXT_BYTES
                body = _text(scene.chance.choice(list(TEXTS)), size)
                answer = await caller.ask(Request(method="POST", path=path, body=body))
                scene.did["none" if answer is None else str(answer.status)] += 1

    await scene.crowd(4, post_them)


async def costly_packs(scene: Scene) -> None:
    """MessagePack of hundreds of thousands of small values, or deep, with and without a session."""

    async def say_them() -> None:
        protocol = scene.chance.choice((SGLANG, KREA))
        await _say(scene, protocol, lambda: _pack(scene.chance.choice(list(PACKS))))

    await scene.crowd(4, say_them)


async def costly_texts(scene: Scene) -> None:
    """JSON with as much in it as a first message may have, and with as much as any may."""

    async def say_them() -> None:
        shape = scene.chance.choice(list(TEXTS))
        if scene.chance.random() < 0.5:
            await _say(scene, VLLM, lambda: _text(shape, PICTURE_TEXT_BYTES).decode(), opens=False)
        else:
            socket = await scene.socket()
            with socket:
                for _ in range(MANY):
                    socket.send(_text(shape, TEXT_BYTES).decode())
                    await socket.drain()
                    scene.did["messages"] += 1
                await scene.read_on(socket)

    await scene.crowd(4, say_them)


async def _say(
    scene: Scene, protocol: Protocol, message: Callable[[], bytes | str], *, opens: bool = True
) -> None:
    socket = await scene.socket(protocol.path)
    with socket:
        if opens and scene.chance.random() < 0.5:
            socket.send(protocol.encode(protocol.opening))
        for _ in range(MANY):
            socket.send(message())
            await socket.drain()
            scene.did["messages"] += 1
            if not await _is_answered(socket, scene):
                return


async def _is_answered(socket: RawSocket, scene: Scene) -> bool:
    """Return whether an error message arrives before the connection ends."""
    while (heard := await socket.hear()) is not None:
        _, payload = heard
        if b"error" in payload[:64]:
            scene.did["refused"] += 1
            return True
    return False
