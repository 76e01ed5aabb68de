"""What a session that outlives its server comes back as: its names, its terms, and what became of its controls.

A part of a snapshot's header (`runtime/snapshot.py`). A snapshot that somebody asked for has none of it: that one goes on as a
new session.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from millstream.core.controls import Receipt
from millstream.runtime.rates import RateKind
from millstream.runtime.timeline import TimelineState


class KeptAs(msgspec.Struct, frozen=True, kw_only=True):
    session_id: str
    view_id: str
    rate: RateKind
    weight: float
    lead_s: float | None
    unattended: Literal["run", "pause"]
    applied: tuple[Receipt, ...]
    """Of its last controls, as they were told."""
    orderly: bool
    """Whether the session ended with this: nothing was shown or asked for afterwards."""

    def receipts(self, timeline: TimelineState) -> tuple[Receipt, ...]:
        """Of every control that the saved state knows of: applied, or still waiting for its chunk."""
        waiting = (
            Receipt(control_id=each.control_id, state="queued", chunk_index=max(each.at_chunk, timeline.chunk_index))
            for each in timeline.waiting
        )
        return (*self.applied, *waiting)

    def told(self, timeline: TimelineState) -> str:
        """To its people when it is back."""
        chunk = timeline.chunk_index
        if self.orderly:
            return f"the session goes on at chunk {chunk}, as it was when the server stopped"
        return (
            f"the session goes on at chunk {chunk}, where it was last kept: what was shown since is lost, "
            "and so is every control that has no receipt here"
        )
