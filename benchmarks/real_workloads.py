"""Workloads that really run, on this machine's processor, under torch.profiler: each has one thing it mostly
does.

Several ranks are real processes over gloo. What is slow on purpose is slow for real; what waits, sleeps.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.profiler import ProfilerActivity, profile, record_function

from millstream import Engine
from millstream.ops.precision import cpu_has_bfloat16
from millstream.video.writer import VideoWriter

Step = Callable[[], object]


def products() -> None:
    dtype = torch.bfloat16 if cpu_has_bfloat16() else torch.float32
    a, b = (torch.randn(2048, 2048, dtype=dtype) for _ in range(2))
    for _ in range(12):
        a @ b


def walks() -> None:
    a = torch.ones(16 << 20)
    b = torch.ones(16 << 20)
    out = torch.empty_like(a)
    for _ in range(12):
        torch.add(a, b, out=out)


def tiny_operators() -> None:
    x = torch.ones(16)
    for _ in range(8000):
        x.mul_(1.0)


def python_between() -> None:
    a = torch.randn(256, 256)
    for _ in range(40):
        sum(number * number for number in range(40_000))
        a @ a


def slow_loader() -> None:
    a = torch.randn(512, 512)
    for _ in range(10):
        with record_function("dataloader next_batch"):
            time.sleep(0.03)
        a @ a


def encoder(folder: Path) -> None:
    a = torch.randn(256, 256)
    frames = np.random.default_rng(0).integers(0, 255, (12, 512, 512, 3), dtype=np.uint8)
    with VideoWriter(folder / "clip.mp4", fps=16, overwrite=True) as writer:
        for _ in range(3):
            a @ a
            with record_function("millstream.write"):
                writer.write(frames)


def mostly_vae() -> Step:
    """Loaded and begun before it is looked at."""
    engine = Engine("wan-tiny", weights="random", device="cpu", dtype="float32")
    engine.generator.stopwatch.annotate = True
    session = engine.session("a kite", height=128, width=128)
    list(session.stream(1))
    return lambda: list(session.stream(2))


def talk(rank: int) -> None:
    """Two ranks add up tensors that are large beside what they work on."""
    x = torch.ones(4 << 20)
    a = torch.randn(200, 200)
    for _ in range(8):
        a @ a
        dist.all_reduce(x)


def slow_rank(rank: int) -> None:
    x = torch.ones(1000)
    a = torch.randn(384, 384)
    for _ in range(12):
        for _ in range(30 if rank == 1 else 3):
            a @ a
        dist.all_reduce(x)


def one_in_flight(rank: int) -> None:
    """A pipeline of two stages with one micro-batch: one works, the other waits."""
    x = torch.ones(1000)
    a = torch.randn(512, 512)
    for _ in range(12):
        if rank == 1:
            dist.recv(x, 0)
        for _ in range(6):
            a @ a
        dist.send(x, 1) if rank == 0 else dist.send(x, 0)
        if rank == 0:
            dist.recv(x, 1)


ALONE: dict[str, tuple[str, Callable[[Path], Step]]] = {
    "products": ("compute-bound", lambda folder: products),
    "walks over tensors": ("memory-bound", lambda folder: walks),
    "tiny operators": (
        "CPU-bound",
        lambda folder: tiny_operators,
    ),  # a processor launches nothing: what is between is its own
    "Python between operators": ("CPU-bound", lambda folder: python_between),
    "a loader that sleeps": ("data- or encode-bound", lambda folder: slow_loader),
    "a video encoder": ("data- or encode-bound", lambda folder: partial(encoder, folder)),
    "a stream that is mostly VAE": ("decode-bound", lambda folder: mostly_vae()),
}
TOGETHER: dict[str, tuple[str, Callable[[int], None]]] = {
    "two ranks and large sums": ("communication-bound", talk),
    "two ranks, one slow": ("straggler", slow_rank),
    "two stages, one in flight": ("bubble-bound", one_in_flight),
}


def capture_quickest(step: Step, path: Path, tries: int = 8) -> Path:
    """Keep the shortest of several captures: other programs on the machine only ever add time."""
    best = float("inf")
    for _ in range(tries):
        begun = time.perf_counter()
        capture(step, path.with_suffix(".try"))
        if (took := time.perf_counter() - begun) < best:
            best = took
            path.with_suffix(".try").replace(path)
    return path


def capture(step: Step, path: Path) -> Path:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    profiler.export_chrome_trace(str(path))
    return path


def capture_together(folder: Path, ranks: int = 2) -> dict[str, list[Path]]:
    """All of `TOGETHER`, in one start of the processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(_rank, args=(ranks, port, folder), nprocs=ranks)
    return {
        name: [folder / f"{number}-{rank}.json" for rank in range(ranks)]
        for number, name in enumerate(TOGETHER)
    }


def _rank(rank: int, ranks: int, port: int, folder: Path) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    for number, (_, step) in enumerate(TOGETHER.values()):
        dist.barrier()
        capture(partial(step, rank), folder / f"{number}-{rank}.json")
        dist.barrier()
    dist.destroy_process_group()
