"""State of one client of the native protocol: what it may send next, and what happens then. Knows no sockets:
messages in, an outbox out.

    new ── start, restore, attach ──► owner ──┐
     └──── view ────────────────────► viewer ─┴──► ended

Whatever a client says wrong is answered with one `error`; its session and everybody else's go on.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Literal

from millstream.core.client_messages import (
    AnyClientMessage,
    Attach,
    DraftPrompt,
    End,
    Fork,
    Format,
    Keep,
    Opening,
    Ping,
    Preview,
    ProtocolError,
    Record,
    Restore,
    Rewind,
    Save,
    Start,
    StartOutput,
    Steer,
    StopOutput,
    View,
)
from millstream.core.controls import AnyControl, Receipt, SetActions, SetCamera, SetImage
from millstream.core.errors import MillstreamError, Overloaded, UnknownSession
from millstream.core.server_messages import (
    BranchKept,
    EndedMessage,
    ErrorMessage,
    Forked,
    Hello,
    LiveMessage,
    NoteMessage,
    OpeningHeader,
    OutputsMessage,
    Pong,
    Previews,
    RateMessage,
    ReceiptMessage,
    RecordingMessage,
    Rewound,
    Saved,
    ServerMessage,
    WaitingMessage,
)
from millstream.server.access.budgets import ClientAccount
from millstream.server.access.limits import ClientLimits, TokenBucket
from millstream.server.protocol.camera import read_frame
from millstream.server.protocol.messages import (
    choose_format,
    code_of,
    decode,
    defaults_of,
    encode,
    picture_bytes,
    with_header,
)
from millstream.server.sessions.branches import Went
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.live_session import LiveSession
from millstream.server.sessions.model_card import ModelCard
from millstream.server.sessions.outbox import EncodedChunk, Outbox
from millstream.server.sessions.recordings import RecordingFailed
from millstream.server.sessions.viewers import OpeningBytes, Viewer
from millstream.serving.notices import SHUTTING_DOWN, Applied, Ended, Live, Noted, Rated, Waiting
from millstream.serving.session_entry import ViewerPosition

State = Literal["new", "owner", "viewer"]


class Conversation:
    linger_s = 0.0

    def __init__(
        self, hub: SessionHub, outbox: Outbox, limits: ClientLimits, client: ClientAccount | None = None
    ) -> None:
        self.state: State = "new"
        self.refusals = 0
        """Number of messages refused in a row."""
        self._hub = hub
        self._outbox = outbox
        self._limits = limits
        self._client = client or ClientAccount()
        self._messages = TokenBucket(limits.messages_per_s, limits.messages_per_s * limits.burst_s)
        self._controls = TokenBucket(limits.controls_per_s, limits.controls_per_s * limits.burst_s)
        self._frames = TokenBucket(limits.frames_per_s, limits.frames_per_s * limits.burst_s)
        self._live_session: LiveSession | None = None
        self._viewer: Viewer | None = None
        outbox.put(hello(hub.card, limits))

    async def on_message(self, said: str | bytes | AnyClientMessage) -> None:
        """One message; an error is an answer too. A dialect has counted and read what it passes on."""
        control_id = ""
        try:
            if isinstance(said, bytes):
                await self._take_frame(said)
            else:
                message = await self._read(said) if isinstance(said, str) else said
                control_id = (
                    message.control.id[: self._limits.max_id_length] if isinstance(message, Steer) else ""
                )
                await self._answer(message)
            self.refusals = 0
        except MillstreamError as error:
            self.refusals += 1
            if isinstance(error, ProtocolError):
                control_id = error.control_id or control_id
            code = code_of(error, "bad_message" if self.state == "new" else "bad_control")
            offer = _offer(error, self.state)
            self._outbox.put(ErrorMessage(code=code, message=str(error), control_id=control_id, offer=offer))

    @property
    def live_session(self) -> LiveSession | None:
        """Session that the client steers or watches; None before it does."""
        return self._live_session

    @property
    def patience_s(self) -> float | None:
        """Seconds to wait for the next message; None, for ever, once it knows what the client wants."""
        return self._limits.hello_s if self.state == "new" else None

    def waited(self) -> bool:
        self._outbox.put(
            ErrorMessage(code="bad_state", message=f"nothing was asked for within {self._limits.hello_s:g} s")
        )
        return False

    def on_disconnect(self) -> None:
        """Leave the session as the connection ends; the session and its recording go on."""
        live_session = self._live_session
        if live_session is None or self._viewer is None:
            return
        live_session.remove_viewer(self._viewer)
        if live_session.keys.holder is self:
            self._hub.spawn(live_session.release_keys(self))

    def encode(self, item: Any) -> str | bytes | list[str]:
        """An item of the outbox as messages."""
        match item:
            case EncodedChunk():
                return picture_bytes(item)
            case OpeningBytes(data=data):
                return with_header(OpeningHeader(), data)
            case Applied(receipts=receipts):
                return [encode(_receipt(receipt)) for receipt in receipts]
            case Receipt():
                return encode(_receipt(item))
            case Live(note=note):
                return encode(self._live(note))
            case Rated(note=note, fps=fps):
                assert self._live_session is not None, "a rate without a session"
                return encode(RateMessage(fps=fps, lead_s=self._live_session.request.lead_at(fps), note=note))
            case Waiting(position=position, expected_wait_s=wait, reason=reason):
                session = (
                    self._live_session.session_id if self._live_session and self.state == "owner" else ""
                )
                return encode(
                    WaitingMessage(position=position, expected_wait_s=wait, reason=reason, session=session)
                )
            case Noted(words=words):
                return encode(NoteMessage(message=words))
            case RecordingFailed(name=name):
                return [encode(_recording(False, name))] if self.state == "owner" else []
            case Ended(cause=cause, reason=reason):
                kept = (
                    self.state == "owner"
                    and item == SHUTTING_DOWN
                    and self._hub.limits.keep_chunks is not None
                )
                return encode(EndedMessage(cause=cause, reason=reason, kept=kept))
            case _:
                assert isinstance(item, ServerMessage), f"an outbox held {item!r}"
                return encode(item)

    async def _read(self, text: str) -> AnyClientMessage:
        self._messages.spend("messages")
        self._limits.check_message(text)
        if self.state == "viewer" and len(text) > self._limits.max_text_bytes:
            self._own()  # raises: a picture of one who may not steer is not even read
        return await self._hub.reader.read(self._client, len(text), lambda: decode(text, self._limits))

    async def _answer(self, message: AnyClientMessage) -> None:
        """Do what a message asks; drop it where the session has moved, as its client asks again there."""
        if isinstance(message, Ping):
            self._outbox.put(Pong(t=message.t))
        elif self._live_session is None:
            await self._do(message)
        else:
            async with self._live_session.handoff.answering() as stays:
                if stays:
                    await self._do(message)

    async def _do(self, message: AnyClientMessage) -> None:
        match message:
            case Start():
                await self._start(message)
            case Attach(session=session, formats=formats):
                self._refuse_twice()
                self._client.check_own(session)
                format = choose_format(formats)
                has = ViewerPosition(message.seen, time.monotonic() + message.ahead_s)
                found = await self._hub.restorer.attach(
                    session, self._client.key, client=self._client.name, has=has
                )
                self._watch(found, format, "owner", message)
                self._hub.spawn(found.release_stale_keys())
            case View(view=view, formats=formats):
                self._refuse_twice()
                self._client.check_view(view)
                self._watch(
                    self._hub.live_sessions.find_view(view), choose_format(formats), "viewer", message
                )
            case Steer(control=control, at_chunk=at_chunk):
                await self._steer(control, at_chunk, again=message.again)
            case DraftPrompt(control=draft):
                self._own().draft(draft)
            case Preview():
                live_session = self._own()
                self._client.previews.spend("previews")
                self._hub.spawn(
                    self._preview(live_session, message)
                )  # whatever is said meanwhile does not wait for it
            case End():
                self._own().end()
            case Record(on=on):
                await self._record(self._own(), on)
            case Save():
                live_session = self._own()
                self._client.saves.spend("saves")
                kept = await live_session.save()
                self._outbox.put(Saved(snapshot=kept.name, bytes=kept.num_bytes))
            case StartOutput(url=url, kbps=kbps):
                self._client.offers.spend("outputs")
                self._hub.outputs.start(self._own(), url, kbps)
                self._tell_outputs(self._own())
            case StopOutput(output=output):
                self._hub.outputs.stop(self._own(), output)
                self._tell_outputs(self._own())
            case Fork(at_chunk=at_chunk):
                self._controls.spend("controls")
                branch, went = await self._hub.branches.fork(self._own(), at_chunk)
                self._outbox.put(Forked(session=branch.session_id, view=branch.view_id, **went.as_answer()))
            case Rewind(chunk=chunk):
                self._controls.spend("controls")
                await self._hub.branches.rewind(self._own(), chunk, self._tell_rewound)
            case Keep():
                self._outbox.put(BranchKept(ended=self._hub.branches.end_others(self._own())))
            case Restore(snapshot=name, formats=formats):
                self._refuse_twice()
                format = choose_format(formats)
                client = self._client
                live_session = await self._hub.restorer.restore(
                    name, client=client.name, key=client.key, session_id=client.session_to_open()
                )
                self._watch(live_session, format, "owner", message)

    async def _steer(self, control: AnyControl, at_chunk: int | None, *, again: bool) -> None:
        if not isinstance(control, SetActions | SetCamera):  # which count as messages only
            self._controls.spend("controls")
        live_session = self._own()
        self._limits.check_id(control.id)
        if isinstance(control, SetImage):
            self._spend_picture(control.image)
        known = live_session.receipts.find(control.id) if again else None
        self._outbox.put(known or await live_session.control(control, at_chunk=at_chunk, by=self))

    async def _start(self, ask: Start) -> None:
        self._refuse_twice()
        format = choose_format(ask.formats)
        client = self._client
        self._spend_picture(ask.image)
        live_session = await self._hub.open_asked(
            ask, client=client.name, key=client.key, session_id=client.session_to_open()
        )
        self._watch(live_session, format, "owner", ask)

    def _spend_picture(self, image: bytes) -> None:
        if image:
            self._limits.check_picture(image)
            self._client.images.spend("pictures")

    def _tell_rewound(self, went: Went) -> None:
        self._outbox.put(Rewound(**went.as_answer()))

    async def _record(self, live_session: LiveSession, on: bool) -> None:
        """A recording begins between two chunks: its film has those that the client gets after the answer,
        and no other."""
        if not on:
            self._outbox.put(_recording(False, await live_session.recordings.stop_asked()))
            return
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def begin() -> None:
            if begun.cancelled():
                return  # the client has gone meanwhile
            try:
                self._outbox.put(_recording(True, live_session.start_recording()))
                begun.set_result(None)
            except MillstreamError as error:
                begun.set_exception(error)

        live_session.between_chunks(begin)
        await begun

    async def _preview(self, live_session: LiveSession, ask: Preview) -> None:
        try:
            made = await live_session.preview(ask.prompts, ask.mode)
            self._outbox.put(Previews(futures=made.futures, note=made.note))
        except MillstreamError as error:
            self._outbox.put(ErrorMessage(code=code_of(error, "bad_control"), message=str(error)))

    def _watch(self, live_session: LiveSession, format: Format, state: State, opening: Opening) -> None:
        seen = opening.seen if isinstance(opening, (Attach, View)) else -1
        self._viewer = live_session.join(
            format, self._outbox, owner=state == "owner", follows=opening.follow, seen=seen
        )
        self._live_session = live_session
        self.state = state
        if state == "viewer":
            self._viewer.go_along = self._go_along
        if state == "owner" and self._hub.outputs.infos(live_session):
            self._tell_outputs(live_session)

    def _go_along(self, kept: LiveSession) -> None:
        """Watch the branch that its owner goes on with; the one it watches is about to end. Where there is no
        room, it is told of the end."""
        old = self._live_session
        viewer = self._viewer
        assert old is not None
        assert viewer is not None
        with suppress(Overloaded, UnknownSession):
            self._viewer = kept.join(viewer.format, self._outbox, follows=viewer.follows)
            self._viewer.go_along = self._go_along
            self._live_session = kept
            old.remove_viewer(viewer)

    def _tell_outputs(self, live_session: LiveSession) -> None:
        self._outbox.put(OutputsMessage(outputs=self._hub.outputs.infos(live_session)))

    def _refuse_twice(self) -> None:
        if self.state != "new":
            raise ProtocolError("bad_state", "this connection has its session already; open another one")

    def _own(self) -> LiveSession:
        if self.state == "new" or self._live_session is None:
            raise ProtocolError("bad_state", "say start, attach, view or restore first")
        if self.state == "viewer":
            raise ProtocolError("read_only", "a view link only shows the session; its owner steers it")
        return self._live_session

    async def _take_frame(self, data: bytes) -> None:
        self._frames.spend("frames")
        live_session = self._own()
        feed = live_session.request.feed
        if feed is None or not live_session.request.takes_frames:
            raise ProtocolError("bad_state", 'this session takes no frames; start one with "input": true')
        if len(data) > self._limits.max_frame_bytes:
            raise ProtocolError(
                "too_large", f"a frame may have {self._limits.max_frame_bytes} bytes, got {len(data)}"
            )
        loop = asyncio.get_running_loop()
        limit = self._limits.max_frame_pixels
        frame = await loop.run_in_executor(
            self._hub.pool, lambda: read_frame(data, feed.size, max_pixels=limit)
        )
        live_session.push(frame)

    def _live(self, note: str) -> LiveMessage:
        live_session = self._live_session
        viewer = self._viewer
        assert live_session is not None
        assert viewer is not None
        is_owner = self.state == "owner"
        recording = live_session.recordings.active if is_owner else None
        return LiveMessage(
            session=live_session.session_id if is_owner else "",
            view=live_session.view_id,
            format=viewer.format,
            config=live_session.config_now(),
            paused=live_session.paused,
            note=note,
            journal=live_session.journal_name if is_owner else "",
            recording="" if recording is None else _recording_url(recording.name),
            recorded_s=0.0 if recording is None else recording.recording.taken_s,
        )


def hello(card: ModelCard, limits: ClientLimits) -> Hello:
    """Return the message that every client is sent first."""
    said = {name: float(value) for name, value in asdict(limits).items()}
    return Hello(
        model=card.name,
        defaults=defaults_of(card),
        limits=said,
        examples=card.examples,
        moves=card.moves,
        sources=card.sources.names,
        takes=card.takes,
    )


def _recording(on: bool, name: str) -> RecordingMessage:
    return RecordingMessage(on=on, url=_recording_url(name) if name else "")


def _recording_url(name: str) -> str:
    return f"/v1/recordings/{name}"


def _receipt(receipt: Receipt) -> ReceiptMessage:
    return ReceiptMessage(control_id=receipt.control_id, state=receipt.state, chunk_index=receipt.chunk_index)


def _offer(error: MillstreamError, state: State) -> dict[str, Any] | None:
    """Return what to ask for instead of a refused start; None: nothing."""
    if not isinstance(error, Overloaded) or state != "new":
        return None
    return {"fps": error.fps} if error.fps is not None else {"wait": True} if error.can_wait else None
