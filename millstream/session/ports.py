"""Interfaces to what a session is connected to: an input, a generator somewhere, a journal. Each is a few
methods.

Shapes: H height, W width, 3 is RGB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from millstream.core.controls import Receipt
from millstream.core.envelope import Envelope
from millstream.session.journal import InputLatents
from millstream.wire.parcel import Parcel, PendingDeliveries


class Feed(Protocol):
    """Where an input video comes from."""

    def read(self, count: int) -> tuple[NDArray[np.uint8], int] | None:
        """[count, H, W, 3] and how many of them are real, or None at the end."""


class Transport(Protocol):
    def post(self, parcels: Sequence[Parcel]) -> PendingDeliveries: ...

    def fork(self, session_id: str, new_id: str) -> bool:
        """Give `new_id` what the generator holds of a session. False where it holds nothing of it any
        more."""

    def release(self, session_id: str) -> None: ...


class ChunkLog(Protocol):
    """Where finished chunks are written down."""

    def write(
        self, envelope: Envelope, digest: str, receipts: tuple[Receipt, ...], given: InputLatents | None
    ) -> None: ...

    def rewind(self, chunk_index: int) -> None:
        """The session has gone back to before a chunk."""
