"""Lab 03. Fill in the functions, then run `millstream course check lab-03`."""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh


def mesh_of(world: int, shards: int) -> DeviceMesh:
    """On the CPU. All ranks share one copy: one axis. Else two axes: copies that repeat each other, and parts
    of a copy."""
    raise NotImplementedError("mesh_of")


def shard(model: nn.Sequential, mesh: DeviceMesh, *, by_block: bool, reshards: bool) -> None:
    """In place, with `torch.distributed.fsdp.fully_shard`.

    `by_block`: every block is a unit that is collected by itself; else the whole model is one unit.
    `reshards`: a unit's weights are let go of between its forward and its backward pass (ZeRO-3); else they
    stay until the backward pass (ZeRO-2).
    """
    raise NotImplementedError("shard")


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """All weights, whole, on every rank, as plain tensors: what one process would save."""
    raise NotImplementedError("whole_state")


def take_state(model: nn.Module, state: dict[str, Tensor]) -> None:
    """The way back: each rank takes its part of whole weights."""
    raise NotImplementedError("take_state")
