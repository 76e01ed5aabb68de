"""Prompt embeddings travel once: afterwards a chunk names one by its id.

The sender keeps the ids, the receiver the tensors. Both see the same chunks in the same order and forget by
the same rule, the one used longest ago first, so that what one believes to be held the other holds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from millstream.wire.parcel import Parcel

CAPACITY = 32
"""As many prompts as the text encoder remembers."""


class KnownConditionings:
    """The sender's side: which ids the receiver holds."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        assert capacity > 0, "what is named must be held"
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._capacity = capacity

    def strip(self, parcels: Sequence[Parcel]) -> tuple[Sequence[Parcel], KnownConditionings]:
        """The parcels without the conditionings that need not travel, and what the receiver holds once it has
        them."""
        if all(parcel.conditioning is None for parcel in parcels):
            return parcels, self
        then = KnownConditionings(self._capacity)
        then._ids = self._ids.copy()
        return [then._strip(parcel) for parcel in parcels], then

    def _strip(self, parcel: Parcel) -> Parcel:
        if parcel.conditioning is None:
            return parcel
        name = parcel.envelope.conditioning_id
        known = name in self._ids
        self._ids[name] = None
        self._ids.move_to_end(name)
        while len(self._ids) > self._capacity:
            self._ids.popitem(last=False)
        return replace(parcel, conditioning=None) if known else parcel


class HeldConditionings:
    """The receiver's side: the tensors."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        assert capacity > 0, "what is named must be held"
        self._tensors: OrderedDict[str, Tensor] = OrderedDict()
        self._capacity = capacity

    def restore(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        """The parcels with the conditionings they name; without, where one is not held: `validate` refuses
        that."""
        return [self._restore(parcel) for parcel in parcels]

    def _restore(self, parcel: Parcel) -> Parcel:
        name = parcel.envelope.conditioning_id
        if not parcel.envelope.reset_cross:
            return parcel
        if parcel.conditioning is not None:
            self._tensors[name] = parcel.conditioning
        elif name not in self._tensors:
            return parcel
        self._tensors.move_to_end(name)
        while len(self._tensors) > self._capacity:
            self._tensors.popitem(last=False)
        return replace(parcel, conditioning=self._tensors[name])
