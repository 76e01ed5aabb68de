"""Which gradients are followed: not those that are no numbers, nor those far above the ones before them."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping

import torch
from torch import Tensor

REMEMBERED = 64
ENOUGH = 16
"""Norms without which nothing is called usual."""


class SpikeGuard:
    def __init__(self, factor: float) -> None:
        """0 lets everything through that is a number."""
        self.in_a_row = 0
        """Steps that were left out since one was taken."""
        self._factor = factor
        self._norms: deque[float] = deque(maxlen=REMEMBERED)

    def may_step(self, norm: float) -> bool:
        """The same on every rank, since the norm is."""
        assert not norm < 0, f"a norm of {norm}"
        usual = statistics.median(self._norms) if len(self._norms) >= ENOUGH else math.inf
        good = math.isfinite(norm) and not (self._factor and norm > self._factor * usual)
        self.in_a_row = 0 if good else self.in_a_row + 1
        if good:
            self._norms.append(norm)
        return good

    def state(self) -> dict[str, Tensor]:
        """To go on from: what was usual, and what was left out."""
        return {
            "norms": torch.tensor(list(self._norms), dtype=torch.float64),
            "in_a_row": torch.tensor(self.in_a_row, dtype=torch.float64),
        }

    def take(self, state: Mapping[str, Tensor]) -> None:
        self._norms = deque(state["norms"].tolist(), maxlen=REMEMBERED)
        self.in_a_row = int(state["in_a_row"])

    def forget(self) -> None:
        """What was usual, after going back."""
        self.in_a_row = 0
        self._norms.clear()
