"""Alpha and beta between the ranks of this machine, fitted from all-reduces of several sizes.

One process per GPU over NCCL; on a processor two processes over gloo. They meet through a file and always
end: a group that does not answer within a minute is given up.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from millstream.planner.hardware import Link

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 24)
"""Bytes."""
_RUNS = 9


def fit_link(on: torch.device) -> Link | None:
    """None where there is no other rank."""
    ranks = min(8, torch.cuda.device_count()) if on.type == "cuda" else 2
    if ranks < 2:
        return None
    with tempfile.TemporaryDirectory() as folder:
        measured = Path(folder) / "seconds"
        spawn(_rank, args=(ranks, on.type, f"file://{folder}/meet", str(measured)), nprocs=ranks)
        seconds = dict(zip(SIZES, map(float, measured.read_text().split()), strict=True))
    alpha_us, beta_gb_s = fit_alpha_beta(seconds, ranks)
    return Link(name=f"{ranks} ranks here", alpha_us=alpha_us, beta_gb_s=beta_gb_s)


def fit_alpha_beta(seconds: Mapping[int, float], ranks: int) -> tuple[float, float]:
    """A ring's `2(n-1) alpha + 2(n-1)/n bytes/beta` through the measurements: alpha from the smallest, beta
    from the slope."""
    hops = 2 * (ranks - 1)
    small = min(seconds)
    large = max(seconds)
    slope = max((seconds[large] - seconds[small]) / (large - small), 1e-15)
    return seconds[small] / hops * 1e6, hops / ranks / slope / 1e9


def _rank(rank: int, ranks: int, kind: str, meeting: str, out: str) -> None:
    torch.set_num_threads(1)
    if kind == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(
        backend, init_method=meeting, rank=rank, world_size=ranks, timeout=timedelta(minutes=1)
    )
    try:
        quickest = [_all_reduce_s(size, kind) for size in SIZES]
    finally:
        dist.destroy_process_group()
    if rank == 0:
        Path(out).write_text(" ".join(map(str, quickest)))


def _all_reduce_s(size: int, kind: str) -> float:
    tensor = torch.zeros(size // 4, device=kind)
    seconds = []
    for _ in range(_RUNS):
        _settled(kind)
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        _settled(kind)
        seconds.append(time.perf_counter() - begin)
    return min(seconds[2:])


def _settled(kind: str) -> None:
    if kind == "cuda":
        torch.cuda.synchronize()
