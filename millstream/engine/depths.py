"""How many chunks may be under way between plan and pictures, and what suits which generator."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from millstream.core.errors import ConfigError
from millstream.core.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class Depths:
    """How many chunks may be under way."""

    d_in: int = 2
    """Chunks with the generator."""
    d_out: int = 2
    """Chunks that are back and not looked at."""
    send_first: bool = True
    """True if the next chunk leaves before this one's pictures are here: with decoded anchors, when its
    anchor is there."""
    shares_device: bool = False
    """True if the device that generates also makes the pictures: they are queued behind their chunk, and the
    next chunk after them."""

    def __post_init__(self) -> None:
        if self.d_in < 1 or self.d_out < 1:
            raise ConfigError(f"queues hold 1 chunk or more, got d_in {self.d_in} and d_out {self.d_out}")


ONE_AT_A_TIME = Depths(d_in=1, d_out=1, send_first=False)
"""For a generator in this process that works while it is called: there is nothing to overlap with."""
QUEUED = Depths(d_in=1, d_out=1, shares_device=True)
"""For a GPU of this process: the next chunk is queued before this one's pictures are waited for, so the GPU
never is idle."""


def depths_for(topology: Topology, device: torch.device) -> Depths:
    """Return the depths that suit a generator of this topology on this device."""
    if not topology.is_local:
        return Depths()
    return QUEUED if device.type == "cuda" else ONE_AT_A_TIME
