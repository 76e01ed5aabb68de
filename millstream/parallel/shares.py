"""Which part of each parameter a rank of a topology holds, by the parameter's name in the whole DiT.

Tensor parallel has some of the outputs of what comes first in a pair of matmuls and the same inputs of what
comes second; a layer pipeline has whole blocks; sequence parallel has everything. Knows neither groups nor
files, so that a rank can choose while it reads, before it has met the others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from millstream.core.topology import Topology
from millstream.models.dit import CausalDiT
from millstream.models.weights.fill import frozen, put
from millstream.models.weights.unread import UnreadParameter
from millstream.parallel.balance import Bounds

_OF_BLOCK = re.compile(r"blocks\.(?P<layer>\d+)\.(?P<rest>.+)")
_OUTPUTS = re.compile(
    r"(self_attn\.[qkv]|ffn\.up)\.((plain\.)?(weight|bias)|lora_B\.weight)|self_attn\.norm_[qk]\.weight"
)
_INPUTS = re.compile(r"(self_attn\.o|ffn\.down)\.((plain\.)?weight|lora_A\.weight)")
"""Their bias is whole on every rank, and added once, after the sum. Of a LoRA the factor beside the split is
split with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterShare:
    """The part to keep of a parameter that has been read whole; called with its name."""

    layers: range
    """Blocks that the rank has."""
    parts: int
    """Ranks that share each of them."""
    place: int
    """Place of the rank among those."""

    def __post_init__(self) -> None:
        assert 0 <= self.place < self.parts, f"place {self.place} among {self.parts} ranks"

    def __call__(self, name: str, whole: Tensor) -> Tensor | None:
        found = _OF_BLOCK.fullmatch(name)
        if found is None:
            return whole
        if int(found["layer"]) not in self.layers:
            return None
        return self.part(name, whole)

    def part(self, name: str, whole: Tensor) -> Tensor:
        """Return the rank's part of a parameter, if it has one."""
        dim = split_along(name)
        if self.parts == 1 or dim is None:
            return whole
        assert whole.shape[dim] % self.parts == 0, f"{tuple(whole.shape)} over {self.parts} ranks along {dim}"
        return whole.chunk(self.parts, dim)[self.place]


def split_along(name: str) -> int | None:
    """The dimension along which tensor parallel takes a parameter apart; None for one that every rank has
    whole."""
    found = _OF_BLOCK.fullmatch(name)
    if found is None:
        return None
    return 0 if _OUTPUTS.fullmatch(found["rest"]) else 1 if _INPUTS.fullmatch(found["rest"]) else None


def share_of(topology: Topology, rank: int, bounds: Bounds) -> ParameterShare:
    """Return the share of a rank of the mesh, where `bounds` say which layers are on which stage."""
    assert len(bounds) == topology.pp + 1, f"bounds {bounds} for {topology.pp} stages"
    stage, place = topology.place_of(rank)
    return ParameterShare(
        layers=range(bounds[stage], bounds[stage + 1]),
        parts=topology.tp,
        place=place if topology.tp > 1 else 0,
    )


def keep_share(dit: CausalDiT, share: ParameterShare) -> None:
    """Drop the parameters of a whole DiT that are not the rank's; blocks of other stages stay as they are.
    For parameters that are not read yet, only that part will be read."""
    for name, parameter in list(dit.named_parameters()):
        whole = parameter.detach()
        kept = share(name, whole)
        if kept is None or kept is whole:
            continue
        if isinstance(parameter, UnreadParameter):
            put(dit, name, parameter.cut(partial(share.part, name)))
        else:
            put(dit, name, frozen(kept.clone()))
