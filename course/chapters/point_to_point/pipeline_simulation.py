"""Stages one after the other, each a process. Micro-batches go through; each stage waits while the pipeline
fills and drains.

The work of a stage is a sleep, so that it takes equally long on every machine. Processes, messages and
waiting are real.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from course.reader import Reader
from millstream.mesh.local_ranks import on_ranks
from millstream.planner.bubbles import bubble


def run(reader: Reader, stages: int = 3, parts: int = 4, work: float = 0.15) -> None:
    guess = reader.predict(
        f"{stages} stages, {parts} micro-batches. What share of the time does a stage wait, in %?"
    )
    expected = bubble("gpipe", stages, parts)
    answers = on_ranks(stage, stages, parts, work)
    values, begins, ends = zip(*answers, strict=True)
    assert values[-1] == [part + stages for part in range(parts)], f"every stage adds one, got {values[-1]}"
    took = max(ends) - min(begins)
    reader.reveal(guess, 100 * expected, by="(p-1) / (m+p-1), planner.bubbles.bubble", tolerance=0.05)
    reader.say(f"by the formula {parts} + {stages} - 1 = {parts + stages - 1} turns")
    reader.measured(
        f"measured {took / work:.2f} turns of {1000 * work:g} ms; stages waited "
        f"{1 - parts * work / took:.1%} of the time"
    )
    assert took >= (parts + stages - 1) * work, f"{took} s is quicker than the work itself"
    assert took < 2 * (parts + stages - 1) * work, (
        f"{took} s: this machine is too busy for a measurement, try --work 0.5"
    )
    alone = stages * parts * work
    reader.measured(
        f"one process would take {alone / work:.0f} turns: the pipeline is {alone / took:.1f} times as quick"
    )


def stage(rank: int, world: int, parts: int, work: float) -> tuple[list[float], float, float]:
    """Return what this stage sent on, and when it began and ended."""
    dist.barrier()  # only for the clock: all begin together
    begin = time.monotonic()
    out = list[float]()
    for part in range(parts):
        x = torch.tensor(float(part))
        if rank > 0:
            dist.recv(x, src=rank - 1)
        time.sleep(work)
        x += 1
        if rank < world - 1:
            dist.send(x, dst=rank + 1)
        out.append(float(x))
    return out, begin, time.monotonic()
