"""A softmax over columns that lie on several ranks, without ever bringing them together: a maximum, then a
sum."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course.reader import Reader
from millstream.mesh.local_ranks import must_divide, on_ranks

ROWS = 2
COLUMNS = 12


def run(reader: Reader, world: int = 3, scale: float = 100.0) -> None:
    must_divide(COLUMNS, "columns", world)
    question = (
        f"{ROWS} rows of {COLUMNS} columns over {world} ranks. How many numbers does a rank give to "
        "collectives?"
    )
    guess = reader.predict(question)
    answers = on_ranks(part_of_softmax, world, scale)
    given = {count for _, count in answers}
    reader.reveal(guess, given.pop(), by="counted: a maximum and a sum for each row")
    assert not given, "every rank gives equally many"
    found = torch.cat([part for part, _ in answers], dim=1)
    expected = scores(scale).softmax(dim=1)
    error = float((found - expected).abs().max())
    assert error < 1e-6, f"off by {error}"
    reader.say(f"{world} ranks against torch.softmax in one process: they agree to within 1e-6")
    largest = scores(scale).max()
    reader.say(
        f"scores reach {float(largest):.0f}; without the maximum, exp of that is {float(largest.exp()):g}"
    )


def scores(scale: float) -> torch.Tensor:
    return scale * torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))


def part_of_softmax(rank: int, world: int, scale: float) -> tuple[torch.Tensor, int]:
    mine = scores(scale).chunk(world, dim=1)[rank]
    largest = mine.max(dim=1, keepdim=True).values
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    raised = (mine - largest).exp()
    total = raised.sum(dim=1, keepdim=True)
    dist.all_reduce(total)
    return raised / total, largest.numel() + total.numel()
