"""Budget of one connection below its messages: WebSocket frames, counted where they are parsed.

A message can be cut into any number of frames, empty ones among them, and a ping makes the server write:
neither shows where messages are counted. One frame over the budget ends the connection with 1008 and the
reason, and nothing behind it is read. Text that is not UTF-8 ends it with 1007 here, as the layers above
would log a traceback.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from logging import Logger
from typing import NoReturn

from websockets.exceptions import ProtocolError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.server import ServerProtocol

from millstream.server.access.limits import TokenBucket

CONTROL = (Opcode.PING, Opcode.PONG, Opcode.CLOSE)
BURST_S = 2.0
"""Seconds' worth of each rate that may come at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameLimits:
    frames_per_s: float = 1000.0
    """Frames of any kind a second: eight times the camera frames a client may send, as browsers cut large
    messages into several."""
    controls_per_s: float = 20.0
    """Pings, pongs and closes a second. Each ping is answered; for a client that reads nothing the answers
    pile up until it is disconnected."""
    bytes_per_s: float = 64 * 2**20
    max_fragments: int = 4096
    """Most frames of one message."""


class MeteredConnection(ServerProtocol):
    """A WebSocket's parser that stops at the first frame too many. Offers no compression: pictures are
    compressed already."""

    def __init__(self, *, max_size: int, logger: Logger, limits: FrameLimits | None = None) -> None:
        super().__init__(max_size=max_size, logger=logger)
        self.limits = limits or FrameLimits()
        self._frames = _bucket(self.limits.frames_per_s)
        self._controls = _bucket(self.limits.controls_per_s)
        self._bytes = _bucket(self.limits.bytes_per_s)
        self._num_fragments = 0
        self._in_text = False
        self._text = codecs.getincrementaldecoder("utf-8")()
        """UTF-8 decoder of the current message; a frame may end in the middle of a character."""

    def recv_frame(self, frame: Frame) -> None:
        if spent := self._spent(frame):
            self._end(CloseCode.POLICY_VIOLATION, spent)
        if not self._is_text(frame):
            self._end(CloseCode.INVALID_DATA, "a text message must be UTF-8")
        super().recv_frame(frame)

    def _end(self, code: CloseCode, reason: str) -> NoReturn:
        self.fail(code, reason)
        raise ProtocolError(reason)  # ends the parser; the close frame is the one above

    def _is_text(self, frame: Frame) -> bool:
        """Return whether a text message is valid UTF-8 so far; True for all other frames."""
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._in_text = frame.opcode is Opcode.TEXT
            self._text.reset()
        if not self._in_text or frame.opcode in CONTROL:
            return True
        try:
            self._text.decode(bytes(frame.data), final=frame.fin)
        except UnicodeDecodeError:
            return False
        return True

    def _spent(self, frame: Frame) -> str:
        """Which budget this frame does not fit in; empty where it fits."""
        limits = self.limits
        if not self._frames.try_spend():
            return f"at most {limits.frames_per_s:g} frames a second"
        if not self._bytes.try_spend(len(frame.data)):
            return f"at most {limits.bytes_per_s:g} bytes a second"
        if frame.opcode in CONTROL:
            return (
                ""
                if self._controls.try_spend()
                else f"at most {limits.controls_per_s:g} pings and pongs a second"
            )
        self._num_fragments = self._num_fragments + 1 if frame.opcode is Opcode.CONT else 1
        return (
            ""
            if self._num_fragments <= limits.max_fragments
            else f"at most {limits.max_fragments} frames a message"
        )


def _bucket(rate: float) -> TokenBucket:
    return TokenBucket(rate, rate * BURST_S)
