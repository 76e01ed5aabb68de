"""Krea's realtime video: a WebSocket at `/session/{id}`, MessagePack in, JPEG pictures out.

    ready ── parameters ──► live ── prompts, pictures, resets ──► completed; the client closes when it has
    played all

The id in the address is the client's own and opens nothing here but its own film (`krea_films.py`). Whatever
is not a picture is a JSON text. Its page shows an `error`, takes a `session_id` for the end, and shows any
other `status` as it is: in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from millstream.core.client_messages import Ask, ProtocolError
from millstream.core.controls import MAX_BLEND_CHUNKS, Cut, Receipt, SetNoiseScale, SetPrompt, SetSeed
from millstream.core.errors import MillstreamError
from millstream.core.schedule import even_steps
from millstream.core.server_messages import ErrorMessage
from millstream.server.access.budgets import ClientAccount
from millstream.server.access.limits import ClientLimits
from millstream.server.dialects.dialect import Dialect
from millstream.server.dialects.interpreter import END_ID, GOOD_ENDS, heed
from millstream.server.dialects.krea_films import Films, KreaError
from millstream.server.dialects.pictures import from_base64, picture_of
from millstream.server.protocol.messages import encode
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.outbox import EncodedChunk, Outbox
from millstream.server.transport.websocket_loop import converse
from millstream.serving.notices import Applied, Ended, Noted

Side = Annotated[int, msgspec.Meta(ge=1, le=2**16)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

LINGER_S = 600.0
"""For the page to play what it has buffered: it drops that when the connection closes."""
BLEND_CHUNKS = 4
"""Chunks of a blend where a new prompt names none."""
MAX_NAME = 128
"""Most letters of a session's name that are kept."""
NO_REQUEST = "00000000-0000-0000-0000-000000000000"
"""Request id of a picture that no request of the client's is known for."""
FROM_TEXT = (
    "this session was started from text and takes no pictures; send webcam_mode with the first message"
)


class KreaParameters(msgspec.Struct, frozen=True, kw_only=True):
    """The first message."""

    prompt: str
    width: Side | None = None
    height: Side | None = None
    seed: int | None = None
    num_blocks: Annotated[int, msgspec.Meta(ge=1, le=2**31)] | None = None
    """Number of chunks; without it there is no end."""
    num_denoising_steps: Annotated[int, msgspec.Meta(ge=1, le=16)] | None = None
    strength: Share | None = None
    """Share of noise in pictures that are sent; below 1 announces some, as 1 leaves nothing of them."""
    image: Any = None
    """Bytes as they are, or a text in base64, as a page's canvas gives it."""
    start_frame: Any = None
    """Picture to begin from, alike."""
    webcam_mode: bool = False

    @property
    def takes_pictures(self) -> bool:
        return self.webcam_mode or self.image is not None or (self.strength is not None and self.strength < 1)


class KreaChange(msgspec.Struct, frozen=True, kw_only=True):
    """Any message after it."""

    prompt: str | None = None
    interp_steps: Annotated[int, msgspec.Meta(ge=0, le=MAX_BLEND_CHUNKS)] = BLEND_CHUNKS
    """Chunks from the old prompt to the new one; 0: at once."""
    seed: int | None = None
    image: Any = None
    strength: Share | None = None
    timestamp: float | None = None
    """When a picture was taken, for the server's log: theirs alone has one."""
    action: Literal["reset"] | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    status: str
    """Text that the page shows."""
    worker: str = ""
    kind: Literal["", "receipt", "note"] = ""
    change: str = ""
    """Change that a receipt is for."""
    state: str = ""
    chunk_index: int | None = None


class Completed(msgspec.Struct, frozen=True, kw_only=True):
    session_id: str
    """The client's own."""
    status: Literal["completed"] = "completed"


def routes(films: Films) -> list[BaseRoute]:
    async def session(websocket: WebSocket) -> None:
        packs = websocket.query_params.get("fmt") == "msgpack"
        await converse(
            websocket, partial(Krea, name=websocket.path_params["id"][:MAX_NAME], packs=packs, films=films)
        )

    return [WebSocketRoute("/session/{id}", session)]


