"""Ranks of a mesh killed at random moments of a stream: nothing that was told is lost, and how long it takes to be back.

    python -m benchmarks.recovery

20 kills of a random rank, in the middle of chunks of Brook: every chunk must come, once and in order, and be in the
journal. What is measured is the time from the kill to the next chunk's pictures.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import tempfile
import threading
import time
from pathlib import Path

import torch

from benchmarks.report import write_report
from millstream.core.topology import Topology
from millstream.runtime.engine import Engine
from millstream.runtime.journal import JournalWriter, read_journal
from millstream.runtime.recovery import MeshTransport
from tests.dist.meshes import mesh_of

KILLS = 20
TOPOLOGY = "front+tp2"
SEED = 5


def kill_ranks() -> list[float]:
    """Seconds from each kill until a chunk was there again. Asserts that each came once, in order, and is written down."""
    chance, stalls = random.Random(SEED), []
    with Engine("brook", weights="bundled", device="cpu", topology=Topology.parse(TOPOLOGY)) as engine:
        transport, config = engine.transport, engine.stream_config(seed=SEED)
        assert isinstance(transport, MeshTransport)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.jsonl"
            with JournalWriter(path, engine.journal_header(config, "s")) as journal:
                session = engine.session("a white boat on the sea at dawn", config=config, session_id="s", journal=journal)
                shown = [next(session.stream(1)).index]
                for kill in range(KILLS):
                    killed_s = _kill_one(engine, chance)
                    while transport.recoveries == kill:
                        shown.append(next(session.stream(1)).index)
                    stalls.append(time.monotonic() - killed_s[0])
            written = [line.envelope.chunk_index for line in read_journal(path).chunks]
        assert shown == written == list(range(len(shown))), "a chunk is missing, double or out of order"
    return stalls


def _kill_one(engine: Engine, chance: random.Random) -> list[float]:
    """A random rank, at a random moment of the next chunk. The list holds when, once it has happened."""
    crew = mesh_of(engine).crew
    assert crew is not None
    pid, moment_s = chance.choice(list(crew.pids.values())), chance.uniform(0.0, 0.4)
    when: list[float] = []

    def strike() -> None:
        time.sleep(moment_s)
        when.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)

    threading.Thread(target=strike).start()
    return when


def main() -> None:
    torch.set_num_threads(2)
    stalls = kill_ranks()
    write_report(
        "recovery",
        {"topology": TOPOLOGY, "kills": KILLS, "model": "brook", "load_average": os.getloadavg()[0]},
        {
            "next_chunk_s": {"median": round(statistics.median(stalls), 2), "longest": round(max(stalls), 2)},
            "goal_s": 5.0,
            "chunks_lost": 0,
        },
    )


if __name__ == "__main__":
    main()
