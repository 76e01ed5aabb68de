"""One program, started several times. Each copy prints its rank, and together they add up their numbers."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from course.reader import Reader
from millstream.mesh.local_ranks import on_ranks


def run(reader: Reader, world: int = 3, port: int = 0) -> None:
    guess = reader.predict(
        f"{world} ranks each give their own rank number, and all of them are added. What does every rank get?"
    )
    answers = on_ranks(hello, world, port=port)
    reader.reveal(guess, world * (world - 1) / 2, by="0 + 1 + ... + (n-1) = n(n-1)/2")
    for rank, (told_rank, told_world, total, _) in enumerate(answers):
        assert (told_rank, told_world) == (rank, world), f"rank {rank} was told {told_rank} of {told_world}"
        assert total == world * (world - 1) / 2, f"rank {rank} has {total}"
        reader.say(f"rank {told_rank} of {told_world} has the sum {total:g}")
    processes = {process for *_, process in answers}
    assert len(processes) == world, f"{world} ranks were {len(processes)} processes"
    assert os.getpid() not in processes
    reader.say(f"they were {len(processes)} different processes, and none of them was this one")


def hello(rank: int, world: int) -> tuple[int, int, float, int]:
    """Every rank runs this very function. Only the numbers that it is given tell them apart."""
    mine = torch.tensor(float(rank))
    dist.all_reduce(mine)
    print(f"  (live, in any order) hello from rank {dist.get_rank()} in process {os.getpid()}", flush=True)
    return dist.get_rank(), dist.get_world_size(), float(mine), os.getpid()
