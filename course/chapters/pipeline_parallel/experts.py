"""Experts on several ranks: each token goes to the rank that has its expert, and back. A popular one keeps
all waiting.

The engine's models have no experts; this is what one would need.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from course.reader import Reader
from millstream.mesh.local_ranks import must_divide, on_ranks

TOKENS = 12
WIDTH = 8
EXPERTS = 4


def run(reader: Reader, world: int = 2) -> None:
    must_divide(EXPERTS, "experts", world)
    must_divide(TOKENS, "tokens", world)
    tokens, router, experts = example()
    chosen = (tokens @ router.T).argmax(dim=1)
    expected = torch.stack(
        [experts[choice] @ token for token, choice in zip(tokens, chosen.tolist(), strict=True)]
    )
    loads = [int((chosen // (EXPERTS // world) == rank).sum()) for rank in range(world)]
    reader.say(
        f"{TOKENS} tokens chose experts {chosen.tolist()}; rank r has {EXPERTS // world} of {EXPERTS} experts"
    )
    guess = reader.predict("how many tokens does the busiest rank get?")
    answers = on_ranks(through_experts, world)
    reader.reveal(guess, max(got for _, got in answers), by="counted")
    assert [got for _, got in answers] == loads, f"{answers} against {loads}"
    found = torch.cat([out for out, _ in answers])
    assert torch.allclose(found, expected, atol=1e-5), f"off by {float((found - expected).abs().max())}"
    for rank, load in enumerate(loads):
        reader.say(f"rank {rank} worked on {load} tokens, {load / (TOKENS / world):.0%} of an equal share")
    reader.say(
        "two all-to-alls a layer: there and back; every token is again with the rank it came from, as in one "
        "process"
    )


def example() -> tuple[Tensor, Tensor, Tensor]:
    made = torch.Generator().manual_seed(3)
    shapes = ((TOKENS, WIDTH), (EXPERTS, WIDTH), (EXPERTS, WIDTH, WIDTH))
    tokens, router, experts = (torch.randn(*shape, generator=made) for shape in shapes)
    return tokens, router, experts


def through_experts(rank: int, world: int) -> tuple[Tensor, int]:
    """This rank's tokens after their experts, and how many tokens this rank's experts worked on."""
    tokens, router, experts = example()
    mine = tokens.chunk(world)[rank]
    each = EXPERTS // world
    chosen = (mine @ router.T).argmax(dim=1)
    order = chosen.argsort(stable=True)  # tokens of the same rank lie side by side
    leaves = torch.bincount(chosen // each, minlength=world)
    comes = torch.empty_like(leaves)
    dist.all_to_all_single(comes, leaves)  # first the counts, so that there is room
    got = _exchanged(mine[order], leaves, comes)
    got_chosen = _exchanged(chosen[order], leaves, comes)
    made = torch.stack(
        [experts[choice] @ token for token, choice in zip(got, got_chosen.tolist(), strict=True)]
    )
    out = torch.empty_like(mine)
    out[order] = _exchanged(made, comes, leaves)
    return out, len(got)


def _exchanged(x: Tensor, leaves: Tensor, comes: Tensor) -> Tensor:
    found = x.new_empty(int(comes.sum()), *x.shape[1:])
    dist.all_to_all_single(found, x.contiguous(), comes.tolist(), leaves.tolist())
    return found
