"""Chunk 5,000 costs what chunk 100 did: memory and time over a long stream of a tiny model.

    python -m tests.soak.endurance

Every kind of control comes by, in turn, all the time. Resident memory after warm-up may grow by less than 1%.
Time is compared at the end, chunk by chunk in turn, with a session that has only just begun: what the machine
does meanwhile then hits both.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from millstream import Engine
from millstream.core.controls import AnyControl, Cut, SetPrompt, SetSeed
from millstream.core.topology import Topology
from millstream.session.chunk import Chunk
from millstream.session.journal import JournalWriter
from tests.soak.report import write_report

CHUNKS = 5000
WARM_UP = 500


class LongStream:
    """A stream with windowed positions, prompt switches, seeds, cuts and a journal."""

    def __init__(self, engine: Engine, folder: Path, name: str) -> None:
        config = engine.stream_config(
            height=16, width=32, steps=(1000, 500), window=6, sink=1, positions="windowed"
        )
        self.journal = JournalWriter(folder / f"{name}.jsonl", engine.journal_header(config, name))
        self.session = engine.session(
            "a stream without end", config=config, journal=self.journal, session_id=name
        )
        self.chunks = 0

    def advance(self, *, steered: bool = True) -> Chunk:
        for control in _controls(self.chunks) if steered else ():
            self.session.control(control)
        self.chunks += 1
        (chunk,) = self.session.stream(1)
        return chunk

    def close(self) -> None:
        self.session.close()
        self.journal.close()


def tiny_engine(topology: str = "local") -> Engine:
    return Engine(
        "wan-tiny", weights="random", device="cpu", dtype="float32", topology=Topology.parse(topology)
    )


def resident_bytes(pid: int | str = "self") -> int:
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(readings: list[int], warm_up: int) -> float:
    """From the level just after warm-up to that at the end, each a median of a tenth of the run."""
    tenth = max(1, (len(readings) - warm_up) // 10)
    begun = statistics.median(readings[warm_up : warm_up + tenth])
    return statistics.median(readings[-tenth:]) / begun - 1


def _controls(number: int) -> Iterator[AnyControl]:
    if number % 50 == 20:
        yield SetPrompt(
            prompt=f"prompt number {number}", mode=("recompute", "keep", "blend")[number // 50 % 3], chunks=3
        )
    if number % 70 == 30:
        yield SetSeed(seed=number)
    if number % 250 == 249:
        yield Cut()


def endure(chunks: int, warm_up: int, compared: int, folder: Path) -> dict[str, float]:
    engine = tiny_engine()
    old = LongStream(engine, folder, "old")
    memory = []
    for _ in range(chunks):
        old.advance()
        memory.append(resident_bytes())
    young = LongStream(engine, folder, "young")
    for _ in range(20):
        young.advance(steered=False)
    pairs = [
        (old.advance(steered=False).timing, young.advance(steered=False).timing) for _ in range(compared)
    ]
    old_ms, young_ms = (
        statistics.median(timing.total_ms for timing in side) for side in zip(*pairs, strict=True)
    )
    old.close()
    young.close()
    return {
        "resident_growth": growth(memory, warm_up),
        "resident_mib_end": memory[-1] / 2**20,
        "old_chunk_ms": old_ms,
        "young_chunk_ms": young_ms,
        "time_ratio": old_ms / young_ms,
    }


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        measured = endure(CHUNKS, WARM_UP, 200, Path(folder))
    write_report(
        "endurance",
        {
            "model": "wan-tiny",
            "chunks": CHUNKS,
            "warm_up": WARM_UP,
            "window": 6,
            "sink": 1,
            "positions": "windowed",
        },
        {name: round(value, 5) for name, value in measured.items()}
        | {"goal": "resident_growth below 0.01, time_ratio about 1"},
    )


if __name__ == "__main__":
    main()
