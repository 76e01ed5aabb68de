"""State in which a session that outlives its server comes back: its names, its terms, and what became of its
controls.

A part of a snapshot's header (`engine/snapshot.py`). A snapshot that a client asked for has none of it: that
one goes on as a new session.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from millstream.core.controls import AnyControl, Receipt, SetActions
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
    """Receipts of its last controls, as they were sent."""
    media_s: float = 0.0
    """Seconds of media of all chunks until then."""
    source: str = ""
    """The name of what it restyles, where that is not sent by its owner."""
    tree: str = ""
    """The first session of all that were forked from each other; older files do not say."""
    parent_id: str = ""
    forked_at: int | None = None
    """Chunk at which a branch was forked, from the session `parent_id`."""
    other_views: tuple[str, ...] = ()
    """Links that show it besides its own: of branches that ended when it was kept."""
    was_stopped: bool = False
    """Saved when its server was told to stop, so it holds the whole session."""
    path: int = 0
    """How often it was rewound: what was logged on another path is not of this one."""

    def receipts(self, timeline: TimelineState, late: Iterable[LoggedControl]) -> tuple[Receipt, ...]:
        """Return a receipt of every control that was acknowledged: applied, still waiting for its chunk, or
        `late`, which may take the place of one that waits."""
        queued = {
            each.control_id: Receipt(
                control_id=each.control_id,
                state="queued",
                chunk_index=max(each.at_chunk, timeline.chunk_index),
            )
            for each in timeline.waiting
        }
        return (*self.applied, *(queued | {each.control.id: each.receipt for each in late}).values())

    def unknown(self, logged: Iterable[LoggedControl], timeline: TimelineState) -> tuple[LoggedControl, ...]:
        """Return the controls that came after the state was saved, in order. One applies at the chunk it was
        queued for, so the state says of each whether it has. Of controls with one id for one chunk the last
        counts; of keys and turns of the view all do, as in the timeline."""
        newest = dict[tuple[str, int], LoggedControl]()
        for each in logged:
            if each.path != self.path:
                continue
            before = newest.pop((each.control.id, each.at_chunk), None)
            newest[each.control.id, each.at_chunk] = each if before is None else each.after(before)
        applied = {
            (receipt.control_id, receipt.chunk_index) for receipt in (*self.applied, *timeline.receipts)
        }
        waiting = {each.control_id: each.control for each in timeline.waiting}
        return tuple(
            each
            for (control_id, chunk), each in newest.items()
            if chunk >= timeline.chunk_index
            and (control_id, chunk) not in applied
            and waiting.get(control_id) != each.control
        )


class LoggedControl(msgspec.Struct, frozen=True, kw_only=True):
    """A control as it was acknowledged: by its id, for a chunk."""

    control: AnyControl
    at_chunk: int
    path: int = 0
    """As in `KeptAs`."""

    def after(self, earlier: LoggedControl) -> LoggedControl:
        """Return it as it waits once it has taken the place of an earlier one."""
        control = self.control
        if isinstance(control, SetActions) and isinstance(earlier.control, SetActions):
            control = control.after(earlier.control)
        return msgspec.structs.replace(self, control=control)

    @property
    def receipt(self) -> Receipt:
        return Receipt(control_id=self.control.id, state="queued", chunk_index=self.at_chunk)


class LastShown(msgspec.Struct, frozen=True, kw_only=True):
    """The last chunk that people may have seen. Written before they see it."""

    chunk: int = -1
    path: int = 0
    """As in `KeptAs`."""

    def open_from(self, kept: KeptAs, timeline: TimelineState) -> int:
        """The first chunk of a session that is back that may be other than it was."""
        return max(timeline.chunk_index, self.chunk + 1) if self.path == kept.path else timeline.chunk_index

    def welcome(self, kept: KeptAs, timeline: TimelineState) -> str:
        """Return the message to the owner and viewers of a session that is back."""
        at = timeline.chunk_index
        open_from = self.open_from(kept, timeline)
        if kept.was_stopped and open_from == at:
            return f"the session goes on at chunk {at}, where its server stopped"
        words = f"the session goes on at chunk {at}, where it was last kept"
        if self.path > kept.path:
            return (
                f"{words}, before it was rewound: it is not rewound any more; controls that have no "
                "receipt here are lost"
            )
        if open_from > at:
            words += f"; up to chunk {open_from - 1} it comes as it was shown, and what is asked for now applies after that"
        return f"{words}. Controls that were acknowledged have a receipt here"
