"""Which optimiser follows which parameters.

    adamw       all, number by number; torch's fused kernel where a device has it
    adafactor   all; of a matrix it keeps a number a row and one a column
    muon        the matrices inside blocks; AdamW for the rest

What looks at whole matrices is told how to collect them (`parts.py`), whatever the plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from millstream.parallel.training.optimisers.in_whole import InWhole
from millstream.parallel.training.optimisers.masters import Masters
from millstream.parallel.training.optimisers.muon import Muon
from millstream.parallel.training.optimisers.own import Together
from millstream.parallel.training.optimisers.packed_adamw import PackedAdamW
from millstream.parallel.training.parts import Parts

OptimiserName = Literal["adamw", "adafactor", "muon"]
FUSED_ON = ("cuda", "cpu")
"""Kinds of device for which torch has a fused AdamW."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimiserChoice:
    name: OptimiserName = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.01
    state_bits: Literal[8, 32] = 32
    """Of each moment of AdamW's."""
    masters: bool = False
    """Whether float32 weights are kept beside the moments, and weights that are computed with may be of fewer bits."""
    offload: bool = False
    """The same, and all of it in host memory."""

    @property
    def is_plain(self) -> bool:
        """AdamW as torch has it, where the weights are."""
        return self.name == "adamw" and self.state_bits == 32 and not self.has_masters

    @property
    def has_masters(self) -> bool:
        return self.masters or self.offload

    def needs_whole(self, name: str, dims: int) -> bool:
        """Whether a parameter of so many dimensions is collected to be stepped, by its name in the DiT."""
        return self.name == "adafactor" or (self.name == "muon" and is_block_matrix(name, dims))

    def make(self, named: Iterable[tuple[str, nn.Parameter]], parts: Parts) -> torch.optim.Optimizer:
        """For parameters by their names in the DiT, or by that of the first in a unit."""
        named = list(named)
        if self.name == "adamw":
            parameters = [parameter for _, parameter in named]
            return Masters(parameters, self.adamw, in_host=self.offload) if self.has_masters else self.adamw(parameters)
        whole = [parameter for name, parameter in named if self.needs_whole(name, len(parts.shape(parameter)))]
        taken = set(whole)
        rest = [parameter for _, parameter in named if parameter not in taken]
        collects = None if parts.are_whole else parts
        if self.name == "adafactor":
            return self._adafactor(whole) if collects is None else InWhole(whole, self._adafactor, collects)
        muon = Muon(whole, lr=self.lr, weight_decay=self.weight_decay, parts=collects)
        return Together(*([muon] if whole else []), *([self.adamw(rest)] if rest else []))

    def adamw(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        if self.state_bits == 8:
            return PackedAdamW(parameters, lr=self.lr, weight_decay=self.weight_decay)
        fused = all(parameter.device.type in FUSED_ON for parameter in parameters)
        return torch.optim.AdamW(parameters, lr=self.lr, betas=(0.9, 0.99), weight_decay=self.weight_decay, fused=fused)

    def _adafactor(self, parameters: list[nn.Parameter]) -> torch.optim.Adafactor:
        return torch.optim.Adafactor(parameters, lr=self.lr, weight_decay=self.weight_decay)


def is_block_matrix(name: str, dims: int) -> bool:
    return "blocks." in name and dims == 2
