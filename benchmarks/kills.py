"""Ranks killed again and again: nobody is left behind, nothing that was told is lost, and how long it takes to be back.

    python -m benchmarks.kills

The front is killed 50 times: all ranks must be gone within the watchdog's window and two seconds. Then 20 kills at random
moments of a stream of Brook, of a random rank: every chunk must come, once and in order; what is measured is the stall.
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
from tests.dist.fronts import front
from tests.dist.meshes import LIMITS, mesh_of, seconds_until_gone

FRONT_KILLS, RANDOM_KILLS = 50, 20
TOPOLOGY = "front+tp2"
SEED = 5


def kill_fronts() -> list[float]:
    """Seconds until all of a killed front's ranks were gone."""
    found = []
    for _ in range(FRONT_KILLS):
        with front(TOPOLOGY, LIMITS) as running:
            os.kill(running.process.pid or 0, signal.SIGKILL)
            found.append(seconds_until_gone(running.ranks, LIMITS.window_s + 2))
    return found


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
                for kill in range(RANDOM_KILLS):
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
    stalls, gone = kill_ranks(), kill_fronts()
    write_report(
        "kills",
        {"topology": TOPOLOGY, "front_kills": FRONT_KILLS, "random_kills": RANDOM_KILLS, "window_s": LIMITS.window_s},
        {
            "ranks_gone_s": {"median": round(statistics.median(gone), 2), "longest": round(max(gone), 2)},
            "goal_gone_s": LIMITS.window_s + 2,
            "next_chunk_s": {"median": round(statistics.median(stalls), 2), "longest": round(max(stalls), 2)},
            "goal_next_chunk_s": 5.0,
            "chunks_lost": 0,
        },
    )


if __name__ == "__main__":
    main()
