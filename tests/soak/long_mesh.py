"""A long steered stream on a mesh and the same in one process: the latents stay the same, and memory does not
grow.

    python -m tests.soak.long_mesh --chunks 10000

The stream is that of `tests.soak.endurance`: prompt switches of every kind, seeds and cuts, all the time.
Both run at once, each in a process of its own. Latents are compared at the end and on the way; resident
memory of the front and of each rank after warm-up may grow by less than 1%.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tests.dist.meshes import pids_of
from tests.dist.streams import newest
from tests.soak.endurance import LongStream, growth, resident_bytes, tiny_engine
from tests.soak.report import write_report
from tests.unit.models_for_tests import relative_error

TOPOLOGY = "front+tp2"
COMPARED = 20
"""Chunks whose latents are compared, evenly over the stream; the last is one of them."""
GOALS = {"relative_error_at_the_end": 1e-5, "resident_growth": 0.01}


@dataclass
class Streamed:
    latents: dict[int, Tensor]
    """Latents of the chunks that are compared, [F, C, Y, X]."""
    memory: dict[str, list[int]]
    """Resident bytes after every chunk, of the front and of the mesh's processes."""
    seconds: float


def stream(topology: str, chunks: int) -> Streamed:
    """In a process of its own."""
    torch.set_num_threads(1)
    every = max(1, chunks // COMPARED)
    with tempfile.TemporaryDirectory() as folder, tiny_engine(topology) as engine:
        pids = (
            {}
            if engine.mesh is None
            else {f"rank {rank}": pid for rank, pid in enumerate(sorted(pids_of(engine)), 1)}
        )
        followed: Mapping[str, int | str] = {"front": "self", **pids}
        found = Streamed({}, {name: [] for name in followed}, 0.0)
        long = LongStream(engine, Path(folder), "long")
        begun = time.monotonic()
        for number in range(chunks):
            long.advance()
            for name, pid in followed.items():
                found.memory[name].append(resident_bytes(pid))
            if number % every == every - 1 or number == chunks - 1:
                found.latents[number] = newest(long.session).clone()
                print(f"{topology}: {number + 1} chunks in {time.monotonic() - begun:.0f} s", flush=True)
        found.seconds = time.monotonic() - begun
        long.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description="A long stream on a mesh, held against the same in one process."
    )
    parser.add_argument("--chunks", type=int, default=10_000)
    chunks = parser.parse_args().chunks
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        mesh, local = pool.map(stream, (TOPOLOGY, "local"), (chunks, chunks))
    errors = {number: relative_error(mesh.latents[number], local.latents[number]) for number in mesh.latents}
    warm_up = chunks // 10
    write_report(
        "long_mesh",
        {
            "model": "wan-tiny",
            "topology": TOPOLOGY,
            "chunks": chunks,
            "warm_up": warm_up,
            "compared": len(errors),
        },
        {
            "relative_error_at_the_end": float(errors[chunks - 1]),
            "relative_error_at_most": float(max(errors.values())),
            "resident_growth": {name: round(growth(read, warm_up), 5) for name, read in mesh.memory.items()},
            "resident_mib_end": {name: round(read[-1] / 2**20) for name, read in mesh.memory.items()},
            "chunk_ms": {
                "mesh": round(1e3 * mesh.seconds / chunks, 1),
                "local": round(1e3 * local.seconds / chunks, 1),
            },
            "goals": GOALS,
        },
    )


if __name__ == "__main__":
    main()
