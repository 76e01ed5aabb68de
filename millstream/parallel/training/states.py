"""What a learner would need to go on, parameter by parameter and whole: the same whatever plan it was shared out by.

A parameter's state is its weight and what the optimiser keeps for it, under their names: `weight`, `exp_avg`, `exp_avg_sq`,
`step`, and `average` where one is kept. Holders turn what a rank has into that, one parameter (or one unit of ZeRO) at a time,
and take their part of it back. All ranks that share parameters go through them together: parts are collected on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from millstream.parallel.collectives import RankGroup
from millstream.parallel.shares import split_along
from millstream.parallel.training.zero import Zero

WEIGHT, AVERAGE = "weight", "average"
Named = Iterable[tuple[str, nn.Parameter]]


class ParameterState(NamedTuple):
    name: str
    """In the whole DiT."""
    tensors: dict[str, Tensor]


Read = Callable[[str], Mapping[str, Tensor]]
"""A parameter's state by the parameter's name."""


@torch.no_grad()
def states_of(named: Named, optimiser: torch.optim.Optimizer | None, tensor: RankGroup) -> Iterator[ParameterState]:
    """Of parameters that a rank has whole, as its share of a tensor group, or as torch's shards. Without an optimiser, their
    weights alone."""
    for name, parameter in named:
        held = {WEIGHT: parameter.detach(), **({} if optimiser is None else optimiser.state.get(parameter, {}))}
        yield ParameterState(name, {kind: _whole(value, split_along(name), tensor) for kind, value in held.items()})


@torch.no_grad()
def take_states(named: Named, optimiser: torch.optim.Optimizer, tensor: RankGroup, read: Read) -> None:
    for name, parameter in named:
        found = dict(read(name))
        _copy(found.pop(WEIGHT), parameter, split_along(name), tensor)
        if found:
            dim = split_along(name)
            optimiser.state[parameter] = {kind: _like(value, parameter, dim, tensor) for kind, value in found.items()}


@torch.no_grad()
def states_of_zero(zero: Zero, optimiser: torch.optim.Optimizer | None) -> Iterator[ParameterState]:
    for unit in zero.units:
        held = {WEIGHT: unit.mine.detach(), **({} if optimiser is None else optimiser.state.get(unit.mine, {}))}
        whole = {kind: unit.whole(value) if value.ndim else value for kind, value in held.items()}
        for name, place in unit.places():
            yield ParameterState(name, {kind: place.of(value) if value.ndim else value for kind, value in whole.items()})


@torch.no_grad()
def take_states_of_zero(zero: Zero, read: Read) -> None:
    for unit in zero.units:
        found = [dict(read(name)) for name, _ in unit.places()]
        kinds = {kind: value.ndim for kind, value in found[0].items()}
        whole = {kind: unit.part([each[kind] for each in found]) if ndim else found[0][kind] for kind, ndim in kinds.items()}
        unit.mine.copy_(whole.pop(WEIGHT))
        zero.optimiser.state[unit.mine] = whole
        unit.updated()


def _whole(value: Tensor, dim: int | None, tensor: RankGroup) -> Tensor:
    """A number of steps is the same on every rank."""
    value = value.full_tensor() if isinstance(value, DTensor) else value.clone()
    if value.ndim == 0 or dim is None or tensor.size == 1:
        return value
    return torch.cat(list(RankGroup.collect(tensor, value, "state")), dim=dim)


def _part(whole: Tensor, dim: int | None, tensor: RankGroup) -> Tensor:
    return whole if dim is None or whole.ndim == 0 else whole.chunk(tensor.size, dim)[tensor.place]


def _sharded(whole: Tensor, like: DTensor) -> DTensor:
    """Everybody has the whole: nothing travels."""
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def _copy(whole: Tensor, parameter: nn.Parameter, dim: int | None, tensor: RankGroup) -> None:
    part, held = _part(whole, dim, tensor), parameter.detach()
    if isinstance(held, DTensor):
        part, held = _sharded(part, held).to_local(), held.to_local()
    held.copy_(part)


def _like(whole: Tensor, parameter: nn.Parameter, dim: int | None, tensor: RankGroup) -> Tensor:
    """As the optimiser keeps it for that parameter."""
    if whole.ndim == 0:
        return whole.clone()
    part, held = _part(whole, dim, tensor), parameter.detach()
    return _sharded(part, held) if isinstance(held, DTensor) else part.clone()
