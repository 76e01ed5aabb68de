"""Opener of sessions: the hub as branches and restored sessions see it."""

from __future__ import annotations

from typing import Any, Protocol

from millstream.core.config import StreamConfig
from millstream.core.keys import Key
from millstream.server.sessions.archive import SessionJournal
from millstream.server.sessions.keeper import Returned
from millstream.server.sessions.live_session import Lineage, LiveSession
from millstream.serving.session_entry import OpenRequest

ID_BYTES = 16
"""Bytes of the random numbers that name sessions and views."""


class Opener(Protocol):
    @property
    def bounds(self) -> dict[str, Any]:
        """Limits of every session of this server, as fields of an `OpenRequest`."""

    def journal(self, session_id: str, config: StreamConfig, key: Key) -> SessionJournal | None:
        """Make the journal of a session; None where nothing is kept."""

    def open_request(
        self,
        request: OpenRequest,
        client: str,
        key: Key,
        lineage: Lineage | None = None,
        back: Returned | None = None,
    ) -> LiveSession:
        """Open a session. Raises `Overloaded` when it cannot be."""
