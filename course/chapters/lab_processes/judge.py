"""Lab 01, what is asked of an answer."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course.chapters.data_parallel.small_model import WIDTH, make_model, make_rows
from course.checking import load_answer
from millstream.mesh.local_ranks import on_ranks

ROWS = 7
"""Over two ranks, which does not divide."""
OFF = 1e-6
"""As far as outputs may be apart."""


def judge_milestone_1_every_rank_has_a_device(answer: ModuleType) -> None:
    """A machine's GPUs are numbered from 0 on every machine: what is left of the rank after whole
    machines?"""
    found = [answer.device_of(rank, 4) for rank in (0, 3, 4, 9)]
    assert found == ["cuda:0", "cuda:3", "cuda:0", "cuda:1"], (
        f"ranks 0, 3, 4 and 9 of machines with 4 GPUs: {found}"
    )
    assert answer.device_of(3, 0) == "cpu", f"without a GPU: {answer.device_of(3, 0)}"


def judge_milestone_2_all_start_as_rank_0_by_one_broadcast(answer: ModuleType) -> None:
    """Lay the parameters end to end with torch.cat, broadcast that, and copy_ the parts back inside
    torch.no_grad()."""
    for rank, (same, calls) in enumerate(on_ranks(start, 2, str(answer.__file__))):
        assert same, f"rank {rank} does not hold rank 0's parameters"
        assert calls == 1, f"rank {rank} made {calls} broadcasts"


def judge_milestone_3_outputs_are_those_of_one_process(answer: ModuleType) -> None:
    """all_gather wants equal shapes everywhere: fill the shorter part up, and cut the end off after
    gathering."""
    whole = make_model()(make_rows(ROWS))
    for rank, (found, _) in enumerate(forwards(str(answer.__file__))):
        assert found.shape == whole.shape, (
            f"rank {rank} returned {tuple(found.shape)}, there are {tuple(whole.shape)}"
        )
        assert torch.allclose(found, whole, atol=OFF), (
            f"rank {rank} is off by {float((found - whole).abs().max())}"
        )


def judge_milestone_4_nobody_computes_more_than_its_part(answer: ModuleType) -> None:
    """Cut the rows before they go through the model, not after."""
    counts = [count for _, count in forwards(str(answer.__file__))]
    assert max(counts) <= -(-ROWS // 2), f"{ROWS} rows over 2 ranks: they computed {counts}"


@cache
def forwards(path: str) -> list[tuple[Tensor, int]]:
    return on_ranks(forward, 2, path)


def start(rank: int, world: int, path: str) -> tuple[bool, int]:
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    before = list(model.parameters())
    with patch.object(dist, "broadcast", wraps=dist.broadcast) as counted:
        load_answer(Path(path)).same_start(model)
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    pairs = zip(model.parameters(), first.parameters(), before, strict=True)
    return all(torch.equal(mine, theirs) and mine is old for mine, theirs, old in pairs), counted.call_count


class CountedRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = make_model(width=WIDTH)
        self.rows = 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        made: Tensor = self.model(x)
        return made


def forward(rank: int, world: int, path: str) -> tuple[Tensor, int]:
    model = CountedRows()
    return load_answer(Path(path)).shared_forward(model, make_rows(ROWS), rank, world).detach(), model.rows
