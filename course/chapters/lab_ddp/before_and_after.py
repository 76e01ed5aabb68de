"""A step with a sum for every gradient, with your buckets, with torch's: bytes, sums and seconds, and what
the planner says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course.chapters.data_parallel.ddp_from_scratch import by_hand
from course.chapters.data_parallel.small_model import loss_of, make_model, make_rows
from course.checking import load_answer
from course.lab import answer_in, fitted_link, held_state, quickest_s, say_state
from course.reader import Reader
from millstream.mesh.local_ranks import must_divide, on_ranks
from millstream.planner.communication import all_reduce
from millstream.planner.training import TrainingState, learner_state

LAYERS = 12
WIDTH = 64
ROWS = 32
BUCKET = 70_000


class MeasuredStep(NamedTuple):
    state: TrainingState
    sums: int
    seconds: float
    planned_ms: float
    """Milliseconds of the sums, predicted by the planner with this machine's alpha and beta."""


def run(reader: Reader, world: int = 2, answer: str = "") -> None:
    """`answer`: your file, instead of our solution."""
    must_divide(ROWS, "rows", world)
    count = sum(each.numel() for each in make_model(LAYERS, WIDTH).parameters())
    planned = learner_state(count, 0, data="replicas", ranks=world)
    guess = reader.predict(
        f"{count} parameters in float32 with Adam on {world} ranks. How many kB of state has a rank?"
    )
    found = on_ranks(measured, world, answer_in(__file__, answer))[0]
    state = found["your buckets"].state
    reader.reveal(
        guess,
        state.total / 1e3,
        by=f"counted: {state.total / count:g} bytes a parameter, on every rank",
        tolerance=0.02,
    )
    assert state == planned, f"counted {state}, planned {planned}"
    say_state(reader, "before and after", state, planned)
    assert found["a sum for each"].sums > found["your buckets"].sums >= 1, f"buckets are fewer sums: {found}"
    for name, each in found.items():
        sums = f"{each.sums:2} sums" if each.sums else "its own sums"
        reader.measured(
            f"{name:16} {sums:12} a step of {1e3 * each.seconds:6.1f} ms; the planner: {each.planned_ms:.2f} "
            "ms of it to sum"
        )
    reader.say(
        "data parallel saves no memory. It shares the rows, and pays for the sums; buckets pay alpha less often"
    )


def measured(rank: int, world: int, path: Path) -> dict[str, MeasuredStep]:
    rows = make_rows(ROWS, WIDTH).chunk(world)[rank]
    link = fitted_link(rank, world)
    found = dict[str, MeasuredStep]()
    ways: dict[str, Callable[[nn.Module], Callable[[], object]]] = {
        "a sum for each": lambda model: partial(by_hand, model, rows),
        "your buckets": lambda model: _with_copies(model, load_answer(path).Copies(model, BUCKET), rows),
        "torch's DDP": lambda model: _backward(model, DistributedDataParallel(model), rows),
    }
    for name, way in ways.items():
        model = make_model(LAYERS, WIDTH)
        optimiser = torch.optim.AdamW(model.parameters())
        gradients = way(model)

        def step(
            optimiser: torch.optim.Optimizer = optimiser, gradients: Callable[[], object] = gradients
        ) -> None:
            optimiser.zero_grad()
            gradients()
            optimiser.step()

        with patch.object(dist, "all_reduce", wraps=dist.all_reduce) as sums:
            step()
        seconds = quickest_s(step)
        held = held_state(model.parameters(), optimiser)
        times = sums.call_count or 1  # torch's are in C++, where nobody counts them: one bucket
        found[name] = MeasuredStep(
            held, sums.call_count, seconds, times * all_reduce(held.gradients / times, world, link)
        )
    return found


def _with_copies(model: nn.Module, copies: object, rows: torch.Tensor) -> Callable[[], object]:
    def gradients() -> None:
        loss_of(model, rows).backward()
        copies.finish()  # type: ignore[attr-defined]

    return gradients


def _backward(model: nn.Module, wrapped: nn.Module, rows: torch.Tensor) -> Callable[[], object]:
    return lambda: loss_of(wrapped, rows).backward()
