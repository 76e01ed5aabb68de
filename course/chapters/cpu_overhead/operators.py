"""How many operators a decode step is, and what each costs before it computes anything."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from course.reader import Reader
from course.tinylm.cache import CachedText, PagedCache
from course.tinylm.model import TinyLM
from course.tinylm.training import trained
from millstream.core.errors import CourseError


class OperatorCount(TorchDispatchMode):
    """Counts what torch is asked to do. On a GPU each would be a kernel or more, views aside."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def run(reader: Reader, rows: int = 32) -> None:
    if not 2 <= rows <= 128:
        raise CourseError(f"--rows must be 2 to 128, got {rows}")
    lm = trained()
    with OperatorCount() as counted:
        step(lm, 1)
    guess = reader.predict(
        f"a model of {lm.config.layers} layers decodes one letter. How many operators, views not counted?"
    )
    reader.reveal(guess, counted.count, by="counted by a dispatch mode", tolerance=0.5, is_measured=True)
    assert counted.count > 20 * lm.config.layers, f"{counted.count} operators"
    alone, many = (min(step(lm, count) for _ in range(10)) for count in (1, rows))
    reader.measured(f"one letter  {1e6 * alone:7.0f} us, {1e6 * alone / counted.count:5.1f} us an operator")
    reader.measured(f"{rows} letters  {1e6 * many:7.0f} us, {many / alone:5.1f} times as long")
    assert many < 0.75 * rows * alone, "most of a small step is not arithmetic"
    flops = 2 * sum(each.numel() for each in lm.parameters())
    reader.say(f"the arithmetic of a letter is {flops} operations: microseconds. The rest is asking for it")


@torch.no_grad()
def step(lm: TinyLM, rows: int) -> float:
    """Seconds of one decode step of so many texts."""
    cache = PagedCache(lm.config, pages=2 * rows)
    texts = [CachedText() for _ in range(rows)]
    tokens: Tensor = torch.zeros(rows, 16, dtype=torch.long)
    lm(tokens, cache.grow(texts, 16))
    memory = cache.grow(texts, 1)
    begun = time.perf_counter()
    lm(tokens[:, :1], memory)
    return time.perf_counter() - begun
