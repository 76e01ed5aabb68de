"""Receipts of one session's controls: the last of each, and since when those wait that are to show at
once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from millstream.core.controls import Receipt

MAX_RECEIPTS = 512
"""Twice what can wait."""


class KnownReceipts:
    def __init__(self) -> None:
        self._last: OrderedDict[str, Receipt] = OrderedDict()
        """By the control's id; the oldest are forgotten first."""
        self._asked: dict[str, float] = {}
        """No more of them wait than a timeline takes."""

    def queued(self, receipt: Receipt, asked: float | None) -> None:
        """`asked` is when, of one that is to show at once."""
        if asked is not None:
            self._asked[receipt.control_id] = asked
        self._keep(receipt)

    def applied(self, receipts: Sequence[Receipt]) -> list[float]:
        """When those that were to show at once were asked for."""
        for receipt in receipts:
            self._keep(receipt)
        asked = [self._asked.pop(receipt.control_id, None) for receipt in receipts]
        return [moment for moment in asked if moment is not None]

    def find(self, control_id: str) -> Receipt | None:
        """Return the last receipt of a control that was asked for before."""
        return self._last.get(control_id)

    def all(self) -> tuple[Receipt, ...]:
        """Return the last receipts, for clients that poll."""
        return tuple(self._last.values())

    def _keep(self, receipt: Receipt) -> None:
        self._last[receipt.control_id] = receipt
        self._last.move_to_end(receipt.control_id)
        if len(self._last) > MAX_RECEIPTS:
            self._last.popitem(last=False)
