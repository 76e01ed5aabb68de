"""What keeps a pipeline of layers busy: more sessions, commits that are carried. Real ranks, simulated blocks.

    python -m benchmarks.pipeline

Two stages of one layer, as processes over gloo. Each block sleeps for a time that grows with its frames, as one bound by
arithmetic would, so the figures tell how calls are arranged and nothing of how fast a model is. `ideal` is the sum of all
sleeps of a round divided by the stages: what a pipeline that never waits would take.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from benchmarks.report import write_report
from millstream.core.topology import FRONT, LEADER, Topology
from millstream.engine.engine import Engine
from millstream.models.dit import CausalDiT
from millstream.parallel.groups import create_groups
from millstream.parallel.layers import StagedDiT
from tests.dist.spread import parallelise

TOPOLOGY = Topology.parse("front+pp2")
SLEEP_S = 0.01
"""For one frame in one block."""
SESSIONS, WARM_UP, ROUNDS = (1, 2, 3, 4), 3, 8


def rounds(engine: Engine, count: int) -> Callable[[], None]:
    """A function that brings `count` sessions one chunk further, without decoding."""
    sessions = [engine.session("sea", seed=seed, height=32, width=48, window=6) for seed in range(count)]

    def advance() -> None:
        parcels = [session.prepare(decision) for session in sessions if (decision := session.decide()) is not None]
        deliveries = engine.transport.post(parcels).result()
        for session, delivery in zip(sessions, deliveries, strict=True):
            session.receive(delivery)

    return advance


def measure(engine: Engine, dit: StagedDiT, count: int, *, carried: bool) -> dict[str, float]:
    engine.generator.commits = "paired" if carried else "at once"
    advance = rounds(engine, count)
    for _ in range(WARM_UP):
        advance()
    dit.busy.lap()
    begun = time.perf_counter()
    for _ in range(ROUNDS):
        advance()
    seconds = time.perf_counter() - begun
    busy = dit.mesh.collect(torch.tensor([dit.busy.lap()]), "busy times").flatten().tolist()
    return {
        "round_ms": round(1e3 * seconds / ROUNDS, 1),
        "ideal_ms": round(1e3 * sum(busy) / len(busy) / ROUNDS, 1),
        "busy": round(sum(busy) / len(busy) / seconds, 3),
        "chunks_per_second": round(count * ROUNDS / seconds, 2),
    }


def run_rank(rank: int, store: str, results: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=TOPOLOGY.world_size)
    groups = create_groups(TOPOLOGY, rank)
    if rank != FRONT:
        engine = Engine("wan-tiny", weights="random:3", device="cpu", dtype="float32")
        whole = engine.generator.dit
        assert isinstance(whole, CausalDiT), "not shared out yet"
        dit = parallelise(whole, TOPOLOGY, groups)
        assert isinstance(dit, StagedDiT), "a pipeline has stages"
        engine.generator.dit, dit.may_move = dit, False
        for block in dit.dit.blocks:
            block.register_forward_hook(sleep_for_its_frames)
        for count in SESSIONS:
            for carried in (False, True):
                found = measure(engine, dit, count, carried=carried)
                if rank == LEADER:
                    results[f"{count} sessions, commits {'carried' if carried else 'alone'}"] = found
    groups.world.gather(None, "done")


def sleep_for_its_frames(module: torch.nn.Module, args: tuple[Any, ...], x_BFTD: Tensor) -> None:
    time.sleep(SLEEP_S * x_BFTD.shape[1])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
        results = manager.dict()
        spawn(run_rank, args=(f"{folder}/rendezvous", results), nprocs=TOPOLOGY.world_size)
        configuration = {"topology": str(TOPOLOGY), "sleep_ms_per_frame_and_block": 1e3 * SLEEP_S, "rounds": ROUNDS}
        write_report("pipeline", configuration | {"steps": 2, "frames_per_chunk": 3, "simulated": True}, dict(results))


if __name__ == "__main__":
    main()
