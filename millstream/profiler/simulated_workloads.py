"""Simulated workloads whose bottleneck is known because it was put there, with other costs beside it that are
not it.

Sizes, lengths, devices and distractors come from a seed. What is drawn follows from how such programs behave,
not from what a judge of traces looks for: ranges are wide, and some draws are hard to tell apart.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millstream.planner.hardware import DEVICES
from millstream.profiler.simulated_rank import COMPUTE, SimulatedRank, collective, hand_over

Build = Callable[[random.Random], list[SimulatedRank]]


@dataclass(frozen=True)
class SimulatedWorkload:
    name: str
    expected: str
    build: Build

    def write(self, folder: Path, seed: int) -> list[Path]:
        """Write one trace for each rank and return their paths."""
        ranks = self.build(random.Random(f"{self.name}-{seed}"))
        return [rank.write(folder, len(ranks)) for rank in ranks]


def new_ranks(rng: random.Random, count: int = 1) -> list[SimulatedRank]:
    device = DEVICES[rng.choice(("h200", "h100", "a100", "b200"))]
    noise = rng.uniform(0.02, 0.15)
    start = rng.uniform(1e9, 4e12)
    habit = rng.choice(HABITS)
    return [
        SimulatedRank(rank, device, random.Random(rng.random()), noise, habit, now=start + rng.uniform(0, 20))
        for rank in range(count)
    ]


def block(
    rank: SimulatedRank, tokens: int, width: int, *, reach: float = 0.75, dispatch: float = 9.0
) -> float:
    """Run roughly a transformer's block, four matmuls and walks over activations, and return how long the
    device takes."""
    begin = max(rank.now, rank.free.get(COMPUTE, 0.0))
    for outer in (3 * width, width, 4 * width):
        rank.product(tokens, width, outer, reach=reach, dispatch=dispatch)
        rank.walk(tokens * width, reach=0.75, dispatch=dispatch)
    rank.product(tokens, 4 * width, width, reach=reach, dispatch=dispatch)
    return rank.free[COMPUTE] - begin


def seldom(rank: SimulatedRank, rng: random.Random) -> None:
    """Simulate what every program has a little of: hiccups, and one bad habit that is not its bottleneck."""
    if rng.random() < 0.04:
        rank.python(rng.uniform(30, 150))
    if rng.random() > 0.08:
        return
    match rank.habit:
        case "item":
            rank.item()
        case "allocation":
            rank.allocate(rng.uniform(50, 300))
        case "loader":
            with rank.note("dataloader next_batch"):
                rank.python(rng.uniform(50, 300))
        case "tiny kernels":
            for _ in range(rng.randrange(5, 20)):
                rank.op("aten::mul", "vectorized_elementwise_kernel", 2.0)
        case "copies":
            rank.upload(rng.uniform(20, 120))


HABITS = ("none", "item", "allocation", "loader", "tiny kernels", "copies")


def compute_bound(rng: random.Random) -> list[SimulatedRank]:
    (rank,) = new_ranks(rng)
    tokens = rng.randrange(2000, 12000)
    width = rng.choice((2048, 3072, 5120))
    reach = rng.uniform(0.68, 0.95)
    for _ in range(rng.randrange(8, 24)):
        block(rank, tokens, width, reach=reach)
        seldom(rank, rng)
    return [rank]


def compute_over_covered_talk(rng: random.Random) -> list[SimulatedRank]:
    """As much communication as compute, by sums; next to none by the wall."""
    ranks = new_ranks(rng, rng.choice((2, 4)))
    tokens = rng.randrange(6000, 12000)
    width = rng.choice((3072, 5120))
    reach = rng.uniform(0.7, 0.92)
    for _ in range(rng.randrange(8, 16)):
        for rank in ranks:
            rank.product(tokens, width, width, reach=reach)
        collective(ranks, rng.uniform(250, 450), tokens * width, covered=True)
        for rank in ranks:
            block(rank, tokens, width, reach=reach)
    return ranks


def memory_bound(rng: random.Random) -> list[SimulatedRank]:
    (rank,) = new_ranks(rng)
    values = rng.randrange(30, 300) * 10**6
    reach = rng.uniform(0.68, 0.98)
    for _ in range(rng.randrange(20, 60)):
        rank.walk(values, reach=reach)
        if rng.random() < 0.25:
            rank.product(rng.randrange(256, 1024), 2048, 2048, reach=rng.uniform(0.3, 0.7))
        seldom(rank, rng)
    return [rank]


def launch_bound(rng: random.Random) -> list[SimulatedRank]:
    (rank,) = new_ranks(rng)
    longest = rng.uniform(4, 9)
    dispatch = rng.uniform(11, 28)
    for number in range(rng.randrange(800, 2500)):
        rank.op(
            "aten::mul",
            "vectorized_elementwise_kernel<4, MulFunctor>",
            rng.uniform(1.5, longest),
            dispatch=dispatch,
        )
        if number % 200 == 0:
            rank.product(2048, 2048, 2048, reach=0.6)
        seldom(rank, rng) if number % 20 == 0 else None
    return [rank]


def cpu_bound(rng: random.Random) -> list[SimulatedRank]:
    (rank,) = new_ranks(rng)
    work = rng.uniform(40, 250)
    kernels = rng.randrange(1, 4)
    longer = rng.uniform(1.2, 6.0)
    for _ in range(rng.randrange(60, 200)):
        rank.python(work * longer)
        for _ in range(kernels):
            rank.op("aten::mm", "nvjet_tst_gemm", work / kernels)
        seldom(rank, rng)
    return [rank]


def synchronisation(rng: random.Random) -> list[SimulatedRank]:
    """Short bursts of work, a number brought to the host after each, and a little to do there before it goes
    on."""
    (rank,) = new_ranks(rng)
    burst = rng.randrange(3, 10)
    after = rng.uniform(40, 160)
    for _ in range(rng.randrange(60, 150)):
        for _ in range(burst):
            rank.op("aten::mm", "nvjet_tst_gemm", rng.uniform(20, 60), dispatch=rng.uniform(5, 9))
        rank.item()
        rank.python(after)
        seldom(rank, rng)
    return [rank]


def synchronisation_while_launching(rng: random.Random) -> list[SimulatedRank]:
    """A few matmuls and a number, again and again: launching takes the host long, so that it hardly waits,
    and yet each wait leaves the queue empty."""
    (rank,) = new_ranks(rng)
    burst = rng.randrange(2, 5)
    length = rng.uniform(22, 30)
    dispatch = rng.uniform(8, 17)
    around = rng.uniform(15, 40)
    for _ in range(rng.randrange(60, 150)):
        for _ in range(burst):
            rank.op("aten::mm", "nvjet_tst_gemm", length, dispatch=dispatch)
        rank.item(dispatch=around)
        seldom(rank, rng)
    return [rank]


def communication(rng: random.Random) -> list[SimulatedRank]:
    ranks = new_ranks(rng, rng.choice((2, 4, 8)))
    tokens = rng.randrange(1500, 6000)
    width = rng.choice((2048, 5120))
    longer = rng.uniform(0.6, 3.0)
    for _ in range(rng.randrange(15, 40)):
        took = 0.0
        for rank in ranks:
            took = max(took, block(rank, tokens // len(ranks) + 64, width))
            seldom(rank, rng)
        collective(ranks, longer * took, tokens * width)
    return ranks


def straggler(rng: random.Random) -> list[SimulatedRank]:
    ranks = new_ranks(rng, rng.choice((2, 4, 8)))
    slow = rng.randrange(len(ranks))
    by = rng.uniform(1.6, 2.6)
    tokens = rng.randrange(2000, 6000)
    width = rng.choice((2048, 3072))
    for _ in range(rng.randrange(15, 40)):
        for rank in ranks:
            block(rank, int(tokens * (by if rank.rank == slow else 1.0)), width)
            seldom(rank, rng)
        collective(ranks, rng.uniform(20, 60), tokens * width)
    return ranks


def bubble(rng: random.Random) -> list[SimulatedRank]:
    """A pipeline with too few micro-batches, filled and drained again and again."""
    stages = rng.choice((3, 4, 8))
    micro_batches = rng.randrange(1, 4)
    ranks = new_ranks(rng, stages)
    tokens = rng.randrange(2000, 6000)
    width = rng.choice((2048, 3072))
    for _ in range(rng.randrange(6, 12)):
        for _ in range(micro_batches):
            for stage, rank in enumerate(ranks):
                if stage:
                    hand_over(ranks[stage - 1], rank, rng.uniform(15, 40), tokens * width)
                block(rank, tokens, width)
                seldom(rank, rng)
        hand_over(ranks[-1], ranks[0], rng.uniform(15, 40), tokens * width)
    return ranks


def decode_apart(rng: random.Random) -> list[SimulatedRank]:
    """A front that decodes longer than the mesh works: the mesh waits for the next envelope."""
    front, leader = new_ranks(rng, 2)
    tokens = rng.randrange(1500, 3000)
    width = rng.choice((2048, 3072))
    convolutions = rng.randrange(30, 60)
    longer = rng.uniform(1.4, 4.0)
    for chunk in range(rng.randrange(5, 10)):
        hand_over(front, leader, rng.uniform(10, 30), tokens * width)
        took = 0.0
        for _ in range(rng.randrange(3, 6)):
            took += block(leader, tokens, width)
            seldom(leader, rng)
        with front.note(f"millstream.decode session=a chunk={chunk} call={chunk}", on_device=True):
            for _ in range(convolutions):
                front.op(
                    "aten::cudnn_convolution",
                    "sm90_xmma_fprop_implicit_gemm_bf16",
                    longer * took / convolutions,
                )
        front.synchronise()
    return [front, leader]


def decode_here(rng: random.Random) -> list[SimulatedRank]:
    """One device that spends most of a chunk in the VAE."""
    (rank,) = new_ranks(rng)
    tokens = rng.randrange(800, 1500)
    width = 1536
    for chunk in range(rng.randrange(5, 9)):
        for _ in range(rng.randrange(4, 8)):
            block(rank, tokens, width)
            seldom(rank, rng)
        with rank.note("vae.decode" if chunk % 2 else "VAE decode", on_device=True):
            for _ in range(rng.randrange(40, 70)):
                rank.op(
                    "aten::cudnn_convolution", "sm90_xmma_fprop_implicit_gemm_bf16", rng.uniform(100, 400)
                )
    return [rank]


def input_bound(rng: random.Random) -> list[SimulatedRank]:
    (rank,) = new_ranks(rng)
    tokens = rng.randrange(1000, 4000)
    width = 2048
    longer = rng.uniform(0.7, 4.0)
    for _ in range(rng.randrange(10, 25)):
        took = sum(block(rank, tokens, width) for _ in range(rng.randrange(1, 4)))
        rank.synchronise()
        with rank.note("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
            rank.python(longer * took)
        seldom(rank, rng)
    return [rank]


def encode_bound(rng: random.Random) -> list[SimulatedRank]:
    (rank,) = new_ranks(rng)
    tokens = rng.randrange(1000, 4000)
    width = 2048
    longer = rng.uniform(0.7, 4.0)
    for _ in range(rng.randrange(8, 20)):
        took = sum(block(rank, tokens, width) for _ in range(rng.randrange(1, 4)))
        rank.item()
        with rank.note("encode_video h264"):
            rank.python(longer * took)
    return [rank]


def allocator(rng: random.Random) -> list[SimulatedRank]:
    (rank,) = new_ranks(rng)
    tokens = rng.randrange(1000, 4000)
    width = 2048
    for _ in range(rng.randrange(20, 50)):
        block(rank, tokens, width)
        seldom(rank, rng)
        for _ in range(rng.randrange(1, 4)):
            rank.allocate(rng.uniform(400, 1500))
    return [rank]


def graphs_without_kernels(rng: random.Random) -> list[SimulatedRank]:
    (rank,) = new_ranks(rng)
    for _ in range(rng.randrange(10, 40)):
        rank.graph(rng.randrange(100, 400), rng.uniform(5, 40), lost=True)
        rank.python(rng.uniform(50, 500))
        rank.op("aten::add", "vectorized_elementwise_kernel", 10.0)
    return [rank]


def graphs_with_kernels(rng: random.Random) -> list[SimulatedRank]:
    """Simulate graphs whose kernels are in the trace: the host comes too late with the next graph."""
    (rank,) = new_ranks(rng)
    kernels = rng.randrange(40, 120)
    length = rng.uniform(5, 20)
    for _ in range(rng.randrange(10, 30)):
        rank.graph(kernels, length, lost=False)
        rank.python(kernels * length * rng.uniform(1.8, 3.0))
    return [rank]


def device_shared(rng: random.Random) -> list[SimulatedRank]:
    """Another process has the device half of the time: what is queued waits, and this trace shows nothing of
    it. The host never waits: if it did, this could not be told from a trace that lost events."""
    (rank,) = new_ranks(rng)
    tokens = rng.choice((1000, 2000, 4000))
    width = rng.choice((1024, 2048))
    for _ in range(rng.randint(12, 24)):
        took = sum(block(rank, tokens, width) for _ in range(4))
        rank.free[COMPUTE] += took * rng.uniform(0.7, 1.6)
    return [rank]


def first_launches(rng: random.Random) -> list[SimulatedRank]:
    """Every kernel is loaded when it is first launched, and the trace begins before that."""
    (rank,) = new_ranks(rng)
    kernels = rng.randint(15, 40)
    for kernel in range(kernels * rng.randint(2, 4)):
        if kernel < kernels:
            rank.loads_us = rng.uniform(3e3, 2e4)
        rank.op("aten::mm", f"gemm_{kernel % kernels}", rng.uniform(50, 500))
    return [rank]


def cropped(rng: random.Random) -> list[SimulatedRank]:
    """The host waits for work that was launched before the capture began, so that none of it is in the
    trace."""
    (rank,) = new_ranks(rng)
    rank.free[COMPUTE] = rank.now + rng.uniform(5e4, 2e5)
    for _ in range(rng.randint(3, 8)):
        block(rank, 1000, 1024)
    rank.item(dispatch=10.0)
    return [rank]


def lost_events(rng: random.Random) -> list[SimulatedRank]:
    (rank,) = new_ranks(rng)
    for _ in range(rng.randrange(10, 20)):
        block(rank, rng.randrange(500, 3000), 2048)
    share = rng.uniform(0.4, 0.9)
    rank.events = [e for e in rank.events if e["cat"] != "kernel" or rng.random() > share]
    return [rank]


def clocks_apart(rng: random.Random) -> list[SimulatedRank]:
    """The device's clock is behind the host's."""
    (rank,) = new_ranks(rng)
    for _ in range(rng.randrange(10, 20)):
        block(rank, rng.randrange(500, 1500), 1536)
        rank.item()
    behind = rng.uniform(300, 5000)
    for event in rank.events:
        if event["pid"] == 0:
            event["ts"] -= behind
    return [rank]


UNTRUSTED = "trace not to be trusted"
WORKLOADS = (
    SimulatedWorkload("large products", "compute-bound", compute_bound),
    SimulatedWorkload("products over covered communication", "compute-bound", compute_over_covered_talk),
    SimulatedWorkload("walks over large tensors", "memory-bound", memory_bound),
    SimulatedWorkload("thousands of tiny kernels", "launch-bound", launch_bound),
    SimulatedWorkload("Python between launches", "CPU-bound", cpu_bound),
    SimulatedWorkload("graphs, and Python between them", "CPU-bound", graphs_with_kernels),
    SimulatedWorkload("a number brought back after each burst", "synchronisation", synchronisation),
    SimulatedWorkload(
        "a number brought back, and slow launches", "synchronisation", synchronisation_while_launching
    ),
    SimulatedWorkload("a device that others use as well", "queue-bound", device_shared),
    SimulatedWorkload("all-reduces that nothing covers", "communication-bound", communication),
    SimulatedWorkload("one slow rank", "straggler", straggler),
    SimulatedWorkload("a pipeline with few micro-batches", "bubble-bound", bubble),
    SimulatedWorkload("a front that decodes longest", "decode-bound", decode_apart),
    SimulatedWorkload("one device, mostly VAE", "decode-bound", decode_here),
    SimulatedWorkload("a slow loader", "data- or encode-bound", input_bound),
    SimulatedWorkload("a slow encoder", "data- or encode-bound", encode_bound),
    SimulatedWorkload("memory asked of the driver in every step", "allocator", allocator),
    SimulatedWorkload("graphs whose kernels are not seen", UNTRUSTED, graphs_without_kernels),
    SimulatedWorkload("kernels lost", UNTRUSTED, lost_events),
    SimulatedWorkload("a capture that begins too early", "warm-up", first_launches),
    SimulatedWorkload("a capture that begins too late", UNTRUSTED, cropped),
    SimulatedWorkload("clocks apart", UNTRUSTED, clocks_apart),
)
