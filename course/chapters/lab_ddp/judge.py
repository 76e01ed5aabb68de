"""Lab 02, what is asked of an answer."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course.chapters.data_parallel.ddp_from_scratch import by_torch
from course.chapters.data_parallel.small_model import gradients, loss_of, make_model, make_rows
from course.checking import load_answer
from millstream.mesh.local_ranks import on_ranks

LAYERS = 3
BUCKET = 1200
"""A layer has a weight of 1024 bytes and a bias of 64: both fit into a bucket, two layers do not."""
OFF = 1e-6
"""As far as gradients may be apart."""


def judge_milestone_1_everybody_starts_as_rank_0(answer: ModuleType) -> None:
    """dist.broadcast works in place: give it parameter.data."""
    first, second = on_ranks(start, 2, str(answer.__file__))
    assert torch.equal(first, second), f"the copies differ by {float((first - second).abs().max())}"


def judge_milestone_2_gradients_are_those_of_torchs_ddp(answer: ModuleType) -> None:
    """parameter.register_post_accumulate_grad_hook tells you when a gradient is there. A mean is a sum over
    the world size."""
    for rank, (found, torchs) in enumerate(on_ranks(learned, 2, str(answer.__file__))):
        assert torch.allclose(found, torchs, atol=OFF), (
            f"rank {rank} is off by {float((found - torchs).abs().max())}"
        )


def judge_milestone_3_one_sum_for_each_bucket_and_all_begun_when_the_pass_ends(answer: ModuleType) -> None:
    """Count how many parameters of a bucket are ready; when it is full, all_reduce with async_op=True and
    keep the handle."""
    for rank, (before_finish, after) in enumerate(on_ranks(counted, 2, str(answer.__file__))):
        assert after == LAYERS, f"rank {rank} made {after} sums of {LAYERS} buckets"
        assert before_finish == after, (
            f"rank {rank} had begun {before_finish} of {after} when the backward pass was over"
        )


def judge_milestone_4_gradients_add_up_without_a_sum(answer: ModuleType) -> None:
    """A flag that no_sync sets and the hooks look at. Set it back in a finally."""
    model = make_model()
    loss_of(model, make_rows()).backward()
    whole = torch.cat([each.flatten() for each in gradients(model)])
    for rank, (found, inside) in enumerate(on_ranks(accumulated, 2, str(answer.__file__))):
        assert inside == 0, f"rank {rank} made {inside} sums inside no_sync"
        assert torch.allclose(found, whole, atol=OFF), (
            f"rank {rank} is off by {float((found - whole).abs().max())}"
        )


def start(rank: int, world: int, path: str) -> Tensor:
    torch.manual_seed(rank)
    model = nn.Linear(4, 3)
    load_answer(Path(path)).Copies(model, BUCKET)
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def learned(rank: int, world: int, path: str) -> tuple[Tensor, Tensor]:
    mine = make_rows().chunk(world)[rank]
    model = make_model(LAYERS)
    copies = load_answer(Path(path)).Copies(model, BUCKET)
    for _ in range(2):  # a second step finds what the first one left behind
        model.zero_grad()
        loss_of(model, mine).backward()
        copies.finish()
    found = torch.cat([each.flatten() for each in gradients(model)])
    return found, torch.cat([each.flatten() for each in by_torch(make_model(LAYERS), mine)])


def counted(rank: int, world: int, path: str) -> tuple[int, int]:
    """Sums begun before `finish`, and in all."""
    model = make_model(LAYERS)
    copies = load_answer(Path(path)).Copies(model, BUCKET)
    with patch.object(dist, "all_reduce", wraps=dist.all_reduce) as sums:
        loss_of(model, make_rows().chunk(world)[rank]).backward()
        begun = sum(bool(call.kwargs.get("async_op")) for call in sums.call_args_list)
        copies.finish()
    return begun, sums.call_count


def accumulated(rank: int, world: int, path: str) -> tuple[Tensor, int]:
    model = make_model()
    copies = load_answer(Path(path)).Copies(model, BUCKET)
    halves = make_rows().chunk(world)[rank].chunk(2)
    with patch.object(dist, "all_reduce", wraps=dist.all_reduce) as sums, copies.no_sync():
        (loss_of(model, halves[0]) / 2).backward()
    (loss_of(model, halves[1]) / 2).backward()
    copies.finish()
    return torch.cat([each.flatten() for each in gradients(model)]), sums.call_count
