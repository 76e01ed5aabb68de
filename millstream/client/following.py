"""A connection that goes where its session goes: where `moved` says, and back to the first address when it is lost.

Only of a server that says it `moves`; any other is one connection, and its loss is the end. What was said and not answered is
said again, once the session is live elsewhere: a control that had arrived is not applied twice. Knows no client's state.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable

import msgspec

from millstream.client.connection import Connection
from millstream.client.reading import Heard, Pictures, read
from millstream.core.client_messages import (
    VERSION,
    AnyClientMessage,
    Attach,
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
from millstream.core.errors import ProtocolBroken
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
MAX_UNANSWERED = 64
AHEAD = "ahead_s"
"""The field of `Attach` that a server refuses by name which does not know it."""
ANSWERS = {Save: Saved, Fork: Forked, Rewind: Rewound, Keep: BranchKept, Record: RecordingMessage, Preview: Previews}
"""What is asked without an id, and what answers it; or an error does."""
REPEATED = (Steer, End, *ANSWERS)
"""What is said again where it was not answered."""
Open = Callable[[str, str, Opening], Awaitable[Connection]]
"""A connection to a server at an address, with a ticket, to say this first; without an address, to the first one."""


class FollowedConnection:
    def __init__(self, open_at: Open, connection: Connection) -> None:
        self._open_at, self._connection = open_at, connection
        self._hello: Hello | None = None
        self._opening: Opening | None = None
        self._live: LiveMessage | None = None
        self._seen = -1
        self._dry_at = 0.0
        """When whoever plays all that came has played it, by `time.monotonic`."""
        self._unanswered: dict[str, Steer] = {}
        self._questions: list[AnyClientMessage] = []
        """Of `ANSWERS`, the first one first."""
        self._goes_directly = True
        self._says_ahead = True
        """Whether what is yet to be played is said: servers that are older than this field refuse it."""
        self._dead_ends = 0
        """Addresses in a row that could not be reached."""
        self._lost_at: float | None = None
        """Since when it is not live, having been."""
        self._closed = self._is_ending = False

    @classmethod
    async def open(cls, url: str, *, key: str | None = None, tls: ssl.SSLContext | None = None) -> FollowedConnection:
        async def open_at(address: str, ticket: str, opening: Opening) -> Connection:
            return await Connection.open(address or url, key=None if ticket else key, ticket=ticket, tls=tls)

        return cls(open_at, await Connection.open(url, key=key, tls=tls))

    async def say(self, message: AnyClientMessage) -> None:
        if isinstance(message, (Start, Attach, View, Restore)):
            self._opening = message
            await self._connection.say(self._as_followed(message))
            return
        if isinstance(message, Steer) and message.control.id and len(self._unanswered) < MAX_UNANSWERED:
            self._unanswered[message.control.id] = message
        elif type(message) in ANSWERS and len(self._questions) < MAX_UNANSWERED:
            self._questions.append(message)
        self._is_ending = self._is_ending or isinstance(message, End)
        await self.say_text(msgspec.json.encode(message).decode())

    async def say_text(self, text: str | bytes) -> None:
        """Also a camera's frame. On a line that is lost and can be found again, it is not an error."""
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
                data = await self._connection.take()
                heard = read(data)
            except ProtocolBroken as error:
                await self._return(error)
                continue
            if not await self._is_about_the_way(heard):
                return data, heard

    async def close(self) -> None:
        self._closed = True
        await self._connection.close()

    @property
    def _can_return(self) -> bool:
        return not self._closed and self._hello is not None and self._hello.moves and self._opening is not None

    async def _is_about_the_way(self, heard: Heard) -> bool:
        self._note_answer(heard)
        match heard:
            case Hello():
                is_first, self._hello = self._hello is None, self._hello or heard
                return not is_first
            case MovedMessage(url=url, ticket=ticket):
                await self._go(url, ticket)
                return True
            case LiveMessage():
                is_back, self._live, self._lost_at = self._lost_at is not None, heard, None
                if is_back:
                    await self._say_again()
            case ErrorMessage(code="bad_message") if self._lost_at is not None and self._says_ahead and AHEAD in heard.message:
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
            case ErrorMessage(control_id=control_id) | ReceiptMessage(control_id=control_id):
                self._unanswered.pop(control_id, None)
            case EndedMessage():
                self._closed = True  # the line is about to be, and there is nothing to go back to
            case Pictures(header=header):
                self._seen = header.index
                self._dry_at = max(self._dry_at, time.monotonic()) + header.frames / header.fps
            case Rewound(from_chunk=chunk):
                self._seen, self._dry_at = min(self._seen, chunk - 1), 0.0
        return False

    def _note_answer(self, heard: Heard) -> None:
        is_error = isinstance(heard, ErrorMessage) and not heard.control_id and self._lost_at is None
        for number, question in enumerate(self._questions):
            if is_error or isinstance(heard, ANSWERS[type(question)]):
                del self._questions[number]
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
        """To the first address, which knows where the session is now. Raises the error where there is no way back."""
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
        while not isinstance(read(await self._connection.take()), Hello):
            pass
        await self._connection.say(opening)

    def _as_followed(self, opening: Opening) -> Opening:
        """What to ask for: the session that it has, or what was asked for first."""
        follow = self._hello is not None and self._hello.moves and self._goes_directly
        if self._live is None:
            return msgspec.structs.replace(opening, follow=follow)
        if not self._live.session:
            return View(version=VERSION, view=self._live.view, formats=opening.formats, follow=follow, seen=self._seen)
        attach = Attach(version=VERSION, session=self._live.session, formats=opening.formats, follow=follow, seen=self._seen)
        if not self._says_ahead:
            return attach
        return msgspec.structs.replace(attach, ahead_s=max(0.0, self._dry_at - time.monotonic()))

    async def _say_again(self) -> None:
        for steer in list(self._unanswered.values()):
            await self.say(msgspec.structs.replace(steer, again=True))
        for question in list(self._questions):
            await self.say_text(msgspec.json.encode(question).decode())
        if self._is_ending:
            await self.say(End())
