"""Guard against gradient spikes: steps are left out whose gradients are not finite or far above those before
them."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping

import torch
from torch import Tensor

REMEMBERED = 64
ENOUGH = 16
"""Norms that must be known before one can count as a spike."""


class SpikeGuard:
    def __init__(self, factor: float) -> None:
        """With a factor of 0 all finite gradients are followed."""
        self.in_a_row = 0
        """Number of steps left out since one was taken."""
        self._factor = factor
        self._norms: deque[float] = deque(maxlen=REMEMBERED)

    def may_step(self, norm: float) -> bool:
        """Return whether to take a step with this norm. The answer is the same on every rank, since the norm
        is."""
        assert not norm < 0, f"a norm of {norm}"
        usual = statistics.median(self._norms) if len(self._norms) >= ENOUGH else math.inf
        good = math.isfinite(norm) and not (self._factor and norm > self._factor * usual)
        self.in_a_row = 0 if good else self.in_a_row + 1
        if good:
            self._norms.append(norm)
        return good

    def state(self) -> dict[str, Tensor]:
        """Return the state to go on from: the last norms, and the steps left out."""
        return {
            "norms": torch.tensor(list(self._norms), dtype=torch.float64),
            "in_a_row": torch.tensor(self.in_a_row, dtype=torch.float64),
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self._norms = deque(state["norms"].tolist(), maxlen=REMEMBERED)
        self.in_a_row = int(state["in_a_row"])

    def forget(self) -> None:
        """Forget the last norms, after a rollback."""
        self.in_a_row = 0
        self._norms.clear()
