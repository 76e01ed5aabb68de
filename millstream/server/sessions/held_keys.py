"""Keys that a session's clients hold: by which connection, and since when those wait that are yet to be shown.

What is held until a client says otherwise would be held for ever where that client has died. Plain
bookkeeping: the timeline has the keys themselves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from millstream.core.controls import Receipt, SetActions
from millstream.server.sessions.receipts import MAX_RECEIPTS

RELEASED = SetActions()


class HeldKeys:
    def __init__(self) -> None:
        self.holder: object | None = None
        """Connection that has sent the keys that are held; None: none are, or they came without one."""
        self._last = RELEASED
        self._waiting: OrderedDict[str, float | None] = OrderedDict()
        """Arrival of what changed something, by the id of a control that has not applied; None where nothing
        changed."""
        self._to_show: dict[int, float] = {}
        """Arrival of the oldest change in a chunk that is yet to be shown."""

    @property
    def are_held(self) -> bool:
        return bool(self._last.keys) or any(self._last.axes)

    def queued(self, control: SetActions, receipt: Receipt, arrived: float | None, by: object | None) -> None:
        """`arrived` is None for one that waits for a later chunk."""
        changes = (
            set(control.keys) != set(self._last.keys)
            or control.axes != self._last.axes
            or bool(control.tapped)
            or any(control.look)
        )
        earlier = self._waiting.get(receipt.control_id)
        self._waiting[receipt.control_id] = (arrived if changes else None) if earlier is None else earlier
        if len(self._waiting) > MAX_RECEIPTS:
            self._waiting.popitem(last=False)
        self._last = control
        self.holder = by if self.are_held else None

    def has_asked(self, receipt: Receipt) -> bool:
        """Return whether a receipt is of keys that wait."""
        return receipt.control_id in self._waiting

    def applied(self, receipts: Sequence[Receipt]) -> float | None:
        """Return when the oldest change among these controls arrived; None: nothing has changed."""
        moments = [self._waiting.pop(receipt.control_id, None) for receipt in receipts]
        return min((moment for moment in moments if moment is not None), default=None)

    def expect(self, chunk: int, arrived: float | None) -> None:
        """Note the chunk that shows a change."""
        if arrived is not None:
            self._to_show[chunk] = arrived

    def shown(self, chunk: int) -> float | None:
        """Return when the oldest change arrived that a chunk shows first."""
        return self._to_show.pop(chunk, None)
