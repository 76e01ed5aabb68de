"""Check of this machine: what it has, and whether two ranks can start, meet and add two numbers."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from course.reader import Reader
from millstream.mesh.local_ranks import on_ranks


def run(reader: Reader, world: int = 2) -> None:
    assert dist.is_available(), "this build of torch has no torch.distributed; install one from pytorch.org"
    assert dist.is_gloo_available(), "this build of torch has no gloo, through which CPUs speak"
    reader.measured(f"torch {torch.__version__}, {os.cpu_count()} cores, {torch.cuda.device_count()} GPUs")
    sums = on_ranks(add_one, world)
    assert sums == [float(world)] * world, f"{world} ranks added up to {sums}"
    reader.say(f"{world} ranks started, met, and each holds the sum of {world} ones: {sums[0]:g}")
    reader.say("everything works; go on with hello_distributed")


def add_one(rank: int, world: int) -> float:
    one = torch.ones(())
    dist.all_reduce(one)
    return float(one)
