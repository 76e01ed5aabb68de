"""Base of every dialect over a WebSocket: an interpreter, a time limit for the first message, an end with the
connection."""

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
    """Name of the message that a client must send first, in its own protocol."""

    def __init__(
        self, hub: SessionHub, outbox: Outbox, limits: ClientLimits, client: ClientAccount | None = None
    ) -> None:
        self._hub = hub
        self._outbox = outbox
        self._interpreter = Interpreter(hub, outbox, limits, client)

    @property
    def refusals(self) -> int:
        """Number of messages refused in a row."""
        return self._interpreter.refusals

    @property
    def patience_s(self) -> float | None:
        """Seconds to wait for the next message; None: for ever."""
        return None if self._interpreter.live else self._interpreter.limits.hello_s

    def waited(self) -> bool:
        """Refuse a client that sent nothing in time; return whether it goes on."""
        late = f"no {self.first_message} within {self._interpreter.limits.hello_s:g} s"
        self._interpreter.refuse(ProtocolError("bad_state", late))
        return False

    def on_disconnect(self) -> None:
        self._interpreter.on_disconnect()

    @property
    def linger_s(self) -> float:
        """Seconds that the connection stays open after the last message, for a client that plays what it
        holds and closes it itself."""
        return 0.0
