"""What one client of the native protocol may say next, and what happens then. Knows no sockets: messages in, an outbox out.

    new ── start, restore, attach ──► owner ──┐
     └──── view ────────────────────► viewer ─┴──► ended

Whatever a client says wrong is answered with one `error`; its session and everybody else's go on.
"""

from __future__ import annotations

import asyncio
import time
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
from millstream.core.controls import AnyControl, Receipt
from millstream.core.errors import MillstreamError, Overloaded
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
from millstream.server.protocol.messages import choose_format, code_of, decode, defaults_of, encode, picture_bytes, with_header
from millstream.server.protocol.session_request import open_asked
from millstream.server.sessions import branches, futures, returning
from millstream.server.sessions.hub import ModelCard, SessionHub
from millstream.server.sessions.live_session import LiveSession
from millstream.server.sessions.outbox import EncodedChunk, Outbox
from millstream.server.sessions.recordings import TapeLost
from millstream.server.sessions.viewers import OpeningBytes, Viewer
from millstream.serving.notices import SHUTTING_DOWN, Applied, Ended, Live, Noted, Rated, Waiting
from millstream.serving.session_entry import Has

State = Literal["new", "owner", "viewer"]


class Conversation:
    linger_s = 0.0

    def __init__(self, hub: SessionHub, outbox: Outbox, limits: ClientLimits, client: ClientAccount | None = None) -> None:
        self.state: State = "new"
        self.refusals = 0
        """Of messages in a row."""
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

    async def hear(self, said: str | bytes | AnyClientMessage) -> None:
        """One message; an error is an answer too. A dialect has counted and read what it passes on."""
        control_id = ""
        try:
            if isinstance(said, bytes):
                await self._take_frame(said)
            else:
                message = self._read(said) if isinstance(said, str) else said
                control_id = message.control.id[: self._limits.max_id_length] if isinstance(message, Steer) else ""
                await self._answer(message)
            self.refusals = 0
        except MillstreamError as error:
            self.refusals += 1
            code = code_of(error, "bad_message" if self.state == "new" else "bad_control")
            offer = _offer(error, self.state)
            self._outbox.put(ErrorMessage(code=code, message=str(error), control_id=control_id, offer=offer))

    @property
    def live_session(self) -> LiveSession | None:
        """What it steers or watches; None before it does."""
        return self._live_session

    @property
    def patience_s(self) -> float | None:
        """How long it waits for the next message: for ever, once it knows what the client wants."""
        return self._limits.hello_s if self.state == "new" else None

    def waited(self) -> bool:
        self._outbox.put(ErrorMessage(code="bad_state", message=f"nothing was asked for within {self._limits.hello_s:g} s"))
        return False

    def leave(self) -> None:
        """The connection is over; the session goes on without it."""
        if self._live_session is None or self._viewer is None:
            return
        self._live_session.leave(self._viewer)
        if self.state == "owner" and self._live_session.tape is not None:
            self._hub.spawn(self._hub.recordings.stop(self._live_session))

    def say(self, item: Any) -> str | bytes | list[str]:
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
                return encode(WaitingMessage(position=position, expected_wait_s=wait, reason=reason))
            case Noted(words=words):
                return encode(NoteMessage(message=words))
            case TapeLost(name=name):
                return [encode(_recording(False, name))] if self.state == "owner" else []
            case Ended(cause=cause, reason=reason):
                kept = self.state == "owner" and item == SHUTTING_DOWN and self._hub.limits.keep_chunks is not None
                return encode(EndedMessage(cause=cause, reason=reason, kept=kept))
            case _:
                assert isinstance(item, ServerMessage), f"an outbox held {item!r}"
                return encode(item)

    def _read(self, text: str) -> AnyClientMessage:
        self._messages.spend("messages")
        self._limits.check_size(text)
        return decode(text)

    async def _answer(self, message: AnyClientMessage) -> None:
        """What is asked of a session that moves, its client asks again there."""
        if isinstance(message, Ping):
            self._outbox.put(Pong(t=message.t))
        elif self._live_session is None:
            await self._do(message)
        else:
            async with self._live_session.departure.answering() as stays:
                if stays:
                    await self._do(message)

    async def _do(self, message: AnyClientMessage) -> None:
        match message:
            case Start():
                self._start(message)
            case Attach(session=session, formats=formats):
                self._refuse_twice()
                self._client.check_session(session)
                format = choose_format(formats)
                has = Has(message.seen, time.monotonic() + message.ahead_s)
                found = await returning.attach(self._hub, session, self._client.key, client=self._client.name, has=has)
                self._watch(found, format, "owner", message)
            case View(view=view, formats=formats):
                self._refuse_twice()
                self._client.check_session(view)
                self._watch(self._hub.find_view(view), choose_format(formats), "viewer", message)
            case Steer(control=control, at_chunk=at_chunk):
                await self._steer(control, at_chunk, again=message.again)
            case DraftPrompt(control=draft):
                self._own().draft(draft)
            case Preview():
                live_session = self._own()
                self._client.previews.spend("previews")
                self._hub.spawn(self._preview(live_session, message))  # whatever is said meanwhile does not wait for it
            case End():
                self._hub.service.end(self._own().session_id)
            case Record(on=on):
                await self._record(self._own(), on)
            case Save():
                live_session = self._own()
                self._client.saves.spend("saves")
                kept = await self._hub.save(live_session)
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
                branch, went = await branches.fork(self._hub, self._own(), at_chunk)
                self._outbox.put(Forked(session=branch.session_id, view=branch.view_id, **went.as_answer()))
            case Rewind(chunk=chunk):
                self._controls.spend("controls")
                went = await branches.rewind(self._hub, self._own(), chunk)
                self._outbox.put(Rewound(**went.as_answer()))
            case Keep():
                self._outbox.put(BranchKept(ended=branches.keep(self._hub, self._own())))
            case Restore(snapshot=name, formats=formats):
                self._refuse_twice()
                format = choose_format(formats)
                live_session = await returning.restore(self._hub, name, client=self._client.name, key=self._client.key)
                self._watch(live_session, format, "owner", message)

    async def _steer(self, control: AnyControl, at_chunk: int | None, *, again: bool) -> None:
        self._controls.spend("controls")
        live_session = self._own()
        self._limits.check_id(control.id)
        known = live_session.receipts.find(control.id) if again else None
        self._outbox.put(known or await self._hub.control(live_session, control, at_chunk))

    def _start(self, ask: Start) -> None:
        self._refuse_twice()
        format = choose_format(ask.formats)
        client = self._client
        live_session = open_asked(self._hub, ask, client=client.name, key=client.key, session_id=client.session_id)
        self._watch(live_session, format, "owner", ask)

    async def _record(self, live_session: LiveSession, on: bool) -> None:
        self._outbox.put(_recording(on, await self._hub.recordings.switch(live_session, on)))

    async def _preview(self, live_session: LiveSession, ask: Preview) -> None:
        try:
            made = await futures.preview(self._hub, live_session, ask.prompts, ask.mode)
            self._outbox.put(Previews(futures=made.futures, note=made.note))
        except MillstreamError as error:
            self._outbox.put(ErrorMessage(code=code_of(error, "bad_control"), message=str(error)))

    def _watch(self, live_session: LiveSession, format: Format, state: State, opening: Opening) -> None:
        seen = opening.seen if isinstance(opening, (Attach, View)) else -1
        self._viewer = live_session.join(format, self._outbox, owner=state == "owner", follows=opening.follow, seen=seen)
        self._live_session, self.state = live_session, state
        if state == "owner" and self._hub.outputs.infos(live_session):
            self._tell_outputs(live_session)

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
            raise ProtocolError("too_large", f"a frame may have {self._limits.max_frame_bytes} bytes, got {len(data)}")
        loop, limit = asyncio.get_running_loop(), self._limits.max_frame_pixels
        frame = await loop.run_in_executor(self._hub.pool, lambda: read_frame(data, feed.size, max_pixels=limit))
        live_session.push(frame)

    def _live(self, note: str) -> LiveMessage:
        live_session, viewer = self._live_session, self._viewer
        assert live_session is not None
        assert viewer is not None
        is_owner = self.state == "owner"
        return LiveMessage(
            session=live_session.session_id if is_owner else "",
            view=live_session.view_id,
            format=viewer.format,
            config=live_session.config_now(),
            paused=live_session.paused,
            note=note,
            journal=live_session.journal_name if is_owner else "",
        )


def hello(card: ModelCard, limits: ClientLimits) -> Hello:
    """What every client hears first."""
    said = {name: float(value) for name, value in asdict(limits).items()}
    return Hello(
        model=card.name,
        defaults=defaults_of(card),
        limits=said,
        examples=card.examples,
        moves=card.moves,
        sources=card.sources.names,
    )


def _recording(on: bool, name: str) -> RecordingMessage:
    return RecordingMessage(on=on, url=f"/v1/recordings/{name}" if name else "")


def _receipt(receipt: Receipt) -> ReceiptMessage:
    return ReceiptMessage(control_id=receipt.control_id, state=receipt.state, chunk_index=receipt.chunk_index)


def _offer(error: MillstreamError, state: State) -> dict[str, Any] | None:
    """What to ask for instead."""
    if not isinstance(error, Overloaded) or state != "new":
        return None
    return {"fps": error.fps} if error.fps is not None else {"wait": True} if error.can_wait else None
