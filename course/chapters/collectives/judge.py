"""Chapter 3, what is asked of an answer."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import torch

from course.checking import load_answer
from millstream.mesh.local_ranks import on_ranks


def judge_every_rank_gets_the_norm_of_the_whole_vector(answer: ModuleType) -> None:
    whole = float(torch.cat([shard_of(rank) for rank in range(3)]).norm())
    found = on_ranks(norm, 3, str(answer.__file__), timeout_s=20.0)
    assert all(abs(each - whole) < 1e-4 * whole for each in found), (
        f"the norm is {whole:.4f}, the ranks have {found}"
    )


def judge_a_ring_brings_everything_to_everybody(answer: ModuleType) -> None:
    found = on_ranks(gathered, 3, str(answer.__file__), timeout_s=20.0)
    expected = [[10.0 * rank, 10.0 * rank + 1] for rank in range(3)]
    assert found == [expected] * 3, f"every rank should hold {expected}, they hold {found}"


def shard_of(rank: int) -> torch.Tensor:
    return torch.arange(float(rank + 2)) - rank


def norm(rank: int, world: int, path: str) -> float:
    return float(load_answer(Path(path)).norm_of_all(shard_of(rank)))


def gathered(rank: int, world: int, path: str) -> list[list[float]]:
    mine = torch.tensor([10.0 * rank, 10.0 * rank + 1])
    found: list[list[float]] = load_answer(Path(path)).gathered_by_a_ring(mine, rank, world).tolist()
    return found
