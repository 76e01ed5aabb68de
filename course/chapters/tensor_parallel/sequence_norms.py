"""Between two products every rank would norm all tokens. With tokens shared out there, an all-reduce becomes
its two halves."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from course.reader import Reader
from millstream.core.presets import find_model
from millstream.mesh.local_ranks import must_divide, on_ranks
from millstream.planner.communication import all_gather, all_reduce
from millstream.planner.hardware import NVLINK4
from millstream.planner.training import activation_bytes

TOKENS = 8
WIDTH = 16


def run(reader: Reader, world: int = 2) -> None:
    must_divide(TOKENS, "tokens", world)
    expected = F.layer_norm(
        sum(partial(rank) for rank in range(world)) + torch.zeros(TOKENS, WIDTH), (WIDTH,)
    )
    for rank, (whole, by_tokens, normed) in enumerate(on_ranks(both_ways, world)):
        assert torch.allclose(whole, expected, atol=1e-5), f"rank {rank}, all tokens"
        assert torch.allclose(by_tokens, expected, atol=1e-5), f"rank {rank}, its own tokens"
        reader.say(
            f"rank {rank}: with its {normed} of {TOKENS} tokens normed, and then gathered, the result is the same"
        )
    size = 1e9
    ranks = 8
    halves = 2 * all_gather(size, ranks, NVLINK4)
    one = all_reduce(size, ranks, NVLINK4)
    assert abs(halves - one) < 1e-9, f"{halves} and {one} ms"
    reader.say(
        f"{size / 1e9:g} GB over {ranks} ranks of {NVLINK4.name}: all-reduce {one:.2f} ms, reduce-scatter "
        "and all-gather "
        f"{halves:.2f} ms"
    )
    dit = find_model("wan2.1-t2v-14b").dit
    tokens = 32760
    tp = 8
    guess = reader.predict(
        f"a 14B block keeps activations of {tokens:,} tokens, tp {tp}. How many times less with tokens "
        "shared out too?"
    )
    without, with_it = (
        activation_bytes(dit, tokens, recompute="none", tp=tp, sequence=each) for each in (False, True)
    )
    reader.reveal(guess, without / with_it, by="planner.training.activation_bytes", tolerance=0.2)
    reader.say(f"one block: {without / 1e9:.2f} GB without, {with_it / 1e9:.2f} GB with")


def partial(rank: int) -> Tensor:
    """Return a rank's part of a product that was split by inputs: a summand for every token."""
    return torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(rank))


def both_ways(rank: int, world: int) -> tuple[Tensor, Tensor, int]:
    total = partial(rank)
    dist.all_reduce(total)
    mine = torch.empty(TOKENS // world, WIDTH)
    dist.reduce_scatter(mine, list(partial(rank).chunk(world)))
    normed = F.layer_norm(mine, (WIDTH,))
    parts = [torch.empty_like(normed) for _ in range(world)]
    dist.all_gather(parts, normed)
    return F.layer_norm(total, (WIDTH,)), torch.cat(parts), len(normed)
