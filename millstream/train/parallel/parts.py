"""Parts of parameters and the wholes they belong to: a share of a tensor group, torch's shards, a part of a
unit.

All ranks that share a parameter ask for its whole together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from millstream.parallel.collectives import RankGroup
from millstream.parallel.shares import split_along
from millstream.train.parallel.zero import Unit


class Parts(Protocol):
    """Relation between the parameters that an optimiser is given and the model's whole ones."""

    @property
    def are_whole(self) -> bool:
        """True if every parameter is whole, so that nothing needs to be collected."""
        ...

    def shape(self, parameter: Tensor) -> torch.Size:
        """Return the shape of the whole parameter."""
        ...

    def whole(self, parameter: Tensor, value: Tensor) -> Tensor:
        """Return the whole of a value that is held as the parameter is, from all ranks' parts."""
        ...

    def part(self, parameter: Tensor, whole: Tensor) -> Tensor:
        """Return the part of a whole value that this rank holds, as the parameter is held."""
        ...


class HeldParts:
    """Parts of parameters, by their names in the DiT."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], tensor: RankGroup) -> None:
        self._dims: dict[Tensor, int | None] = {
            parameter: split_along(name) if tensor.size > 1 else None for name, parameter in named
        }
        self._tensor = tensor

    @property
    def are_whole(self) -> bool:
        return all(
            dim is None and not isinstance(parameter, DTensor) for parameter, dim in self._dims.items()
        )

    def shape(self, parameter: Tensor) -> torch.Size:
        shape = list(parameter.shape)
        dim = self._dims[parameter]
        if dim is not None:
            shape[dim] *= self._tensor.size
        return torch.Size(shape)

    def whole(self, parameter: Tensor, value: Tensor) -> Tensor:
        return whole_of(value, self._dims[parameter], self._tensor)

    def part(self, parameter: Tensor, whole: Tensor) -> Tensor:
        return part_like(whole, parameter, self._dims[parameter], self._tensor)


class UnitParts:
    """Parts of ZeRO's units; a unit of one parameter can be collected."""

    are_whole = False

    def __init__(self, units: Sequence[Unit]) -> None:
        self._units: dict[Tensor, Unit] = {unit.mine: unit for unit in units}

    def shape(self, parameter: Tensor) -> torch.Size:
        shapes = [place.shape for _, place in self._units[parameter].places()]
        return shapes[0] if len(shapes) == 1 else parameter.shape

    def whole(self, parameter: Tensor, value: Tensor) -> Tensor:
        unit = self._units[parameter]
        ((_, place),) = unit.places()
        return place.of(unit.whole(value))

    def part(self, parameter: Tensor, whole: Tensor) -> Tensor:
        return self._units[parameter].part([whole])


def whole_of(value: Tensor, dim: int | None, tensor: RankGroup) -> Tensor:
    """Return the whole of a value, perhaps the value itself. A number, such as a step count, is the same on
    every rank."""
    value = value.full_tensor() if isinstance(value, DTensor) else value
    if value.ndim == 0 or dim is None or tensor.size == 1:
        return value
    return torch.cat(list(RankGroup.collect(tensor, value, "state")), dim=dim)


def part_like(whole: Tensor, parameter: Tensor, dim: int | None, tensor: RankGroup) -> Tensor:
    """Return this rank's part, held as the parameter is: as torch's shards and on its device. Every rank has
    the whole, so nothing is sent."""
    part = whole if dim is None or whole.ndim == 0 else whole.chunk(tensor.size, dim)[tensor.place]
    if whole.ndim == 0 or not isinstance(parameter, DTensor):
        return part.to(parameter.device).clone(
            memory_format=torch.contiguous_format
        )  # fused kernels count on it
    found = torch.empty_like(parameter, dtype=whole.dtype)
    assert isinstance(found, DTensor), f"{type(found)} like a sharded tensor"
    sharded = distribute_tensor(part, parameter.device_mesh, parameter.placements, src_data_rank=None)
    found.to_local().copy_(sharded.to_local())
    return found
