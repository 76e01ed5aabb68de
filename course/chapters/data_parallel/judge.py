"""Chapter 5, what is asked of an answer."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from course.chapters.data_parallel.small_model import gradients, loss_of, make_model, make_rows
from course.checking import load_answer
from millstream.mesh.local_ranks import on_ranks
from millstream.train.parallel.replicas import _in_buckets


def judge_gradients_are_those_of_all_rows(answer: ModuleType) -> None:
    model = make_model()
    loss_of(model, make_rows()).backward()
    alone = torch.cat([each.flatten() for each in gradients(model)])
    for rank, (found, _) in enumerate(on_ranks(averaged, 2, str(answer.__file__), timeout_s=20.0)):
        assert torch.allclose(found, alone, atol=1e-6), (
            f"rank {rank} is off by {float((found - alone).abs().max())}"
        )


def judge_one_all_reduce_is_enough(answer: ModuleType) -> None:
    for rank, (_, calls) in enumerate(on_ranks(averaged, 2, str(answer.__file__), timeout_s=20.0)):
        assert calls == 1, f"rank {rank} made {calls} all-reduces"


def judge_buckets_are_those_of_the_engine(answer: ModuleType) -> None:
    for sizes, limit in (([4, 4, 4, 4], 8), ([1, 9, 1, 3], 4), ([2], 1), ([3, 1, 4, 1, 5, 9, 2, 6], 10)):
        found = answer.in_buckets(sizes, limit)
        parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
        places = {id(parameter): place for place, parameter in enumerate(parameters)}
        engine = [
            [places[id(each)] for each in bucket] for bucket in _in_buckets(parameters[::-1], 4 * limit)
        ]
        assert found == engine, f"{sizes} in buckets of {limit}: {found}, the engine has {engine}"


def averaged(rank: int, world: int, path: str) -> tuple[torch.Tensor, int]:
    model = make_model()
    loss_of(model, make_rows().chunk(world)[rank]).backward()
    with patch.object(dist, "all_reduce", wraps=dist.all_reduce) as counted:
        load_answer(Path(path)).average_gradients(model, world)
    return torch.cat([each.flatten() for each in gradients(model)]), counted.call_count
