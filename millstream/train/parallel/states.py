"""State of a learner, parameter by parameter and whole: the same whatever plan it was shared out by.

A parameter's state is its weight and what the optimiser keeps for it, by name: `weight`, `step`, `exp_avg`
and `exp_avg_sq` (AdamW) or others, and `average` where one is kept. Learners turn what a rank has into that,
one parameter (or one unit of ZeRO) at a time, and take their part of it back. All ranks that share parameters
iterate together, since parts are collected on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from millstream.parallel.collectives import RankGroup
from millstream.parallel.shares import split_along
from millstream.train.parallel.optimisers.own import WEIGHT, kept_by, take_back
from millstream.train.parallel.parts import part_like, whole_of
from millstream.train.parallel.zero import Zero

AVERAGE = "average"
KEPT_WHOLE = ("row_var", "col_var", "variance")
"""Kinds of state that Adafactor keeps of whole parameters, on every rank."""
Named = Iterable[tuple[str, nn.Parameter]]


class ParameterState(NamedTuple):
    name: str
    """Name in the whole DiT."""
    tensors: dict[str, Tensor]


Read = Callable[[str], Mapping[str, Tensor]]
"""Function that reads a parameter's state by the parameter's name."""


@torch.no_grad()
def states_of(
    named: Named, optimiser: torch.optim.Optimizer | None, tensor: RankGroup
) -> Iterator[ParameterState]:
    """Yield the states of parameters that a rank has whole, as its share of a tensor group, or as torch's
    shards. Without an optimiser, their weights alone."""
    for name, parameter in named:
        held = {WEIGHT: parameter.detach(), **({} if optimiser is None else kept_by(optimiser, parameter))}
        yield ParameterState(
            name, {kind: _whole(kind, value, split_along(name), tensor) for kind, value in held.items()}
        )


@torch.no_grad()
def take_states(named: Named, optimiser: torch.optim.Optimizer, tensor: RankGroup, read: Read) -> None:
    for name, parameter in named:
        dim = split_along(name)
        parts = {
            kind: _part(kind, value, parameter.detach(), dim, tensor) for kind, value in read(name).items()
        }
        take_back(optimiser, parameter, parts.pop(WEIGHT), parts)


@torch.no_grad()
def states_of_zero(zero: Zero, optimiser: torch.optim.Optimizer | None) -> Iterator[ParameterState]:
    for unit in zero.units:
        held = {WEIGHT: unit.mine.detach(), **({} if optimiser is None else kept_by(optimiser, unit.mine))}
        laid_out = {kind for kind, value in held.items() if value.ndim and kind not in KEPT_WHOLE}
        whole = {
            kind: unit.whole(value) if kind in laid_out else value.clone() for kind, value in held.items()
        }
        for name, place in unit.places():
            state = {kind: place.of(value) if kind in laid_out else value for kind, value in whole.items()}
            yield ParameterState(name, state)


@torch.no_grad()
def take_states_of_zero(zero: Zero, read: Read) -> None:
    for unit in zero.units:
        found = [dict(read(name)) for name, _ in unit.places()]
        laid_out = {kind for kind, value in found[0].items() if value.ndim and kind not in KEPT_WHOLE}
        mine = {
            kind: unit.part([each[kind] for each in found]) if kind in laid_out else found[0][kind]
            for kind in found[0]
        }
        parts = {kind: value.to(unit.mine.device) for kind, value in mine.items()}
        take_back(zero.optimiser, unit.mine, parts.pop(WEIGHT), parts)
        unit.updated()


def _whole(kind: str, value: Tensor, dim: int | None, tensor: RankGroup) -> Tensor:
    """Return the whole value as a copy, which later steps do not change."""
    found = value if kind in KEPT_WHOLE else whole_of(value, dim, tensor)
    return found.clone() if found is value else found


def _part(kind: str, whole: Tensor, parameter: Tensor, dim: int | None, tensor: RankGroup) -> Tensor:
    return (
        whole.to(parameter.device, copy=True)
        if kind in KEPT_WHOLE
        else part_like(whole, parameter, dim, tensor)
    )
