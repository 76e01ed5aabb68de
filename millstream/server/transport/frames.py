"""What one connection may send below its messages: WebSocket frames, counted where they are parsed.

A message can be cut into any number of frames, empty ones among them, and a ping makes the server write: neither is seen by
whoever counts messages. One frame over the budget ends the connection with 1008 and the reason, and nothing behind it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from logging import Logger

from websockets.exceptions import ProtocolError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.server import ServerProtocol

from millstream.server.access.limits import TokenBucket

CONTROL = (Opcode.PING, Opcode.PONG, Opcode.CLOSE)
BURST_S = 2.0
"""So many seconds' worth may come at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameLimits:
    frames_per_s: float = 1000.0
    """Of any kind: eight times the camera frames a client may send, as browsers cut large messages into several."""
    controls_per_s: float = 20.0
    """Pings, pongs and closes. Each ping is answered; to a client that reads nothing the answers pile up until it is let go."""
    bytes_per_s: float = 64 * 2**20
    max_fragments: int = 4096
    """Of one message."""


class MeteredConnection(ServerProtocol):
    """A WebSocket's parser that stops at the first frame too many. Offers no compression: pictures are compressed already."""

    def __init__(self, *, max_size: int, logger: Logger, limits: FrameLimits | None = None) -> None:
        super().__init__(max_size=max_size, logger=logger)
        self.limits = limits or FrameLimits()
        self._frames = _bucket(self.limits.frames_per_s)
        self._controls = _bucket(self.limits.controls_per_s)
        self._bytes = _bucket(self.limits.bytes_per_s)
        self._num_fragments = 0

    def recv_frame(self, frame: Frame) -> None:
        spent = self._spent(frame)
        if spent:
            self.fail(CloseCode.POLICY_VIOLATION, spent)
            raise ProtocolError(spent)  # ends the parser; the close frame is the one above
        super().recv_frame(frame)

    def _spent(self, frame: Frame) -> str:
        """Which budget this frame does not fit in; empty where it fits."""
        limits = self.limits
        if not self._frames.take():
            return f"at most {limits.frames_per_s:g} frames a second"
        if not self._bytes.take(len(frame.data)):
            return f"at most {limits.bytes_per_s:g} bytes a second"
        if frame.opcode in CONTROL:
            return "" if self._controls.take() else f"at most {limits.controls_per_s:g} pings and pongs a second"
        self._num_fragments = self._num_fragments + 1 if frame.opcode is Opcode.CONT else 1
        return "" if self._num_fragments <= limits.max_fragments else f"at most {limits.max_fragments} frames a message"


def _bucket(rate: float) -> TokenBucket:
    return TokenBucket(rate, rate * BURST_S)
