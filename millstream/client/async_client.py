"""A client for programs with an event loop: one connection, at most one session.

A task reads the socket for as long as the connection lasts, so that receipts come whether or not anybody
takes chunks. Questions are asked one at a time; the next fitting message, or the next error, is the answer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from millstream.client.chunk import ChunkBuffer, ClientChunk, StillFormat, jpeg
from millstream.client.controls import SentControls
from millstream.client.following import FollowedConnection
from millstream.client.reading import Heard
from millstream.core.client_messages import (
    VERSION,
    AnyClientMessage,
    Ask,
    Attach,
    DraftPrompt,
    End,
    Fork,
    Keep,
    Opening,
    Preview,
    Record,
    Restore,
    Rewind,
    Save,
    Start,
    Steer,
    View,
)
from millstream.core.conditions import ImageMode
from millstream.core.controls import (
    AnyControl,
    Control,
    Receipt,
    SetActions,
    SetCamera,
    SetImage,
    SetPrompt,
    Switch,
)
from millstream.core.errors import ClientError, MillstreamError
from millstream.core.server_messages import (
    BranchKept,
    EndedMessage,
    ErrorMessage,
    Forked,
    Hello,
    LiveMessage,
    NoteMessage,
    Previews,
    RateMessage,
    ReceiptMessage,
    RecordingMessage,
    Rewound,
    Saved,
    ServerMessage,
    Stats,
    WaitingMessage,
)

PATIENCE_S = 60.0
"""With a server that was asked something."""
MAX_NOTES = 32
ACTIONS_ID = "actions"
"""Id of all controls that say which keys are held: those that wait for one chunk become one."""
FAILURES = ("failed", "refused")
"""Causes of an end that nobody asked for."""
Answer = TypeVar("Answer", bound=ServerMessage)


@asynccontextmanager
async def connect_async(
    url: str, *, key: str | None = None, format: StillFormat = "jpeg", tls: ssl.SSLContext | None = None
) -> AsyncIterator[AsyncClient]:
    """A client for as long as the block lasts. A session that it steers ends with it, unless it has said
    `detach`."""
    if format not in (known := get_args(StillFormat)):
        raise ClientError(f"format must be one of {', '.join(known)}, got {format!r}")
    try:
        connection = await FollowedConnection.open(url, key=key, tls=tls)
    except MillstreamError as error:
        raise ClientError(str(error)) from None
    client = AsyncClient(connection, format)
    reading = asyncio.create_task(client.read())
    try:
        await client.greet()
        yield client
    finally:
        with suppress(ClientError):  # whatever it was, it is over
            await client.end_owned()
        await connection.close()
        await reading


class AsyncClient:
    def __init__(self, connection: FollowedConnection, format: StillFormat) -> None:
        self.hello: Hello
        """The model, its defaults, the server's limits."""
        self.live: LiveMessage | None = None
        """The session: its id, the link for viewers, its configuration. None before there is one."""
        self.waiting: WaitingMessage | None = None
        """Last message about its place in line."""
        self.ended: EndedMessage | None = None
        self.stats: Stats | None = None
        """Statistics of the stream, new once a second."""
        self.notes = deque[str](maxlen=MAX_NOTES)
        """Notes from the server that answer no message; the oldest are dropped first."""
        self._connection = connection
        self._formats = (format,)
        self._buffer = ChunkBuffer()
        self._controls = SentControls()
        self._asking = asyncio.Lock()
        self._wanted: type[ServerMessage] | None = Hello
        self._answer: asyncio.Future[ServerMessage] = asyncio.get_running_loop().create_future()
        self._patience: asyncio.TimerHandle | None = None
        """With the server's answer; with a line there is no end of it."""
        self._news = asyncio.Event()
        """A chunk has come, or none will come any more."""
        self._broken: ClientError | None = None
        self._detached = False

    async def start(self, ask: str | Ask, *, image: bytes | Path | None = None) -> LiveMessage:
        """A session of one's own: a prompt, or all that can be said about one. It begins from `image`, a
        picture's file or its bytes."""
        asked = Ask(prompt=ask) if isinstance(ask, str) else ask
        if image is not None:
            asked = msgspec.structs.replace(asked, image=await _file(image))
        fields = {name: getattr(asked, name) for name in asked.__struct_fields__}
        return await self._open(Start(version=VERSION, formats=self._formats, **fields))

    async def attach(self, session: str) -> LiveMessage:
        """Come back to a session of one's own."""
        return await self._open(Attach(version=VERSION, session=session, formats=self._formats))

    async def view(self, view: str) -> LiveMessage:
        """Watch somebody's session by its view link; it cannot be steered."""
        return await self._open(View(version=VERSION, view=view, formats=self._formats))

    async def restore(self, snapshot: str) -> LiveMessage:
        """Go on with a saved session, as a new one."""
        return await self._open(Restore(version=VERSION, snapshot=snapshot, formats=self._formats))

    async def steer(self, control: str | AnyControl, *, at_chunk: int | None = None) -> Receipt:
        """Ask for a change; a text is a new prompt. The receipt says from which chunk on it can apply."""
        asked = SetPrompt(prompt=control) if isinstance(control, str) else control
        if not isinstance(asked, Control):
            raise ClientError(f"steer takes a text or a control of millstream.core.controls, got {control!r}")
        named = msgspec.structs.replace(asked, id=asked.id or self._controls.next_id())
        self._controls.sent(named.id)
        try:
            answer = await self._ask(Steer(control=named, at_chunk=at_chunk), ReceiptMessage)
        except ClientError:
            self._controls.forget(named.id)
            raise
        return Receipt(control_id=answer.control_id, state=answer.state, chunk_index=answer.chunk_index)

    async def image(
        self,
        image: bytes | Path,
        *,
        mode: ImageMode = "cut",
        chunks: int = 4,
        fit: Literal["crop", "pad"] = "crop",
    ) -> Receipt:
        """Go on from a picture's file, or its bytes: at once, or by a blend over `chunks` chunks. What became
        of the file is in `notes`."""
        return await self.steer(SetImage(image=await _file(image), mode=mode, chunks=chunks, fit=fit))

    async def actions(
        self,
        keys: Sequence[str] = (),
        *,
        tapped: Sequence[str] = (),
        look: tuple[float, float] = (0.0, 0.0),
        axes: Sequence[float] = (),
    ) -> None:
        """Say which keys are held from now on, and how many degrees the view was turned by since the last
        time. Does not wait for an answer; what the server does not take is in `notes`."""
        now = SetActions(id=ACTIONS_ID, keys=tuple(keys), tapped=tuple(tapped), look=look, axes=tuple(axes))
        await self._say_now(Steer(control=now))

    async def camera(
        self,
        motion: Sequence[float] = (),
        *,
        path: Sequence[Sequence[float]] = (),
        lens: tuple[float, float, float, float] | None = None,
    ) -> Receipt:
        """Move the camera: 12 numbers for every latent frame from now on, or for each of the next ones."""
        moved = SetCamera(motion=tuple(motion), path=tuple(tuple(each) for each in path), lens=lens)
        return await self.steer(moved)

    async def draft(self, control: str | SetPrompt | None) -> None:
        """Send the prompt that is being typed and may be asked for next: an idle server makes it ahead.
        Changes nothing. None: no prompt is being typed."""
        asked = SetPrompt(prompt=control) if isinstance(control, str) else control
        await self._say_now(DraftPrompt(control=asked))

    async def send_frame(self, frame: bytes | NDArray[np.uint8]) -> None:
        """Send the next frame to a session that was asked for with `input`: an encoded picture, or an array
        (H, W, 3). A server queues 48 and drops the oldest; one that it cannot use is reported in `notes`."""
        try:
            await self._connection.say_text(frame if isinstance(frame, bytes) else jpeg(frame))
        except MillstreamError as error:
            raise ClientError(str(error)) from None

    async def preview(self, *prompts: str, mode: Switch = "recompute") -> Previews:
        """Small pictures (JPEG) of what the stream could become, of these prompts or of some that the server
        suggests. Changes nothing; those that the server found no time for have no bytes, and a note says
        why."""
        return await self._ask(Preview(prompts=prompts, mode=mode), Previews)

    async def applied(self, receipt: Receipt) -> Receipt:
        """Wait until that change is in force: the receipt says at which chunk."""
        return await self._controls.applied(receipt.control_id)

    async def chunks(self, count: int | None = None) -> AsyncIterator[ClientChunk]:
        """The next so many, or all until the session ends. A session that is paused makes one wait."""
        taken = 0
        while (count is None or taken < count) and (chunk := await self.next_chunk()) is not None:
            taken += 1
            yield chunk

    async def next_chunk(self) -> ClientChunk | None:
        """None once the session has ended. Raises if it failed, or the connection did."""
        while True:
            self._news.clear()
            if (chunk := self._buffer.pop()) is not None:
                return chunk
            self._refuse_when_broken()
            if self.ended is not None:
                return None
            if self.live is None and not self._asking.locked():
                raise ClientError("there is no session yet: start, attach, view or restore first")
            await self._news.wait()

    async def save(self) -> Saved:
        """Keep the session's state on the server; `restore` takes the name it answers with."""
        return await self._ask(Save(), Saved)

    async def fork(self, at_chunk: int | None = None) -> Forked:
        """A branch as it is now, or before an earlier chunk that is kept: another client attaches to the
        session it names."""
        return await self._ask(Fork(at_chunk=at_chunk), Forked)

    async def rewind(self, chunk: int) -> Rewound:
        """Go back to before a chunk that is kept. Chunks that were not taken yet are let go: the next is of
        the new path."""
        return await self._ask(Rewind(chunk=chunk), Rewound)

    async def keep(self) -> BranchKept:
        """End all other branches that this session was forked with."""
        return await self._ask(Keep(), BranchKept)

    async def record(self, on: bool) -> RecordingMessage:
        """Begin or end a recording (mp4); it answers with the file's address. One that begins lets go of
        chunks that were not taken: the next one is the first in the film."""
        return await self._ask(Record(on=on), RecordingMessage)

    async def stop(self) -> EndedMessage:
        """End the session. Chunks that had come can still be taken."""
        return await self._ask(End(), EndedMessage)

    def detach(self) -> None:
        """Let the session stand when this client leaves, for `attach`; the server keeps it for a while."""
        self._detached = True

    @property
    def dropped(self) -> int:
        """Chunks that nobody took in time."""
        return self._buffer.dropped

    async def greet(self) -> None:
        """The server speaks first."""
        async with self._asking:
            with self._patiently():
                await self._answered(Hello)

    async def end_owned(self) -> None:
        """End what would otherwise stand until the server tires of it."""
        owns = self.live is not None and self.live.session
        if owns and not self._detached and self.ended is None and self._broken is None:
            await self.stop()

    async def read(self) -> None:
        """Hear everything until the connection is over."""
        try:
            while True:
                self._handle(await self._connection.hear())
        except MillstreamError as error:
            if self.ended is None:
                self._fail(ClientError(str(error)))
        finally:
            if self.ended is None and self._broken is None:
                self._fail(ClientError("the connection is not read any more"))  # so that nobody waits in vain

    async def _say_now(self, message: AnyClientMessage) -> None:
        """Say what is not waited for."""
        self._refuse_when_broken()
        try:
            await self._connection.say(message)
        except MillstreamError as error:
            raise ClientError(str(error)) from None

    async def _open(self, opening: Opening) -> LiveMessage:
        return await self._ask(opening, LiveMessage)

    async def _ask(self, message: AnyClientMessage, wanted: type[Answer]) -> Answer:
        """Shielded: who stops waiting must not leave an answer behind for the next question."""
        return await asyncio.shield(self._converse(message, wanted))

    async def _converse(self, message: AnyClientMessage, wanted: type[Answer]) -> Answer:
        async with self._asking:
            self._refuse_when_broken()
            if self.ended is not None:
                raise ClientError(f"the session has ended: {self.ended.reason}", code=self.ended.cause)
            self._wanted = wanted
            self._answer = asyncio.get_running_loop().create_future()
            with (
                self._patiently()
            ):  # from before it is said: the answer may be here while that is still awaited
                try:
                    await self._connection.say(message)
                except MillstreamError as error:
                    raise ClientError(str(error)) from None
                return await self._answered(wanted)

    @contextmanager
    def _patiently(self) -> Iterator[None]:
        late = ClientError(f"the server did not answer within {PATIENCE_S:g} s")
        self._patience = asyncio.get_running_loop().call_later(PATIENCE_S, self._fail, late)
        try:
            yield
        finally:
            self._patience.cancel()
            self._wanted = None

    async def _answered(self, wanted: type[Answer]) -> Answer:
        answer = await self._answer
        assert isinstance(answer, wanted), f"{answer!r} answered a question for {wanted}"
        return answer

    def _handle(self, heard: Heard) -> None:
        match heard:
            case ClientChunk():
                assert self.live is not None, "pictures before a session"
                size = int(self.live.config["height"]), int(self.live.config["width"])
                self._buffer.put(replace(heard, size=size))
                self._news.set()
            case ReceiptMessage(control_id=control_id) if control_id == ACTIONS_ID:
                pass  # one applies at nearly every chunk
            case ReceiptMessage(state="applied"):
                self._controls.has_applied(
                    Receipt(control_id=heard.control_id, state=heard.state, chunk_index=heard.chunk_index)
                )
            case ErrorMessage(control_id=control_id) if self._wanted is not None and control_id != ACTIONS_ID:
                self._refuse(ClientError(heard.message, code=heard.code, offer=heard.offer))
            case ErrorMessage(message=words) | NoteMessage(message=words) | RateMessage(note=words):
                self.notes.append(words)
            case Hello():
                self.hello = heard
                self._resolve(heard)
            case LiveMessage():
                self.live = heard
                self._resolve(heard)
            case Stats():
                self.stats = heard
            case WaitingMessage():
                self.waiting = heard
                if self._patience is not None:
                    self._patience.cancel()
            case EndedMessage():
                self._end(heard)
            case Rewound() | RecordingMessage(on=True):
                self._buffer.clear()  # what came before it is of a path that was left, or not in the film
                self._resolve(heard)
            case ServerMessage():
                self._resolve(heard)

    def _refuse_when_broken(self) -> None:
        if self._broken is not None:
            raise self._broken.with_traceback(None)  # it may be raised again and again

    def _resolve(self, answer: ServerMessage) -> None:
        if self._wanted is not None and isinstance(answer, self._wanted) and not self._answer.done():
            self._answer.set_result(answer)

    def _refuse(self, error: ClientError) -> None:
        if self._wanted is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _end(self, ended: EndedMessage) -> None:
        self.ended = ended
        self._resolve(ended)
        error = ClientError(f"the session has ended: {ended.reason}", code=ended.cause)
        if ended.cause in FAILURES:
            self._broken = error
        self._finish(error)

    def _fail(self, error: ClientError) -> None:
        self._broken = error
        self._finish(error)

    def _finish(self, error: ClientError) -> None:
        self._refuse(error)
        self._controls.fail(error)
        self._news.set()


async def _file(image: bytes | Path) -> bytes:
    """Return a picture's file. Raises what is wrong with it."""
    if isinstance(image, bytes):
        return image
    try:
        return await asyncio.to_thread(Path(image).read_bytes)
    except OSError as error:
        raise ClientError(f"cannot read {image}: {error.strerror or error}") from None
