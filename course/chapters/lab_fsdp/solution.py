"""Lab 03, solution."""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

WHOLE = StateDictOptions(full_state_dict=True)


def mesh_of(world: int, shards: int) -> DeviceMesh:
    if shards == world:
        return init_device_mesh("cpu", (world,), mesh_dim_names=("shards",))
    return init_device_mesh("cpu", (world // shards, shards), mesh_dim_names=("copies", "shards"))


def shard(model: nn.Sequential, mesh: DeviceMesh, *, by_block: bool, reshards: bool) -> None:
    for block in model if by_block else ():
        fully_shard(block, mesh=mesh, reshard_after_forward=reshards)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshards)


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    state: dict[str, Tensor] = dict(get_model_state_dict(model, options=WHOLE))  # type: ignore[arg-type]
    return state


def take_state(model: nn.Module, state: dict[str, Tensor]) -> None:
    set_model_state_dict(
        model, dict(state), options=WHOLE
    )  # it puts parts into the dictionary that it is given
