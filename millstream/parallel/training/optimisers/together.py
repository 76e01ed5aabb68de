"""Several optimisers, of different parameters, as one."""

from __future__ import annotations

import torch

from millstream.parallel.training.optimisers.own import OwnOptimiser


class Together(OwnOptimiser):
    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        """They share their groups and what they keep with it, and are not used by themselves any more."""
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._parts = parts
        for part in parts:
            part.state = self.state

    def _update(self) -> None:
        for part in self._parts:
            part.step()