class Krea(Dialect):
    first_message = "parameters"

    def __init__(
        self,
        hub: SessionHub,
        outbox: Outbox,
        limits: ClientLimits,
        client: ClientAccount | None = None,
        *,
        name: str = "",
        packs: bool = False,
        films: Films | None = None,
    ) -> None:
        """`name` is the client's own of its session; with `packs` pictures come in MessagePack too."""
        super().__init__(hub, outbox, limits, client)
        self._client = client or ClientAccount()
        self._own_name = name
        self._packs = packs
        self._films = films
        self._stream = hub.card.stream
        self._num_changes = 0
        self._sent: dict[str, object] = {}
        """Current prompt, seed and strength: the page sends some of them again with every picture."""
        self._completed = False
        outbox.put(Status(status="ready", worker=hub.card.name))

    @property
    def linger_s(self) -> float:
        return LINGER_S if self._completed else 0.0

    async def on_message(self, data: str | bytes) -> None:
        try:
            fields = await self._interpreter.read_msgpack(data)
            if self._interpreter.live:
                change, unknown = heed(fields, KreaChange)
                await self._change(change)
            else:
                parameters, unknown = heed(fields, KreaParameters)
                await self._start(parameters)
            if self._interpreter.live and (fresh := self._interpreter.unsaid(unknown)):
                self._note(f"{', '.join(fresh)}: means nothing here and was left out")
        except MillstreamError as error:
            self._interpreter.refuse(error)

    def encode(self, item: Any) -> Sequence[str | bytes]:
        match item:
            case EncodedChunk(parts=parts) if self._packs:
                return [msgspec.msgpack.encode({"image": part, "request_id": NO_REQUEST}) for part in parts]
            case EncodedChunk(parts=parts):
                return list(parts)
            case Receipt():
                return _texts([item])
            case Applied(receipts=receipts):
                return _texts(receipts)
            case ErrorMessage(code=code, message=message, control_id=control_id):
                return [encode(KreaError(error=message, code=code, change=control_id))]
            case Noted(words=words):
                return [encode(Status(status=words, kind="note"))]
            case Ended(cause=cause, reason=reason) if cause not in GOOD_ENDS:
                return [encode(KreaError(error=reason, code=cause))]
            case Ended(cause=cause):
                self._completed = (
                    cause != "closed"
                )  # somebody ended it, or the server stops: there is nothing to wait for
                return [encode(Completed(session_id=self._own_name))]
            case Status():
                return [encode(item)]
        return []

    async def _start(self, asked: KreaParameters) -> None:
        ask = Ask(
            prompt=asked.prompt,
            size=f"{asked.height or self._stream.height}x{asked.width or self._stream.width}",
            seed=asked.seed,
            steps=None if asked.num_denoising_steps is None else even_steps(asked.num_denoising_steps),
            noise_scale=asked.strength if asked.takes_pictures else None,
            input=asked.takes_pictures,
            image=await picture_of(self._interpreter, "start_frame", asked.start_frame, self._note),
        )
        picture = None if asked.image is None else await self._picture_in(asked.image)
        if not await self._interpreter.start(ask, "jpeg", max_chunks=asked.num_blocks):
            return
        self._sent = {"prompt": asked.prompt, "seed": asked.seed, "strength": asked.strength}
        live_session = self._interpreter.conversation.live_session
        assert live_session is not None, "it started without its session"
        if self._films is not None:
            self._films.begin(self._hub, self._client, self._own_name, live_session)
        if picture is not None:
            await self._interpreter.show(picture)
        elif asked.takes_pictures:
            self._note("waiting for the camera: the stream begins with its first pictures")

    async def _change(self, change: KreaChange) -> None:
        if change.action == "reset":
            await self._interpreter.steer(Cut(id=self._name("reset")))
        if self._is_new("prompt", change.prompt):
            assert change.prompt is not None
            mode: Literal["blend", "recompute"] = "blend" if change.interp_steps else "recompute"
            chunks = max(1, change.interp_steps)
            await self._steer(
                "prompt", SetPrompt(id=self._name("prompt"), prompt=change.prompt, mode=mode, chunks=chunks)
            )
        if self._is_new("seed", change.seed):
            assert change.seed is not None
            await self._steer("seed", SetSeed(id=self._name("seed"), seed=change.seed))
        await self._look(change)

    async def _look(self, change: KreaChange) -> None:
        """Apply what a change says about pictures; where the session takes none, send one note of it."""
        live_session = self._interpreter.conversation.live_session
        assert live_session is not None, "a change came before there was a session"
        if live_session.request.feed is None:
            if (
                change.image is not None or self._is_new("strength", change.strength)
            ) and self._interpreter.unsaid(("image",)):
                self._note(FROM_TEXT)
            return
        if self._is_new("strength", change.strength):
            assert change.strength is not None
            control = SetNoiseScale(id=self._name("strength"), noise_scale=change.strength)
            await self._steer("strength", control)
        if change.image is not None:
            await self._interpreter.show(await self._picture_in(change.image))

    async def _picture_in(self, image: Any) -> bytes:
        if isinstance(image, bytes):
            return image
        if not isinstance(image, str):
            raise ProtocolError("bad_message", "image is a picture's bytes, or a text in base64")
        return await self._interpreter.read(len(image), lambda: from_base64(image))

    def _is_new(self, what: str, value: object) -> bool:
        return value is not None and value != self._sent.get(what)

    async def _steer(self, what: str, control: SetPrompt | SetSeed | SetNoiseScale) -> None:
        """Remembered where it was not refused."""
        await self._interpreter.steer(control)
        if self.refusals == 0:
            self._sent[what] = getattr(control, "noise_scale" if what == "strength" else what)

    def _note(self, words: str) -> None:
        self._outbox.put(Status(status=words, kind="note"))

    def _name(self, what: str) -> str:
        self._num_changes += 1
        return f"{what}-{self._num_changes}"


def _texts(receipts: Sequence[Receipt]) -> list[str]:
    return [
        encode(
            Status(
                status=f"{receipt.control_id}: {receipt.state} "
                f"{'for' if receipt.state == 'queued' else 'at'} chunk "
                f"{receipt.chunk_index}",
                kind="receipt",
                change=receipt.control_id,
                state=receipt.state,
                chunk_index=receipt.chunk_index,
            )
        )
        for receipt in receipts
        if receipt.control_id != END_ID
    ]
