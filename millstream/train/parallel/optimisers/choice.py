"""Choice of the optimiser for each parameter.

    adamw       all, number by number; torch's fused kernel where a device has it
    adafactor   all; of a matrix it keeps a number a row and one a column
    muon        the matrices inside blocks; AdamW for the rest

An optimiser that needs whole matrices is given a way to collect them (`parts.py`), whatever the plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from millstream.train.parallel.optimisers.in_whole import InWhole
from millstream.train.parallel.optimisers.masters import Masters
from millstream.train.parallel.optimisers.muon import Muon
from millstream.train.parallel.optimisers.own import Together
from millstream.train.parallel.optimisers.packed_adamw import PackedAdamW
from millstream.train.parallel.parts import Parts

OptimiserName = Literal["adamw", "adafactor", "muon"]
FUSED_ON = ("cuda", "cpu")
"""Device types for which torch has a fused AdamW."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimiserChoice:
    name: OptimiserName = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.01
    state_bits: Literal[8, 32] = 32
    """Bits of each of AdamW's two moments."""
    masters: bool = False
    """Keep float32 weights beside the moments; the weights that are computed with may then have fewer
    bits."""
    offload: bool = False
    """Like `masters`, with the float32 weights and the moments in host memory."""

    @property
    def is_plain(self) -> bool:
        """True for torch's own AdamW, with its state beside the weights."""
        return self.name == "adamw" and self.state_bits == 32 and not self.has_masters

    @property
    def has_masters(self) -> bool:
        return self.masters or self.offload

    def needs_whole(self, name: str, dims: int) -> bool:
        """Return whether a parameter, by its name in the DiT and its number of dimensions, must be whole for
        its step."""
        return self.name == "adafactor" or (self.name == "muon" and is_block_matrix(name, dims))

    def make(self, named: Iterable[tuple[str, nn.Parameter]], parts: Parts) -> torch.optim.Optimizer:
        """Make the optimiser for parameters by their names in the DiT; a unit has the name of its first
        parameter."""
        named = list(named)
        if self.name == "adamw":
            parameters = [parameter for _, parameter in named]
            return (
                Masters(parameters, self.adamw, in_host=self.offload)
                if self.has_masters
                else self.adamw(parameters)
            )
        whole = [
            parameter for name, parameter in named if self.needs_whole(name, len(parts.shape(parameter)))
        ]
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
        return torch.optim.AdamW(
            parameters, lr=self.lr, betas=(0.9, 0.99), weight_decay=self.weight_decay, fused=fused
        )

    def _adafactor(self, parameters: list[nn.Parameter]) -> torch.optim.Adafactor:
        return torch.optim.Adafactor(parameters, lr=self.lr, weight_decay=self.weight_decay)


def is_block_matrix(name: str, dims: int) -> bool:
    return "blocks." in name and dims == 2
