"""Pairing of front and leader: the front listens, and the leader connects with the word that it was given.

Any other connection is refused. Listening can be ended while a thread waits for the leader.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from dataclasses import dataclass

from millstream.core.errors import MeshError, MeshLost
from millstream.wire.line import Line

HERE = "127.0.0.1"
POLL_S = 0.02
KNOCK_S = 1.0
"""Seconds for a connection to send the word."""
WORD_BYTES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectPath:
    """Address and word with which the leader connects."""

    host: str
    port: int
    word: str


class FrontListener:
    def __init__(self, host: str) -> None:
        """Listen on this machine only where that is the host; else on any address: names differ between
        machines."""
        try:
            self._listener = socket.create_server((host if host == HERE else "", 0))
        except OSError as error:
            raise MeshError(f"cannot listen on {host}: {error.strerror}") from None
        self._listener.settimeout(POLL_S)
        self.way = ConnectPath(
            host=host, port=self._listener.getsockname()[1], word=secrets.token_hex(WORD_BYTES)
        )
        self._shut = False

    def admit(self, timeout_s: float) -> Line:
        """Wait for the leader and return the line to it."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not self._shut:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            if self._knows_the_word(connection):
                return Line(connection)
            connection.close()
        raise MeshLost(
            "the door to the leader was shut"
            if self._shut
            else f"the leader did not come within {timeout_s:g} s"
        )

    def shut(self) -> None:
        """End the wait for the leader: `admit` raises."""
        self._shut = True

    def close(self) -> None:
        """Close the listener, once no thread waits for the leader."""
        self._listener.close()

    def _knows_the_word(self, connection: socket.socket) -> bool:
        connection.settimeout(KNOCK_S)
        try:
            said = connection.recv(2 * WORD_BYTES, socket.MSG_WAITALL)
        except OSError:
            return False
        return hmac.compare_digest(said, self.way.word.encode())


def call(way: ConnectPath, timeout_s: float) -> Line:
    """The leader's end of the line."""
    try:
        connection = socket.create_connection((way.host, way.port), timeout=timeout_s)
        connection.sendall(way.word.encode())
    except OSError as error:
        raise MeshError(
            f"the front does not answer at {way.host}:{way.port}: {error.strerror or error}"
        ) from None
    return Line(connection)
