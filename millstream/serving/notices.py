"""Notices sent to a session's owner while it lives. Plain data; `serving/service.py` sends them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from millstream.core.controls import Receipt
from millstream.core.errors import MeshGivenUp
from millstream.session.chunk import Chunk


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """In line; 1 is next."""

    position: int
    expected_wait_s: float | None
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Live:
    """It has its place on the device."""

    note: str
    fps: float
    """Frames a second it plays at for now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rated:
    """It plays at another frame rate from its next chunk on."""

    note: str
    fps: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """Receipts that come without a chunk: of a pause, a stop, or of all that a session knows of that was
    brought back."""

    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Noted:
    """Message to its owner and viewers; the stream goes on."""

    words: str
    once: bool = False
    """True for a notice of one moment: it is sent to the owner then, or when the owner connects, and not
    repeated later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """The last notice of a session."""

    cause: Literal["stopped", "input over", "limit", "closed", "failed", "refused"]
    reason: str


SHUTTING_DOWN = Ended(cause="closed", reason="the server is shutting down")
ENGINE_FAILED = Ended(
    cause="failed", reason="the engine failed, which is nobody's fault who watches; its log says why"
)
MESH_GIVEN_UP = Ended(
    cause="failed", reason="the mesh was lost and could not be brought back; the server's log says why"
)


def last_word(failure: BaseException | None) -> Ended:
    """Return the last notice to all sessions when the service is over. The error itself is left out: it may
    name one of them."""
    if failure is None:
        return SHUTTING_DOWN
    return MESH_GIVEN_UP if isinstance(failure, MeshGivenUp) else ENGINE_FAILED


Notice = Waiting | Live | Rated | Chunk | Applied | Noted | Ended
Tell = Callable[[Notice], None]
"""Called on the service's thread or its callers', one notice at a time for each session; must return at
once."""
