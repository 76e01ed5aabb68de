"""A connection that goes where its session goes: where `moved` says, and back to the first address when it is
lost.

Only of a server that says it `moves`; any other is one connection, and its loss is the end. What was said and
not answered is said again, once the session is live elsewhere: a control that had arrived is not applied
twice. What is said while it is not live waits, and is said after that, so that all of it arrives in the order
in which it was said. Knows no client's state.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from millstream.client.chunk import ClientChunk
from millstream.client.connection import Connection
from millstream.client.reading import Heard, read, write
from millstream.core.client_messages import (
    VERSION,
    AnyClientMessage,
    Attach,
    DraftPrompt,
    End,
    Fork,
    Keep,
    Opening,
    Ping,
    Preview,
    Record,
    Restore,
    Rewind,
    Save,
    Start,
    Steer,
    View,
)
from millstream.core.controls import SetActions
from millstream.core.errors import Overloaded, ProtocolBroken
from millstream.core.server_messages import (
    BranchKept,
    EndedMessage,
    ErrorMessage,
    Forked,
    Hello,
    LiveMessage,
    MovedMessage,
    Previews,
    ReceiptMessage,
    RecordingMessage,
    Rewound,
    Saved,
)

BACKOFF_S = (0.05, 0.1, 0.25, 0.5, 1.0)
PATIENCE_S = 60.0
"""For a session that was live to be live again."""
SILENT_S = 15.0
"""Longest silence of a server asked for a lost session, in seconds; then the connection is lost too."""
MAX_UNANSWERED = 64
MAX_HELD = 256
"""Messages that wait for a session to be live again; as many as wait for a chunk."""
AHEAD = "ahead_s"
"""The field of `Attach` that a server refuses by name which does not know it."""
ANSWERS = {
    Save: Saved,
    Fork: Forked,
    Rewind: Rewound,
    Keep: BranchKept,
    Record: RecordingMessage,
    Preview: Previews,
}
"""Answer to each message without an id; an error may come instead."""
REPEATED = (Steer, End, *ANSWERS)
"""Messages that are sent again where they were not answered."""
Open = Callable[[str, str, Opening], Awaitable[Connection]]
"""Function that connects to a server at an address, with a ticket, and sends this opening; without an
address, to the first server."""


@dataclass(eq=False, slots=True)
class _Said:
    """Message that has no answer yet, or waits to be sent."""

    message: AnyClientMessage | str
    was_sent: bool

    @property
    def is_repeated(self) -> bool:
        """Return whether its answer can be recognised; only then is it sent again after a reconnect."""
        return type(self.message) in ANSWERS or (
            isinstance(self.message, Steer)
            and bool(self.message.control.id)
            and not isinstance(self.message.control, SetActions)  # of its moment alone
        )

    def is_answered(self, heard: Heard) -> bool:
        if isinstance(self.message, Steer):
            return (
                isinstance(heard, (ErrorMessage, ReceiptMessage))
                and heard.control_id == self.message.control.id
            )
        return any(
            isinstance(self.message, asked) and isinstance(heard, answer) for asked, answer in ANSWERS.items()
        )

    def as_sent(self) -> str:
        if isinstance(self.message, str):
            return self.message
        again = self.was_sent and isinstance(self.message, Steer)
        return write(msgspec.structs.replace(self.message, again=True) if again else self.message)


class FollowedConnection:
    def __init__(self, open_at: Open, connection: Connection) -> None:
        self._open_at = open_at
        self._connection = connection
        self._hello: Hello | None = None
        self._opening: Opening | None = None
        self._live: LiveMessage | None = None
        self._seen = -1
        self._dry_at = 0.0
        """Time at which a viewer has played all that came, by `time.monotonic`."""
        self._said: list[_Said] = []
        """Messages that have no answer yet or wait to be sent, oldest first."""
        self._goes_directly = True
        self._says_ahead = True
        """True if the seconds yet to be played are sent: servers that are older than this field refuse it."""
        self._dead_ends = 0
        """Addresses in a row that could not be reached."""
        self._lost_at: float | None = None
        """Time since when it is no longer live."""
        self._closed = self._is_ending = False

    @classmethod
    async def open(
        cls, url: str, *, key: str | None = None, tls: ssl.SSLContext | None = None
    ) -> FollowedConnection:
        async def open_at(address: str, ticket: str, opening: Opening) -> Connection:
            return await Connection.open(address or url, key=None if ticket else key, ticket=ticket, tls=tls)

        return cls(open_at, await Connection.open(url, key=key, tls=tls))

    async def say(self, message: AnyClientMessage) -> None:
        if isinstance(message, (Start, Attach, View, Restore)):
            self._opening = message
            await self._connection.say(self._as_followed(message))
            return
        self._is_ending = self._is_ending or isinstance(message, End)
        if self._is_away:
            self._hold(message)
            return
        said = _Said(message, was_sent=True)
        if said.is_repeated and len(self._said) < MAX_UNANSWERED:
            self._said.append(said)
        await self._send(write(message))

    async def say_text(self, text: str | bytes) -> None:
        """Also a camera's frame: one that comes while the session is not live is late."""
        if not self._is_away:
            await self._send(text)
        elif isinstance(text, str):
            self._hold(text)

    @property
    def _is_away(self) -> bool:
        """Return whether the session was live and is now being resumed."""
        return self._lost_at is not None and self._can_return

    def _hold(self, message: AnyClientMessage | str) -> None:
        if isinstance(message, (Ping, DraftPrompt, End)):  # of this moment, or said last
            return
        if len(self._said) >= MAX_HELD:
            raise Overloaded(
                f"the session is coming back, and {MAX_HELD} messages wait for it; say this when it is live"
            )
        self._said.append(_Said(message, was_sent=False))

    async def _send(self, text: str | bytes) -> None:
        """On a line that is lost and can be found again, it is not an error."""
        try:
            await self._connection.say_text(text)
        except ProtocolBroken:
            if not self._can_return:
                raise

    async def hear(self) -> Heard:
        return (await self.hear_both())[1]

    async def hear_both(self) -> tuple[str | bytes, Heard]:
        """The next message, as it came and as it is read. What is about the way it came is not passed on."""
        while True:
            try:
                data = await self._receive()
                heard = read(data)
            except ProtocolBroken as error:
                await self._return(error)
                continue
            if not await self._is_about_the_way(heard):
                return data, heard

    async def close(self) -> None:
        self._closed = True
        await self._connection.close()

    async def _receive(self) -> str | bytes:
        """The next message. A line on which a lost session is waited for, and that says nothing, is lost
        too."""
        return await (self._connection.receive() if self._lost_at is None else self._heard_in_time())

    async def _heard_in_time(self) -> str | bytes:
        try:
            return await asyncio.wait_for(self._connection.receive(), SILENT_S)
        except asyncio.TimeoutError:
            await self._connection.close()
            if self._lost_at is not None and time.monotonic() > self._lost_at + PATIENCE_S:
                self._hello = None  # nothing to go back to
            raise ProtocolBroken(f"nothing was heard of the session for {SILENT_S:g} s") from None

    @property
    def _can_return(self) -> bool:
        return (
            not self._closed and self._hello is not None and self._hello.moves and self._opening is not None
        )

    async def _is_about_the_way(self, heard: Heard) -> bool:
        self._note_answer(heard)
        match heard:
            case Hello():
                is_first = self._hello is None
                self._hello = self._hello or heard
                return not is_first
            case MovedMessage(url=url, ticket=ticket):
                await self._go(url, ticket)
                return True
            case LiveMessage():
                self._live = heard
                if self._lost_at is not None:
                    await self._say_again()
            case ErrorMessage(code="bad_message") if (
                self._lost_at is not None and self._says_ahead and AHEAD in heard.message
            ):
                self._says_ahead = False
                assert self._opening is not None, "nothing was asked for yet"
                await self._connection.say(self._as_followed(self._opening))
                return True
            case ErrorMessage() if self._lost_at is not None and not heard.control_id:
                if heard.code == "not_found" or time.monotonic() > self._lost_at + PATIENCE_S:
                    self._hello = None  # nothing to go back to
                    raise ProtocolBroken(f"the session did not come back: {heard.message}")
                await asyncio.sleep(BACKOFF_S[-1])
                await self._connection.close()  # and then it is tried again
                return True
            case EndedMessage():
                self._closed = True  # the line is about to be, and there is nothing to go back to
            case ClientChunk(header=header):
                self._seen = header.index
                self._dry_at = max(self._dry_at, time.monotonic()) + header.frames / header.fps
            case Rewound(from_chunk=chunk):
                self._seen = min(self._seen, chunk - 1)
                self._dry_at = 0.0
        return False

    def _note_answer(self, heard: Heard) -> None:
        is_error = isinstance(heard, ErrorMessage) and not heard.control_id and self._lost_at is None
        for said in self._said:
            if said.is_answered(heard) or (is_error and type(said.message) in ANSWERS):
                self._said.remove(said)
                return

    async def _go(self, url: str, ticket: str) -> None:
        """Where it is told to; where that cannot be reached, back, to be served from there."""
        if self._live is not None and self._lost_at is None:
            self._lost_at = time.monotonic()
        await self._connection.close()
        try:
            await self._begin(url, ticket)
            self._dead_ends = 0
        except ProtocolBroken as error:
            self._dead_ends += 1  # the first may have died this moment
            self._goes_directly = self._dead_ends < 2
            await self._return(error)

    async def _return(self, error: ProtocolBroken) -> None:
        """To the first address, which knows where the session is now. Raises the error where there is no way
        back."""
        if not self._can_return:
            raise error
        if self._lost_at is None:
            self._lost_at = time.monotonic()
        for attempt in range(1000):
            try:
                await self._begin("", "")
                return
            except ProtocolBroken:
                if self._closed or time.monotonic() > self._lost_at + PATIENCE_S:
                    raise error from None
                await asyncio.sleep(BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)])

    async def _begin(self, url: str, ticket: str) -> None:
        assert self._opening is not None, "nothing was asked for yet"
        opening = self._as_followed(self._opening)
        self._connection = await self._open_at(url, ticket, opening)
        if self._closed:  # meanwhile
            await self._connection.close()
            raise ProtocolBroken("this connection was closed")
        while not isinstance(read(await self._heard_in_time()), Hello):
            pass
        await self._connection.say(opening)

    def _as_followed(self, opening: Opening) -> Opening:
        """Return the opening to send: for the session that it has, or as it was asked for first."""
        follow = self._hello is not None and self._hello.moves and self._goes_directly
        if self._live is None:
            return msgspec.structs.replace(opening, follow=follow)
        if not self._live.session:
            return View(
                version=VERSION, view=self._live.view, formats=opening.formats, follow=follow, seen=self._seen
            )
        attach = Attach(
            version=VERSION,
            session=self._live.session,
            formats=opening.formats,
            follow=follow,
            seen=self._seen,
        )
        if not self._says_ahead:
            return attach
        return msgspec.structs.replace(attach, ahead_s=max(0.0, self._dry_at - time.monotonic()))

    async def _say_again(self) -> None:
        """All of it, in order, also what is said meanwhile. From then on the session is live."""
        number = 0
        while number < len(self._said):
            said = self._said[number]
            text = said.as_sent()
            said.was_sent = True
            if said.is_repeated:
                number += 1
            else:
                del self._said[number]
            await self._send(text)
        self._lost_at = None
        if self._is_ending:
            await self._send(write(End()))
