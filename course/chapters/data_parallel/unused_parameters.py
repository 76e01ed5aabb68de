"""A parameter that the loss does not reach. By hand the wrong numbers are added up; the engine names the
parameter."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course.reader import Reader
from millstream.core.errors import RankRaised
from millstream.mesh.local_ranks import on_ranks
from millstream.train.parallel.groups import create_world
from millstream.train.parallel.replicas import Replicas


class TwoBranches(nn.Module):
    """Only one of its weights is used for a row, as with experts or dropped layers."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.ones(1))
        self.right = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, branch: str) -> Tensor:
        weight: Tensor = getattr(self, branch)
        return (x * weight).sum()


def run(reader: Reader) -> None:
    left, right = on_ranks(by_hand, 2)
    reader.say(
        f"by hand: rank 0 used 'left' and has its gradient {left['left']:g}; rank 1 used 'right' and has "
        f"{right['right']:g}"
    )
    assert left["left"] == right["right"] == (1 + 100) / 2, f"{left}, {right}"
    reader.say(
        "symptom: no error. Gradients of two different weights were averaged, and the copies now differ"
    )
    try:
        on_ranks(by_the_engine, 2)
    except RankRaised as error:
        said = error.problem
    else:
        raise AssertionError("a parameter without a gradient went unnoticed")
    assert "right" in said, f"the engine said {said}"
    reader.say(f"the engine, where both ranks use 'left': {said}")
    mended = on_ranks(mended_by_zero, 2)
    assert mended[0] == mended[1] == {"left": 0.5, "right": 50.0}, f"{mended}"
    reader.say(
        f"fix: both weights take part on both ranks, one of them times zero; both ranks now have {mended[0]}"
    )


def by_hand(rank: int, world: int) -> dict[str, float]:
    model = TwoBranches()
    model(torch.tensor([1.0 if rank == 0 else 100.0]), "left" if rank == 0 else "right").backward()
    for parameter in model.parameters():
        if parameter.grad is not None:  # this line is the mistake: ranks leave out different sums
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
    return {
        name: float(parameter.grad)
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def by_the_engine(rank: int, world: int) -> None:
    model = TwoBranches()
    replicas = Replicas(model, create_world())
    model(torch.ones(1), "left").backward()
    replicas.finish()


def mended_by_zero(rank: int, world: int) -> dict[str, float]:
    model = TwoBranches()
    replicas = Replicas(model, create_world())
    x = torch.tensor([1.0 if rank == 0 else 100.0])
    branches = ("left", "right") if rank == 0 else ("right", "left")
    (model(x, branches[0]) + 0 * model(x, branches[1])).backward()
    replicas.finish()
    return {
        name: float(parameter.grad)
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
