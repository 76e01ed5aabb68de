"""Krea's realtime video: a WebSocket at `/session/{id}`, MessagePack in, JPEG pictures out.

    ready ── parameters ──► live ── prompts, pictures, resets ──► ended, with the connection

The id in the address is the client's own and opens nothing here. Whatever is not a picture is a JSON text with a `status`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from millstream.core.controls import MAX_BLEND_CHUNKS, Cut, Receipt, SetNoiseScale, SetPrompt
from millstream.core.errors import MillstreamError
from millstream.core.messages import Ask, ErrorMessage
from millstream.core.schedule import even_steps
from millstream.server.access.budgets import ClientAccount
from millstream.server.access.limits import ClientLimits
from millstream.server.dialects.dialect import Dialect
from millstream.server.dialects.interpreter import END_ID, heed
from millstream.server.protocol.messages import encode
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.outbox import EncodedChunk, Outbox
from millstream.server.transport.websocket_loop import converse
from millstream.serving.notices import Applied, Ended, Noted

Side = Annotated[int, msgspec.Meta(ge=1, le=2**16)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class KreaParameters(msgspec.Struct, frozen=True, kw_only=True):
    """The first message."""

    prompt: str
    width: Side | None = None
    height: Side | None = None
    seed: int | None = None
    num_blocks: Annotated[int, msgspec.Meta(ge=1, le=2**31)] | None = None
    """Chunks; without it there is no end."""
    num_denoising_steps: Annotated[int, msgspec.Meta(ge=1, le=16)] | None = None
    strength: Share | None = None
    """Of the noise in pictures that are sent; naming it says that some will be."""
    image: bytes | None = None
    webcam_mode: bool = False


class KreaChange(msgspec.Struct, frozen=True, kw_only=True):
    """Any message after it."""

    prompt: str | None = None
    interp_steps: Annotated[int, msgspec.Meta(ge=0, le=MAX_BLEND_CHUNKS)] = 0
    """Chunks from the old prompt to the new one; 0: at once."""
    image: bytes | None = None
    strength: Share | None = None
    action: Literal["reset"] | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    status: Literal["ready", "receipt", "note", "error", "ended"]
    code: str = ""
    message: str = ""
    change: str = ""
    """Which one a receipt is for."""
    state: str = ""
    chunk_index: int | None = None


def routes() -> list[BaseRoute]:
    async def session(websocket: WebSocket) -> None:
        await converse(websocket, Krea)

    return [WebSocketRoute("/session/{id}", session)]


class Krea(Dialect):
    first_message = "parameters"

    def __init__(self, hub: SessionHub, outbox: Outbox, limits: ClientLimits, client: ClientAccount | None = None) -> None:
        super().__init__(hub, outbox, limits, client)
        self._stream = hub.card.stream
        self._num_changes = 0
        outbox.put(Status(status="ready"))

    async def hear(self, data: str | bytes) -> None:
        try:
            fields = self._interpreter.read_msgpack(data)
            if self._interpreter.live:
                change, unknown = heed(fields, KreaChange)
                await self._change(change)
            else:
                parameters, unknown = heed(fields, KreaParameters)
                await self._start(parameters)
            if unknown:
                names = ", ".join(unknown)
                self._outbox.put(Status(status="note", message=f"{names}: means nothing here and was left out"))
        except MillstreamError as error:
            self._interpreter.refuse(error)

    def say(self, item: Any) -> list[str | bytes]:
        match item:
            case EncodedChunk(parts=parts):
                return list(parts)
            case Receipt():
                return _texts([item])
            case Applied(receipts=receipts):
                return _texts(receipts)
            case ErrorMessage(code=code, message=message, control_id=control_id):
                return [encode(Status(status="error", code=code, message=message, change=control_id))]
            case Noted(words=words):
                return [encode(Status(status="note", message=words))]
            case Ended(cause=cause, reason=reason):
                return [encode(Status(status="ended", code=cause, message=reason))]
            case Status():
                return [encode(item)]
        return []

    async def _start(self, asked: KreaParameters) -> None:
        takes_pictures = asked.webcam_mode or asked.image is not None or asked.strength is not None
        ask = Ask(
            prompt=asked.prompt,
            size=f"{asked.height or self._stream.height}x{asked.width or self._stream.width}",
            seed=asked.seed,
            steps=None if asked.num_denoising_steps is None else even_steps(asked.num_denoising_steps),
            noise_scale=asked.strength,
            input=takes_pictures,
        )
        if await self._interpreter.start(ask, "jpeg", max_chunks=asked.num_blocks) and asked.image is not None:
            await self._interpreter.show(asked.image)

    async def _change(self, change: KreaChange) -> None:
        if change.action == "reset":
            await self._interpreter.steer(Cut(id=self._name("reset")))
        if change.prompt is not None:
            mode: Literal["blend", "recompute"] = "blend" if change.interp_steps else "recompute"
            chunks = max(1, change.interp_steps)
            await self._interpreter.steer(SetPrompt(id=self._name("prompt"), prompt=change.prompt, mode=mode, chunks=chunks))
        if change.strength is not None:
            await self._interpreter.steer(SetNoiseScale(id=self._name("strength"), noise_scale=change.strength))
        if change.image is not None:
            await self._interpreter.show(change.image)

    def _name(self, what: str) -> str:
        self._num_changes += 1
        return f"{what}-{self._num_changes}"


def _texts(receipts: list[Receipt] | tuple[Receipt, ...]) -> list[str | bytes]:
    return [
        encode(Status(status="receipt", change=receipt.control_id, state=receipt.state, chunk_index=receipt.chunk_index))
        for receipt in receipts
        if receipt.control_id != END_ID
    ]
