"""NCCL with a group of one rank, each case a process of its own that ends by itself, as Python processes do:

    python -m tests.gpu.nccl_alone collectives

What a case finds it prints last, as JSON. Whoever starts it holds it to a time limit: that it ends is half of
what it shows.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist

from millstream.core.speed import ALL, of_generator
from millstream.experiments.peer_memory import PeerMemory, PeerTensorSpread, symmetric_memory
from millstream.models.fast.apply import quicken
from millstream.models.fast.recorded import GraphRecorder, RecordedStack
from millstream.parallel.apply import disconnect
from millstream.parallel.collectives import NCCL, RankGroup
from millstream.parallel.fast_tensor import TensorSpread
from millstream.parallel.groups import Groups, leave_groups
from millstream.parallel.mesh_dit import MeshDiT
from tests.dist.calls import FOUR_HEADS, flows
from tests.unit.models_for_tests import dit, relative_error
from tests.unit.parallel.test_group_of_one import groups_of_one, say_all

GPU = torch.device("cuda", 0)
WIDE = replace(FOUR_HEADS, width=512, ffn=1024)
"""Heads of 128, as Wan's."""
CYCLES_A_SECOND = 2_000_000_000
"""About."""
STAYS_S = 60.0
"""Of a process that nobody ends."""


def started() -> Groups:
    torch.cuda.set_device(GPU)
    return groups_of_one(NCCL)


def collectives() -> dict[str, object]:
    """All of them, on device and host tensors alike."""
    groups = started()
    x = torch.randn(4, 3, device=GPU)
    wrong = [name for name, found in say_all(groups.mesh, x).items() if not torch.equal(found, x)]
    there = [name for name, found in say_all(groups.mesh, x).items() if found.device != GPU]
    host = torch.ones(3)
    wrong += [] if torch.equal(groups.mesh.sum(host.clone(), "test"), host) else ["sum in host memory"]
    leave_groups(groups)
    return {"wrong": wrong, "not on the device": there}


def graph() -> dict[str, object]:
    """A collective inside a recorded call, replayed over changing inputs."""
    groups = started()
    stage = groups.stage
    x = torch.zeros(1024, device=GPU)
    doubled = torch.zeros(1024, device=GPU)

    def work() -> None:
        doubled.copy_(stage.sum(2 * x, "test"))

    record = stage.recorder(GraphRecorder(GPU))
    try:
        record(work)
        refused = False
    except AssertionError:
        refused = True
    work()  # the communicator is there
    torch.cuda.synchronize()
    replay = record(work)
    wrong = 0
    for number in range(100):
        x.fill_(number)
        replay()
        wrong += not bool((doubled == 2 * number).all())
    del replay
    leave_groups(groups)
    return {"refused when cold": refused, "wrong replays": wrong}


def peers() -> dict[str, object]:
    """The same blocks, whose sums are in symmetric memory."""
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"  # of which one card has none
    return blocks(lambda group: PeerMemory(symmetric_memory(group, GPU)))


def blocks(find: Callable[[RankGroup], PeerMemory | None] = lambda _: None) -> dict[str, object]:
    """Fast blocks recorded with their sums inside, against the same blocks alone; then forgotten, and the
    groups are left."""
    groups = started()
    speed = of_generator(ALL)
    stream = dict(chunks=16, window=6, sink=0)
    expected = flows(quicken(dit(WIDE).to(GPU, torch.bfloat16), speed), **stream)
    peers = find(groups.stage)
    spread = TensorSpread(groups.stage) if peers is None else PeerTensorSpread(groups.stage, peers)
    share = MeshDiT(quicken(dit(WIDE).to(GPU, torch.bfloat16), speed, spread), groups.stage)
    assert isinstance(share.dit.blocks, RecordedStack)
    found = flows(share, **stream)
    error = relative_error(found.float(), expected.float())
    held = len(groups.stage.recordings)
    try:
        leave_groups(groups)
        refused = False
    except AssertionError:
        refused = True
    disconnect(share, groups)
    return {"error": error, "recordings": held, "refused while they were held": refused}


def restart() -> dict[str, object]:
    """One group after the other in one process, the second after an orderly end, the third after an abort."""
    sums = []
    for how in ("left", "aborted", "left"):
        groups = started()
        x = torch.ones(8, device=GPU)
        sums.append(groups.mesh.sum(x, "test").sum().item())
        if how == "aborted":
            torch.cuda._sleep(CYCLES_A_SECOND // 2)
            groups.mesh.start_sum(x, "test")  # under way when it is aborted
            dist.distributed_c10d._abort_process_group()
            torch.cuda.synchronize()
        else:
            leave_groups(groups)
    return {"sums": sums}


def timeout() -> dict[str, object]:
    """A sum behind work that takes far longer than the limit: the process is not to live on. Once torch's
    watchdog has seen that, it waits for dumps four times as long as it is told, a minute by default, and only
    then ends the process."""
    for library in ("NCCL", "FR"):
        os.environ[f"TORCH_{library}_WAIT_TIMEOUT_DUMP_MILSEC"] = "500"
    torch.cuda.set_device(GPU)
    dist.init_process_group(NCCL, store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=2))
    x = torch.ones(8, device=GPU)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    torch.cuda._sleep(20 * CYCLES_A_SECOND)
    work = dist.all_reduce(x, async_op=True)
    begun = time.monotonic()
    while (seconds := time.monotonic() - begun) < STAYS_S:
        print(f"{seconds:.0f} s: the sum is {'done' if work.is_completed() else 'under way'}", flush=True)
        time.sleep(1.0)
    return {"still here after": STAYS_S}


CASES: dict[str, Callable[[], dict[str, object]]] = {
    "collectives": collectives,
    "graph": graph,
    "blocks": blocks,
    "peers": peers,
    "restart": restart,
    "timeout": timeout,
}

if __name__ == "__main__":
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, "lo")  # nobody else is spoken to
    torch.manual_seed(0)
    with torch.inference_mode():
        print(json.dumps(CASES[sys.argv[1]]()), flush=True)
