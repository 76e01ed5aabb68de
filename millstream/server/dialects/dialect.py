"""What every dialect over a WebSocket has: an interpreter, patience until the first message, an end with the connection."""

from __future__ import annotations

from typing import ClassVar

from millstream.core.client_messages import ProtocolError
from millstream.server.access.budgets import ClientAccount
from millstream.server.access.limits import ClientLimits
from millstream.server.dialects.interpreter import Interpreter
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.outbox import Outbox


class Dialect:
    first_message: ClassVar[str]
    """What a client must say first, as its own protocol calls it."""

    def __init__(self, hub: SessionHub, outbox: Outbox, limits: ClientLimits, client: ClientAccount | None = None) -> None:
        self._hub, self._outbox = hub, outbox
        self._interpreter = Interpreter(hub, outbox, limits, client)

    @property
    def refusals(self) -> int:
        """Of messages in a row."""
        return self._interpreter.refusals

    @property
    def patience_s(self) -> float | None:
        """How long it waits for the next message."""
        return None if self._interpreter.live else self._interpreter.limits.hello_s

    def waited(self) -> bool:
        """In vain: whether it goes on."""
        late = f"no {self.first_message} within {self._interpreter.limits.hello_s:g} s"
        self._interpreter.refuse(ProtocolError("bad_state", late))
        return False

    def leave(self) -> None:
        self._interpreter.leave()

    @property
    def linger_s(self) -> float:
        """How long the connection stays open once all is said, for a client that plays what it holds and closes it itself."""
        return 0.0
