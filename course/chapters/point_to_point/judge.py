"""Chapter 2, what is asked of an answer."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import torch

from course.checking import load_answer
from millstream.mesh.local_ranks import on_ranks
from millstream.planner.bubbles import bubble


def judge_turns_agree_with_the_planners_bubble(answer: ModuleType) -> None:
    for stages, parts in ((1, 5), (3, 4), (4, 16)):
        turns = answer.pipeline_turns(stages, parts)
        assert abs(1 - parts / turns - bubble("gpipe", stages, parts)) < 1e-9, (
            f"{stages} stages, {parts} parts: {turns} turns"
        )


def judge_three_ranks_shift_without_a_hang(answer: ModuleType) -> None:
    found = on_ranks(shifted, 3, str(answer.__file__), timeout_s=20.0)
    assert found == [2.0, 0.0, 1.0], f"ranks 0, 1, 2 should hold 2, 0, 1, and hold {found}"


def judge_one_rank_shifts_to_itself(answer: ModuleType) -> None:
    assert on_ranks(shifted, 1, str(answer.__file__), timeout_s=20.0) == [0.0], (
        "the only rank's next is itself"
    )


def shifted(rank: int, world: int, path: str) -> float:
    return float(load_answer(Path(path)).shift(torch.full((5000,), float(rank)), rank, world)[-1])
