"""A product of matrices split in two ways: by outputs, which are put side by side, and by inputs, which are
added up."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from course.reader import Reader
from millstream.mesh.local_ranks import must_divide, on_ranks

TOKENS = 5
INNER = 8
OUTER = 12


def run(reader: Reader, world: int = 2) -> None:
    must_divide(INNER, "inputs", world)
    must_divide(OUTER, "outputs", world)
    x, weight = example()
    whole = x @ weight.T
    guess = reader.predict(
        f"{TOKENS} tokens, {INNER} inputs, {OUTER} outputs, split by inputs. How many numbers are summed "
        "over ranks?"
    )
    answers = on_ranks(both_ways, world)
    reader.reveal(guess, whole.numel(), by="every rank has a part of every output: tokens times outputs")
    for rank, (column, row, shapes) in enumerate(answers):
        assert torch.allclose(column, whole, atol=1e-6), f"rank {rank}, by outputs"
        assert torch.allclose(row, whole, atol=1e-6), f"rank {rank}, by inputs"
        reader.say(
            f"rank {rank}: by outputs it holds {shapes[0]} of {tuple(weight.shape)}, by inputs {shapes[1]}; "
            "both give the whole"
        )
    reader.say(
        "by outputs: the input is needed whole, the output comes in parts (all-gather, if somebody needs it "
        "whole)"
    )
    reader.say("by inputs: the input is needed in parts, the output is a sum (all-reduce)")


def example() -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(0)
    return torch.randn(TOKENS, INNER, generator=made), torch.randn(OUTER, INNER, generator=made)


def both_ways(rank: int, world: int) -> tuple[Tensor, Tensor, tuple[tuple[int, ...], tuple[int, ...]]]:
    x, weight = example()
    by_outputs = weight.chunk(world, dim=0)[rank]
    by_inputs = weight.chunk(world, dim=1)[rank]
    part = x @ by_outputs.T
    parts = [torch.empty_like(part) for _ in range(world)]
    dist.all_gather(parts, part)
    total = x.chunk(world, dim=1)[rank] @ by_inputs.T
    dist.all_reduce(total)
    return torch.cat(parts, dim=1), total, (tuple(by_outputs.shape), tuple(by_inputs.shape))
