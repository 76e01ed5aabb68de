"""What a session that outlives its server comes back as: its names, its terms, and what became of its controls.

A part of a snapshot's header (`engine/snapshot.py`). A snapshot that somebody asked for has none of it: that one goes on as a
new session.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from millstream.core.controls import AnyControl, Receipt
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
    media_s: float = 0.0
    """Of all chunks until then."""
    source: str = ""
    """The name of what it restyles, where that is not sent by its owner."""
    tree: str = ""
    """The first session of all that were forked from each other; older files do not say."""
    parent_id: str = ""
    forked_at: int | None = None
    """As a branch has them."""

    def receipts(self, timeline: TimelineState, late: Iterable[LoggedControl]) -> tuple[Receipt, ...]:
        """Of every control that was acknowledged: applied, still waiting for its chunk, or `late`, which may take the place of
        one that waits."""
        queued = {
            each.control_id: Receipt(
                control_id=each.control_id, state="queued", chunk_index=max(each.at_chunk, timeline.chunk_index)
            )
            for each in timeline.waiting
        }
        return (*self.applied, *(queued | {each.control.id: each.receipt for each in late}).values())

    def unknown(self, logged: Iterable[LoggedControl], timeline: TimelineState) -> tuple[LoggedControl, ...]:
        """Those that came after the state was saved, in order. One applies at the chunk it was queued for, so the state says
        of each whether it has. Of those with one id for one chunk the last counts."""
        newest = dict[tuple[str, int], LoggedControl]()
        for each in logged:
            newest.pop((each.control.id, each.at_chunk), None)
            newest[each.control.id, each.at_chunk] = each
        applied = {(receipt.control_id, receipt.chunk_index) for receipt in (*self.applied, *timeline.receipts)}
        waiting = {each.control_id: each.control for each in timeline.waiting}
        return tuple(
            each
            for (control_id, chunk), each in newest.items()
            if chunk >= timeline.chunk_index and (control_id, chunk) not in applied and waiting.get(control_id) != each.control
        )


class LoggedControl(msgspec.Struct, frozen=True, kw_only=True):
    """A control as it was acknowledged: by its id, for a chunk."""

    control: AnyControl
    at_chunk: int

    @property
    def receipt(self) -> Receipt:
        return Receipt(control_id=self.control.id, state="queued", chunk_index=self.at_chunk)


def welcome(timeline: TimelineState, *, has_log: bool = False) -> str:
    """To the people of a session that is back. What came after it was kept, nobody knows, unless its controls were logged."""
    if has_log:
        return f"the session goes on elsewhere from chunk {timeline.chunk_index}, with every control that has a receipt here"
    return (
        f"the session goes on at chunk {timeline.chunk_index}, where it was last kept: "
        "if anything was shown after that, it is lost, and so is every control that has no receipt here"
    )
