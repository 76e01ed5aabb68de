"""Lines that read a number from a tensor. On a GPU each of them waits until everything before it is computed.

Nothing in such a line looks slow. What finds it is a look at every operation: reading a number is one of
them.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from course.reader import Reader
from millstream.core.errors import CourseError

READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}
HERE = Path(__file__).name


class ReadLines(TorchDispatchMode):
    """Counts reads by the line of this file that made them."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in READS:
            where = [
                frame
                for frame in traceback.extract_stack()
                if Path(frame.filename).name == HERE and frame.line
            ]
            named = next(frame for frame in reversed(where) if "__torch_dispatch__" not in frame.name)
            self.lines[str(named.line)] += 1
        return func(*args, **(kwargs or {}))


def run(reader: Reader, steps: int = 10, width: int = 64) -> None:
    if min(steps, width) < 1:
        raise CourseError(f"--steps and --width must be 1 or more, got {steps} and {width}")
    guess = reader.predict(
        f"{steps} steps that keep the best loss and a running mean in Python. How often does the host wait?"
    )
    found = {function: _read_lines(function, steps, width) for function in (chatty, quiet)}
    reader.reveal(guess, found[chatty].total(), by="counted: a comparison and an item in every step")
    reader.say(
        "symptom: no error; the device is idle between steps, and the line that reads looks slow, though it "
        "only waits"
    )
    for line, times in found[chatty].items():
        reader.say(f"tool: {times:3} times in the line `{line}`")
    assert found[chatty].total() == 2 * steps, f"{found[chatty]}"
    assert found[quiet].total() == 2, f"{found[quiet]}"
    reader.say(
        f"fix: keep losses on the device and read at the end: {found[quiet].total()} reads, however many steps"
    )


def chatty(losses: Sequence[Callable[[], Tensor]]) -> tuple[Tensor | float, float]:
    best: Tensor | float = float("inf")
    total = 0.0
    for make in losses:
        loss = make()
        if loss < best:
            best = loss
        total += loss.item()
    return best, total / len(losses)


def quiet(losses: Sequence[Callable[[], Tensor]]) -> tuple[float, float]:
    made = torch.stack([make() for make in losses])
    return made.min().item(), made.mean().item()


def _losses(steps: int, width: int) -> list[Callable[[], Tensor]]:
    weight = torch.randn(width, width, generator=torch.Generator().manual_seed(0))
    return [lambda scale=scale: (weight @ weight).square().mean() / (1 + scale) for scale in range(steps)]  # type: ignore[misc]


def _read_lines(function: Callable[..., object], steps: int, width: int) -> Counter[str]:
    losses = _losses(steps, width)
    seen = ReadLines()
    with seen:
        function(losses)
    return seen.lines
