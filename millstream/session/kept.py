"""What a session that outlives its server comes back as: its names, its terms, and what became of its controls.

A part of a snapshot's header (`engine/snapshot.py`). A snapshot that somebody asked for has none of it: that one goes on as a
new session.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from millstream.core.controls import Receipt
from millstream.session.pacing import RateKind
from millstream.session.timeline import TimelineState


class KeptAs(msgspec.Struct, frozen=True, kw_only=True):
    session_id: str
    view_id: str
    rate: RateKind
    weight: float
    lead_s: float | None
    unattended: Literal["run", "pause"]
    applied: tuple[Receipt, ...]
    """Of its last controls, as they were told."""

    def receipts(self, timeline: TimelineState) -> tuple[Receipt, ...]:
        """Of every control that the saved state knows of: applied, or still waiting for its chunk."""
        waiting = (
            Receipt(control_id=each.control_id, state="queued", chunk_index=max(each.at_chunk, timeline.chunk_index))
            for each in timeline.waiting
        )
        return (*self.applied, *waiting)


def welcome(timeline: TimelineState) -> str:
    """To the people of a session that is back. What came after it was kept, nobody knows."""
    return (
        f"the session goes on at chunk {timeline.chunk_index}, where it was last kept: "
        "what was shown after that is lost, and so is every control that has no receipt here"
    )
