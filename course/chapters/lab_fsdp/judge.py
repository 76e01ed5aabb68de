"""Lab 03, what is asked of an answer."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from course.chapters.data_parallel.small_model import loss_of, make_model, make_rows
from course.chapters.lab_fsdp.watching import watch, whole_bytes
from course.checking import load_answer
from course.lab import held_bytes
from millstream.mesh.local_ranks import on_ranks

LAYERS = 3
STEPS = 2


def judge_milestone_1_by_block_one_block_is_whole_at_a_time(answer: ModuleType) -> None:
    """fully_shard every child first and the model last: whoever comes last takes what nobody has taken."""
    for rank, (by_block, as_one, size) in enumerate(on_ranks(policies, 2, str(answer.__file__))):
        assert max(by_block) == size // LAYERS, (
            f"rank {rank}: {by_block} bytes were whole, a block has {size // LAYERS}"
        )
        assert max(as_one) == size, (
            f"rank {rank}: as one unit {as_one} bytes were whole, the model has {size}"
        )


def judge_milestone_2_without_resharding_weights_stay_until_the_backward_pass(answer: ModuleType) -> None:
    """fully_shard has an argument for it."""
    for rank, (let_go, kept, size) in enumerate(on_ranks(strategies, 2, str(answer.__file__))):
        assert let_go == 0, f"rank {rank}: {let_go} bytes were whole between the passes, with resharding"
        assert kept == size, (
            f"rank {rank}: {kept} of {size} bytes were whole between the passes, without resharding"
        )


def judge_milestone_3_hybrid_holds_a_half_on_four_ranks(answer: ModuleType) -> None:
    """init_device_mesh with two sizes: the outer axis repeats, the inner one shards."""
    for rank, (mine, size) in enumerate(on_ranks(hybrid, 4, str(answer.__file__))):
        assert mine == size // 2, f"rank {rank} of 4 holds {mine} bytes, half of the model is {size // 2}"


def judge_milestone_4_states_are_those_of_one_process_and_come_back(answer: ModuleType) -> None:
    """torch.distributed.checkpoint.state_dict has get_model_state_dict and set_model_state_dict; ask for the
    full one. The second changes the dictionary that it is given."""
    alone = make_model(LAYERS)
    learn(alone, make_rows())
    for rank, (state, again) in enumerate(on_ranks(states, 2, str(answer.__file__))):
        assert state.keys() == alone.state_dict().keys(), f"rank {rank} has {list(state)}"
        for name, weight in alone.state_dict().items():
            assert not isinstance(state[name], DTensor), f"{name} is still in parts on rank {rank}"
            assert torch.allclose(state[name], weight, atol=1e-6), (
                f"{name} of rank {rank} is not that of one process"
            )
            assert torch.equal(state[name], again[name]), f"{name} of rank {rank} did not come back"


def policies(rank: int, world: int, path: str) -> tuple[list[int], list[int], int]:
    answer = load_answer(Path(path))
    seen = list[list[int]]()
    for by_block in (True, False):
        model = make_model(LAYERS)
        size = held_bytes(model.parameters())
        answer.shard(model, answer.mesh_of(world, world), by_block=by_block, reshards=True)
        seen.append(watch(model))
        loss_of(model, make_rows()).backward()
    return seen[0], seen[1], size


def strategies(rank: int, world: int, path: str) -> tuple[int, int, int]:
    """Whole bytes after a forward pass, with and without resharding. The outermost unit always keeps its own,
    here none."""
    answer = load_answer(Path(path))
    found = list[int]()
    for reshards in (True, False):
        model = make_model(LAYERS)
        size = held_bytes(model.parameters())
        answer.shard(model, answer.mesh_of(world, world), by_block=True, reshards=reshards)
        loss = loss_of(model, make_rows())
        found.append(whole_bytes(model))
        loss.backward()
    return found[0], found[1], size


def hybrid(rank: int, world: int, path: str) -> tuple[int, int]:
    answer = load_answer(Path(path))
    model = make_model(LAYERS)
    size = held_bytes(model.parameters())
    answer.shard(model, answer.mesh_of(world, 2), by_block=True, reshards=True)
    return held_bytes(model.parameters()), size


def learn(model: nn.Module, rows: Tensor) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss_of(model, rows).backward()
        optimiser.step()


def states(rank: int, world: int, path: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    answer = load_answer(Path(path))
    models = [make_model(LAYERS), make_model(LAYERS)]
    for model in models:
        answer.shard(model, answer.mesh_of(world, world), by_block=True, reshards=True)
    learn(models[0], make_rows().chunk(world)[rank])
    state = {name: weight.clone() for name, weight in answer.whole_state(models[0]).items()}
    answer.take_state(models[1], state)
    return state, answer.whole_state(models[1])
