"""Chapter 6, what is asked of an answer."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from course.checking import load_answer
from millstream.core.presets import find_model
from millstream.mesh.local_ranks import on_ranks


def judge_two_ranks_give_the_output_of_one(answer: ModuleType) -> None:
    x, up, up_bias, down, down_bias = example()
    whole = F.gelu(x @ up.T + up_bias) @ down.T + down_bias
    for rank, (found, *_) in enumerate(on_ranks(shared, 2, str(answer.__file__), timeout_s=20.0)):
        assert torch.allclose(found, whole, atol=1e-4), (
            f"rank {rank} is off by {float((found - whole).abs().max()):.3g}"
        )


def judge_one_sum_is_enough_and_half_of_the_work_is_done(answer: ModuleType) -> None:
    for rank, (_, sums, hidden) in enumerate(on_ranks(shared, 2, str(answer.__file__), timeout_s=20.0)):
        assert sums == 1, f"rank {rank} made {sums} all-reduces"
        assert hidden == 6, f"rank {rank} activated {hidden} hidden units; its share of 12 is 6"


def judge_a_14b_call_sums_what_it_sums(answer: ModuleType) -> None:
    dit = find_model("wan2.1-t2v-14b").dit
    tokens = 4680
    found = answer.sums_mb(dit.layers, tokens, dit.width)
    per_block = 2 * tokens * dit.width * 2
    assert abs(found - dit.layers * per_block / 1e6) < 1e-6, (
        f"{dit.layers} layers, {tokens} tokens, width {dit.width}: {found} MB"
    )


def example() -> tuple[Tensor, ...]:
    made = torch.Generator().manual_seed(0)
    return tuple(torch.randn(*shape, generator=made) for shape in ((5, 8), (12, 8), (12,), (8, 12), (8,)))


def shared(rank: int, world: int, path: str) -> tuple[Tensor, int, int]:
    answer = load_answer(Path(path))
    with (
        patch.object(dist, "all_reduce", wraps=dist.all_reduce) as sums,
        patch.object(F, "gelu", wraps=F.gelu) as activated,
    ):
        found = answer.shared_mlp(*example(), rank, world)
    assert activated.call_count == 1, f"torch.nn.functional.gelu was called {activated.call_count} times"
    return found, sums.call_count, activated.call_args.args[0].shape[-1]
