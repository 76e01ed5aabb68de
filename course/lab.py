"""Measurements for the labs: bytes held, seconds of a step, and the link between ranks here.

Memory is counted, not sampled: every storage once, whatever tensors refer to it. Seconds are the quickest of
several, which other programs disturbed least.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from course.chapters.physics.alpha_beta import quickest
from course.reader import Reader
from course.svg import COLOURS, Svg
from millstream.commands.plan.collectives import fit_alpha_beta
from millstream.core.errors import CourseError
from millstream.planner.hardware import Link
from millstream.planner.training import TrainingState

SMALL = 1 << 12
LARGE = 1 << 22
LINK_TRIES = 9


def answer_in(script: str, answer: str) -> Path:
    """Return the reader's own file, or the solution beside a script of a lab."""
    if answer and not Path(answer).is_file():
        raise CourseError(f"there is no {answer}; millstream course check hands out the file of a lab")
    return Path(answer).absolute() if answer else Path(script).parent / "solution.py"


def held_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of all storages that these tensors refer to, on this rank."""
    storages = (_local(tensor).untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def held_state(parameters: Iterable[Tensor], optimiser: torch.optim.Optimizer) -> TrainingState:
    """Return the bytes that this rank holds of a model in training, between a backward pass and the next.
    Counters of steps are left out."""
    stepped = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    every = [*parameters, *stepped]
    kept = [
        each
        for state in optimiser.state.values()
        for each in state.values()
        if torch.is_tensor(each) and each.dim()
    ]
    return TrainingState(
        weights=held_bytes(every),
        gradients=held_bytes(parameter.grad for parameter in every if parameter.grad is not None),
        optimizer=held_bytes(kept),
        average=0.0,
        host=0.0,
    )


def quickest_s(step: Callable[[], object], tries: int = 5) -> float:
    """Return the seconds of the quickest run. A first run, which also prepares, is not counted."""
    step()
    return min(_timed(step) for _ in range(tries))


def fitted_link(rank: int, world: int) -> Link:
    """Measure alpha and beta between these ranks; all of them must call this."""
    alpha_us, beta_gb_s = fit_alpha_beta(quickest(rank, world, (SMALL, LARGE), LINK_TRIES), world)
    return Link(name="here", alpha_us=alpha_us, beta_gb_s=beta_gb_s)


def say_state(reader: Reader, name: str, held: TrainingState, planned: TrainingState) -> None:
    """Print the kilobytes of a rank, counted and by the planner."""
    found = f"weights {_kb(held.weights)}, gradients {_kb(held.gradients)}, optimiser {_kb(held.optimizer)}"
    reader.say(f"{name:22} {found}: {_kb(held.total)} kB; the planner says {_kb(planned.total)}")


def bars(title: str, rows: dict[str, TrainingState]) -> str:
    """Draw what a rank holds, one row for each way to hold it."""
    picture = Svg(640, 60 + 44 * len(rows), title)
    longest = max(state.total for state in rows.values())
    for row, (name, state) in enumerate(rows.items()):
        x = 170.0
        y = 20 + 44 * row
        picture.text(10, y + 22, name)
        for colour, part in enumerate((state.weights, state.gradients, state.optimizer)):
            width = 440 * part / longest
            if width:
                picture.box(x, y, width, 32, fill=COLOURS[colour])
            x += width
    for colour, name in enumerate(("weights", "gradients", "optimiser")):
        picture.text(170 + 130 * colour, 44 + 44 * len(rows), name, fill=COLOURS[colour])
    return str(picture)


def _kb(size: float) -> str:
    return f"{size / 1e3:.1f}"


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _timed(step: Callable[[], object]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin
