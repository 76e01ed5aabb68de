"""Between a dialect and the native conversation: what a client says is weighed, read and passed on in native
words.

The native conversation does the work and keeps the limits; what it answers waits in the outbox, in its own
words, for the dialect to put into the client's. A session opened in a dialect belongs to its connection and
ends with it. Knows no dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from millstream.core.client_messages import Ask, Format, ProtocolError, Record, Start, Steer
from millstream.core.controls import AnyControl, Stop
from millstream.core.errors import MillstreamError
from millstream.core.server_messages import ErrorMessage
from millstream.server.access.budgets import ClientAccount
from millstream.server.access.limits import ClientLimits, TokenBucket
from millstream.server.protocol.conversation import Conversation
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.outbox import Outbox

R = TypeVar("R")
T = TypeVar("T", bound=msgspec.Struct)
Fields = dict[str, Any]
NEUTRAL: tuple[object, ...] = (None, False, "", "none", [], {})
"""Values that ask for nothing, whatever their field means."""
GOOD_ENDS = ("stopped", "limit", "closed")
"""Causes for which a session ends as it should."""
END_ID = "end of the stream"
"""Id of the control that ends a session after its number of chunks; no client asked for it by name."""
MAX_NAMES = 8
"""Most fields that are listed when they mean nothing here."""
MAX_NAMED = 64
"""Most such fields that are remembered."""
MAX_WHOLE = 2.0**53
"""Number up to which a float holds every whole number."""


class Interpreter:
    def __init__(
        self, hub: SessionHub, outbox: Outbox, limits: ClientLimits, client: ClientAccount | None = None
    ) -> None:
        self.limits = limits
        self.conversation = Conversation(hub, outbox, limits, client)
        self._hub = hub
        self._outbox = outbox
        self._client = client or ClientAccount()
        self._messages = TokenBucket(limits.messages_per_s, limits.messages_per_s * limits.burst_s)
        self._refusals = 0
        self._named: set[str] = set()
        """Fields that were named already as meaning nothing here."""

    @property
    def live(self) -> bool:
        """True once it has its session."""
        return self.conversation.state != "new"

    @property
    def refusals(self) -> int:
        return self._refusals + self.conversation.refusals

    async def read_json(self, data: str | bytes, *, with_picture: bool = False) -> Fields:
        """Read a message's fields. Raises `ProtocolError` for one too large, too soon or unreadable."""
        self._messages.spend("messages")
        self.limits.check_size(
            data, self.limits.max_text_bytes + self.limits.max_frame_bytes if with_picture else None
        )
        if isinstance(data, bytes):
            raise ProtocolError("bad_message", "messages are JSON text")
        return await self.read(len(data), lambda: self._json(data.encode("utf-8", "surrogatepass")))

    async def read_msgpack(self, data: str | bytes) -> Fields:
        """Read the fields of a MessagePack message, which may hold a picture. Raises as `read_json` does."""
        self._messages.spend("messages")
        self.limits.check_size(data, self.limits.max_text_bytes + self.limits.max_frame_bytes)
        if isinstance(data, str):
            raise ProtocolError("bad_message", "messages are MessagePack, in binary")
        return await self.read(len(data), lambda: self._msgpack(data))

    async def read(self, num_bytes: int, parse: Callable[[], R]) -> R:
        """Return `parse()` of a message of `num_bytes`, and charge its CPU time to the client."""
        return await self._hub.reader.read(self._client, num_bytes, parse)

    async def start(self, ask: Ask, format: Format, *, max_chunks: int | None = None) -> bool:
        """Start a session; return whether there is one now. If not, the reason is in the outbox."""
        await self._hub.wait_closed(self._client.name)
        await self.conversation.on_message(Start(version=1, formats=(format,), **msgspec.structs.asdict(ask)))
        if self.live and max_chunks is not None:
            await self.conversation.on_message(Steer(control=Stop(id=END_ID), at_chunk=max_chunks))
        return self.live

    async def steer(self, control: AnyControl) -> None:
        await self.conversation.on_message(Steer(control=control))

    async def record(self, on: bool) -> None:
        await self.conversation.on_message(Record(on=on))

    async def show(self, picture: bytes) -> None:
        """Take the next frame of the session's input."""
        await self.conversation.on_message(picture)

    def refuse(self, error: MillstreamError, control_id: str = "") -> None:
        """Queue an error of the native protocol."""
        self._refusals += 1
        code = error.code if isinstance(error, ProtocolError) else "bad_control"
        self._outbox.put(ErrorMessage(code=code, message=str(error), control_id=control_id))

    def unsaid(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names that are new: a client that sends one with every frame is sent one note."""
        fresh = tuple(name for name in names if name not in self._named)
        if len(self._named) < MAX_NAMED:
            self._named.update(fresh)
        return fresh

    def on_disconnect(self) -> None:
        """End the session with its connection."""
        self.conversation.on_disconnect()
        if self.conversation.live_session is not None:
            self._hub.end_with_connection(self.conversation.live_session)

    def _json(self, data: bytes) -> Fields:
        self.limits.check_json(data)
        return self._fields(msgspec.json.decode, data)

    def _msgpack(self, data: bytes) -> Fields:
        self.limits.check_msgpack(data)
        return self._fields(msgspec.msgpack.decode, data)

    def _fields(self, decode: Callable[[bytes], Any], data: bytes) -> Fields:
        try:
            fields = decode(data)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise ProtocolError("bad_message", f"cannot read the message: {str(error)[:300]}") from None
        if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
            raise ProtocolError("bad_message", "a message must be a map with names for keys")
        self._refusals = 0
        return {name: whole(value) for name, value in fields.items()}


def heed(fields: Fields, kind: type[T]) -> tuple[T, tuple[str, ...]]:
    """Return the known fields, checked, and the names of others that ask for something."""
    known = kind.__struct_fields__
    unknown = sorted(
        name for name, value in fields.items() if name not in (*known, "type") and value not in NEUTRAL
    )
    said = {name: value for name, value in fields.items() if name in known}
    return converted(said, kind), tuple(name[:40] for name in unknown[:MAX_NAMES])


def converted(said: Any, kind: type[T]) -> T:
    """Return the fields as a `kind`. Raises `ProtocolError` where they are none."""
    try:
        return msgspec.convert(said, kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError("bad_message", f"cannot read the message: {str(error)[:300]}") from None


def whole(value: Any) -> Any:
    """With whole numbers as such: JavaScript has one kind of number, and packers write some of its integers
    as floats."""
    match value:
        case float() if abs(value) < MAX_WHOLE and value.is_integer():
            return int(value)
        case dict():
            return {name: whole(each) for name, each in value.items()}
        case list():
            return [whole(each) for each in value]
    return value


def kind_of(fields: Fields) -> str:
    kind = fields.get("type")
    return kind if isinstance(kind, str) else ""
