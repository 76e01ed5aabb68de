"""Alpha and beta of this machine: all-reduces are timed, two sizes give the line, and a third one tests
it."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from course.reader import Reader
from millstream.commands.plan.collectives import fit_alpha_beta
from millstream.mesh.local_ranks import on_ranks
from millstream.planner.communication import all_reduce
from millstream.planner.hardware import Link

SMALL = 1 << 12
LARGE = 1 << 24


def run(reader: Reader, world: int = 2, middle: int = 1 << 22, tries: int = 15) -> None:
    seconds = on_ranks(quickest, world, (SMALL, middle, LARGE), tries)[0]
    alpha_us, beta_gb_s = fit_alpha_beta({SMALL: seconds[SMALL], LARGE: seconds[LARGE]}, world)
    for size in (SMALL, LARGE):
        reader.measured(f"all-reduce of {size:9} bytes over {world} ranks: {1e3 * seconds[size]:8.3f} ms")
    reader.measured(f"from these two: alpha {alpha_us:.0f} us, beta {beta_gb_s:.2f} GB/s")
    guess = reader.predict(f"how many ms does an all-reduce of {middle} bytes take here?")
    reader.reveal(guess, 1e3 * seconds[middle], by="measured", tolerance=0.5, is_measured=True)
    expected = all_reduce(middle, world, Link(name="here", alpha_us=alpha_us, beta_gb_s=beta_gb_s))
    reader.measured(f"planner.communication.all_reduce with this alpha and beta says {expected:.3f} ms")
    assert 0.1 < 1e3 * seconds[middle] / expected < 10, (
        f"{1e3 * seconds[middle]} ms measured, {expected} ms by the formula"
    )


def quickest(rank: int, world: int, sizes: tuple[int, ...], tries: int) -> dict[int, float]:
    """Seconds by size. The quickest try is the one that other programs disturbed least."""
    return {size: min(_timed(torch.zeros(size // 4)) for _ in range(tries)) for size in sizes}


def _timed(x: torch.Tensor) -> float:
    dist.barrier()
    begin = time.perf_counter()
    dist.all_reduce(x)
    return time.perf_counter() - begin
