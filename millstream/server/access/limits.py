"""Limits on how much and how fast one connection may ask. Plain figures and a bucket; enforced where messages
come in."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from millstream.core.client_messages import ProtocolError
from millstream.server.access import shapes

IMAGE = '"image"'
"""Name of a field that holds a picture, in JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientLimits:
    max_text_bytes: int = 128 * 2**10
    """Most bytes of a text message, without its picture: room for eight prompts of the longest kind."""
    max_values: int = 4096
    """Most values in one message or body: each list, map, number, string and field name counts."""
    max_depth: int = 32
    """Deepest nesting of lists and maps."""
    max_frame_bytes: int = 4 * 2**20
    """Most bytes of a picture as it comes: a camera frame, or an `image`."""
    max_frame_pixels: int = 4096 * 4096
    """Most pixels of a camera frame once decoded; read from its header before it is."""
    messages_per_s: float = 50.0
    """Text messages of any kind a second."""
    controls_per_s: float = 20.0
    """Text messages a second that steer, `fork` and `rewind` among them; `actions` and `camera` count as
    messages only."""
    frames_per_s: float = 120.0
    """Camera frames a second."""
    burst_s: float = 2.0
    """Seconds' worth of each rate that may come at once."""
    max_refusals: int = 500
    """Messages refused in a row before the connection is closed."""
    hello_s: float = 30.0
    """Seconds until a connection that has asked for nothing is closed."""
    patience_s: float = 30.0
    """Seconds until a client that does not take a message is disconnected."""
    max_id_length: int = 128
    """Most letters of a control's id."""

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

    @property
    def max_picture_text_bytes(self) -> int:
        """Most bytes of a text message with a picture in base64."""
        return self.max_text_bytes + 4 * math.ceil(self.max_frame_bytes / 3)

    def check_message(self, message: str | bytes) -> None:
        """Before it is read: only one with a picture may be large."""
        holds_picture = IMAGE in message if isinstance(message, str) else IMAGE.encode() in message
        self.check_size(message, self.max_picture_text_bytes if holds_picture else None)

    def check_picture(self, image: bytes) -> None:
        """Before it is decoded."""
        if len(image) > self.max_frame_bytes:
            raise ProtocolError(
                "too_large",
                f"a picture may have {self.max_frame_bytes} bytes, got {len(image)}: scale it down",
            )

    def check_json(self, data: bytes) -> None:
        """Before it is decoded."""
        shapes.check_json(data, max_values=self.max_values, max_depth=self.max_depth)

    def check_msgpack(self, data: bytes) -> None:
        """Before it is decoded."""
        shapes.check_msgpack(data, max_values=self.max_values, max_depth=self.max_depth)


class TokenBucket:
    """`rate` a second on average, `burst` at once."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self.burst = burst
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

    def try_spend(self, cost: float = 1.0) -> bool:
        """Take `cost` where so much is left; return whether it was."""
        if self.left < cost:
            return False
        self._tokens -= cost
        return True

    def charge(self, cost: float) -> None:
        """Take `cost`, or what is left."""
        self._tokens = max(0.0, self.left - cost)

    def owe(self, cost: float) -> None:
        """Take `cost`, even where it is more than is left: nothing passes until the rest is paid."""
        self._tokens = self.left - cost

    def spend(self, what: str) -> None:
        if not self.try_spend():
            raise ProtocolError("too_fast", f"at most {self.rate:g} {what} a second; this one was not taken")
