"""How much and how fast one connection may ask. Plain figures and a bucket; enforced where messages come in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from millstream.core.client_messages import ProtocolError


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientLimits:
    max_text_bytes: int = 128 * 2**10
    """Of a text message: room for eight prompts of the longest kind."""
    max_frame_bytes: int = 4 * 2**20
    """Of a camera frame as it comes."""
    max_frame_pixels: int = 4096 * 4096
    """Of a camera frame once decoded; asked of its header, before it is."""
    messages_per_s: float = 50.0
    """Texts of any kind."""
    controls_per_s: float = 20.0
    """Those of them that steer, `fork` and `rewind` among them."""
    frames_per_s: float = 120.0
    """Of a camera."""
    burst_s: float = 2.0
    """So many seconds' worth may come at once."""
    max_refusals: int = 500
    """Messages refused in a row before the connection is closed."""
    hello_s: float = 30.0
    """A connection that has not said what it wants by then is closed."""
    patience_s: float = 30.0
    """A client that does not take a message for so long is let go."""
    max_id_length: int = 128
    """Of a control's id."""

    def check_id(self, control_id: str) -> None:
        """Before it is remembered."""
        if len(control_id) > self.max_id_length:
            raise ProtocolError("bad_control", f"a control's id may have {self.max_id_length} letters")

    def check_size(self, message: str | bytes, max_bytes: int | None = None) -> None:
        """Before it is read: at most `max_bytes`, or what a text may have."""
        num_bytes = len(message if isinstance(message, bytes) else message.encode("utf-8", "surrogatepass"))
        most = self.max_text_bytes if max_bytes is None else max_bytes
        if num_bytes > most:
            raise ProtocolError("too_large", f"a message may have {most} bytes, got {num_bytes}")


class TokenBucket:
    """`rate` a second on average, `burst` at once."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst = rate, burst
        self._clock = clock
        self._tokens = burst
        self._at = clock()

    @property
    def left(self) -> float:
        """How much may pass now."""
        now = self._clock()
        self._tokens = min(self.burst, self._tokens + self.rate * (now - self._at))
        self._at = now
        return self._tokens

    def take(self, cost: float = 1.0) -> bool:
        """Whether one more may pass now."""
        if self.left < cost:
            return False
        self._tokens -= cost
        return True

    def charge(self, cost: float) -> None:
        """Take so much, or what is left."""
        self._tokens = max(0.0, self.left - cost)

    def spend(self, what: str) -> None:
        if not self.take():
            raise ProtocolError("too_fast", f"at most {self.rate:g} {what} a second; this one was not taken")
