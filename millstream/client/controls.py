"""Controls that were sent, until they are in force. Those that are stay known for a while: who asks late is
still told."""

from __future__ import annotations

import asyncio
import itertools

from millstream.core.controls import Receipt
from millstream.core.errors import ClientError

MAX_KNOWN = 1024


class SentControls:
    def __init__(self) -> None:
        self._known: dict[str, asyncio.Future[Receipt]] = {}
        """By id, the oldest first."""
        self._numbers = itertools.count(1)

    def next_id(self) -> str:
        return f"client-{next(self._numbers)}"

    def sent(self, control_id: str) -> None:
        self._known[control_id] = asyncio.get_running_loop().create_future()
        while len(self._known) > MAX_KNOWN:
            self.forget(next(iter(self._known)))

    def forget(self, control_id: str) -> None:
        self._known.pop(control_id).cancel()

    def has_applied(self, receipt: Receipt) -> None:
        """One that somebody else sent is not waited for here."""
        future = self._known.get(receipt.control_id)
        if future is not None and not future.done():
            future.set_result(receipt)

    async def applied(self, control_id: str) -> Receipt:
        if control_id not in self._known:
            raise ClientError(
                f"this client sent no control {control_id!r}, or more than {MAX_KNOWN} since then"
            )
        return await asyncio.shield(self._known[control_id])

    def fail(self, error: ClientError) -> None:
        """No further one will apply."""
        for future in self._known.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # seen: nobody needs to wait for it
