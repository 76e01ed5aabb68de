"""Queue of what is still to be sent to one client, in order. Knows no sockets and no protocol.

It is bounded in three ways. Of the pictures that wait, the newest few keep their payload: the oldest loses it
first, but its header stays, with the receipts in it. Small messages are never dropped. A client that does not
take one item within `patience_s`, or lets `max_items` pile up, counts as gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from millstream.core.client_messages import Format
from millstream.session.chunk import Chunk


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedChunk:
    """A chunk as one client gets it."""

    chunk: Chunk
    """All about it but its frames."""
    format: Format
    parts: tuple[bytes, ...]
    """One a frame, or one fragment; none where the client was too slow for them."""
    dropped: int = 0
    """How many pictures this client has gone without so far."""

    @property
    def num_bytes(self) -> int:
        return sum(len(part) for part in self.parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboxLimits:
    max_pictures: int = 4
    """Most pictures with payload; about three seconds."""
    max_picture_bytes: int = 64 * 2**20
    """Most bytes of all payloads; the newest is kept whatever its size."""
    max_items: int = 1024
    patience_s: float = 30.0


class ClientGone(Exception):
    """A client that has taken nothing for too long."""


class Outbox:
    def __init__(self, limits: OutboxLimits | None = None) -> None:
        self.limits = limits or OutboxLimits()
        self.dropped = 0
        """Pictures that came without a payload or lost it here."""
        self._items: deque[Any] = deque()
        self._more = asyncio.Event()
        self._finished = False
        self._gone = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Any) -> None:
        """Add to the end; after `finish`, or for a client that is gone: nothing."""
        if self._finished or self._gone:
            return
        self._items.append(item)
        self._more.set()
        if isinstance(item, EncodedChunk):
            self.dropped += not item.parts
            self._thin()
        if len(self._items) > self.limits.max_items:
            self._gone = True
            self._items.clear()

    def put_newest(self, item: Any) -> None:
        """Add something of which only the newest matters: one of its kind that still waits gives way."""
        waiting = next((other for other in self._items if type(other) is type(item)), None)
        if waiting is not None:
            self._items.remove(waiting)
        self.put(item)

    def finish(self) -> None:
        """Nothing more will be put; what waits is still taken."""
        self._finished = True
        self._more.set()

    async def drain(self, send: Callable[[Any], Awaitable[None]]) -> None:
        """Hand everything to `send`, in order, until it is finished. Raises `ClientGone`."""
        while (item := await self.pop()) is not None:
            try:
                async with asyncio.timeout(self.limits.patience_s):
                    await send(item)
            except TimeoutError:
                raise ClientGone from None

    async def pop(self) -> Any:
        """The next item; None after the last."""
        while not self._items:
            if self._gone:
                raise ClientGone
            if self._finished:
                return None
            self._more.clear()
            await self._more.wait()
        item = self._items.popleft()
        return replace(item, dropped=self.dropped) if isinstance(item, EncodedChunk) else item

    def _thin(self) -> None:
        """Take payloads from the oldest pictures until the rest are few and small enough."""
        whole = [
            place for place, item in enumerate(self._items) if isinstance(item, EncodedChunk) and item.parts
        ]
        num_bytes = sum(self._items[place].num_bytes for place in whole)
        while len(whole) > 1 and (
            len(whole) > self.limits.max_pictures or num_bytes > self.limits.max_picture_bytes
        ):
            place = whole.pop(0)
            num_bytes -= self._items[place].num_bytes
            self._items[place] = replace(self._items[place], parts=())
            self.dropped += 1
