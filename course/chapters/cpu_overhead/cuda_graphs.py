"""A decode step of the tiny model, launched kernel by kernel and as a CUDA graph. Needs a GPU, and says so
where there is none.

A graph is recorded once and repeats the same kernels on the same memory. So the step must have one shape: a
cache of fixed length, a position that lies in a tensor, a mask in place of a longer or shorter text.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from course.reader import Reader
from course.tinylm.model import TinyConfig, TinyLM
from course.tinylm.training import trained
from millstream.core.errors import CourseError

LONGEST = 128
STEPS = 200


class FixedMemory:
    """Room for `LONGEST` tokens a row, always read whole; which of them count is a mask."""

    def __init__(self, config: TinyConfig, rows: int, device: torch.device) -> None:
        self._room = torch.zeros(
            2, config.layers, rows, LONGEST, config.kv_heads, config.head_width, device=device
        )
        self.positions_BL = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self._places = torch.arange(LONGEST, device=device)
        self.mask_BLT = self._places <= self.positions_BL[..., None]
        self._rows = torch.arange(rows, device=device)

    def extend(self, layer: int, k_BLGH: Tensor, v_BLGH: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self._room[:, layer]
        self.mask_BLT = self._places <= self.positions_BL[..., None]  # within what is recorded
        k[self._rows, self.positions_BL[:, 0]] = k_BLGH[:, 0]
        v[self._rows, self.positions_BL[:, 0]] = v_BLGH[:, 0]
        return k, v


def run(reader: Reader, rows: int = 1) -> None:
    if rows < 1:
        raise CourseError(f"--rows must be 1 or more, got {rows}")
    lm = trained()
    plain = written(eager_step(lm, rows, torch.device("cpu")))
    assert lm(torch.tensor([plain[:-1]]))[0].argmax(-1).tolist() == plain[1:], (
        "a cache of fixed length changes the letters"
    )
    reader.say(
        f"the same {len(plain)} letters are written with a cache of fixed length, whose shapes never change"
    )
    if not torch.cuda.is_available():
        reader.measured("“no CUDA device here: nothing to record”")
        return
    device = torch.device("cuda")
    lm = lm.to(device)
    eager = eager_step(lm, rows, device)
    recorded = recorded_step(lm, rows, device)
    assert written(recorded) == written(eager), "a graph writes the same letters"
    times = [1e6 * seconds_of(step) for step in (eager, recorded)]
    assert times[1] < times[0], f"{times}"
    name = torch.cuda.get_device_name()
    reader.measured(
        f"“{name}: {times[0]:.0f} us a step, {times[1]:.0f} as a graph, {times[0] / times[1]:.1f} times as fast”"
    )


Step = Callable[[int, int], Tensor]
"""From a letter and its place to the next one's logits."""


def eager_step(lm: TinyLM, rows: int, device: torch.device) -> Step:
    memory = FixedMemory(lm.config, rows, device)
    token = torch.zeros(rows, 1, dtype=torch.long, device=device)

    @torch.no_grad()
    def step(letter: int, place: int) -> Tensor:
        token.fill_(letter)
        memory.positions_BL.fill_(place)
        return lm(token, memory)

    return step


def recorded_step(lm: TinyLM, rows: int, device: torch.device) -> Step:
    memory = FixedMemory(lm.config, rows, device)
    token = torch.zeros(rows, 1, dtype=torch.long, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        for _ in range(3):  # libraries choose and allocate before anything is recorded
            lm(token, memory)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            logits = lm(token, memory)

    def step(letter: int, place: int) -> Tensor:
        token.fill_(letter)
        memory.positions_BL.fill_(place)
        graph.replay()
        return logits

    return step


def written(step: Step) -> list[int]:
    letters = [0]
    for place in range(40):
        letters.append(int(step(letters[-1], place)[0, -1].argmax()))
    return letters


def seconds_of(step: Step) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for place in range(STEPS):
        step(1, place % LONGEST)
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / STEPS
