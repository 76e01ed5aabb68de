"""Two ways to sum over ranks, from sends and receives. A ring sends few bytes in many messages, a tree the
other way round."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from course.chapters.collectives.ring import ring_sum
from course.reader import Reader
from millstream.mesh.local_ranks import on_ranks
from millstream.planner.communication import all_reduce, point_to_point
from millstream.planner.hardware import NVLINK4, Link


class MessagesInARow(NamedTuple):
    """That a rank had part in, one after another."""

    ring: int
    tree: int


def run(reader: Reader, ranks: int = 8, world: int = 4) -> None:
    paths = on_ranks(both_sums, world)
    found = MessagesInARow(max(path.ring for path in paths), max(path.tree for path in paths))
    levels = math.ceil(math.log2(world))
    assert found == MessagesInARow(2 * (world - 1), 2 * levels), f"counted {found}"
    reader.say(
        f"{world} real ranks: the ring took {found.ring} messages one after another, the tree {found.tree}; "
        "the sums agree"
    )
    link = NVLINK4
    guess = reader.predict(f"{ranks} ranks on {link.name}: up to how many MB is the tree the quicker one?")
    crossing = crossing_bytes(ranks, link)
    reader.reveal(guess, crossing / 1e6, by="n (n-1-log2 n) alpha beta", tolerance=0.1)
    for size in (1e4, 1e6, 1e8, 1e9):
        ring = ring_ms(size, ranks, link)
        tree = tree_ms(size, ranks, link)
        assert math.isclose(min(ring, tree), all_reduce(size, ranks, link)), (
            "the planner takes the quicker one"
        )
        assert (tree < ring) == (size < crossing), (
            f"at {size} bytes: ring {ring}, tree {tree}, crossing at {crossing}"
        )
        quicker = "tree" if tree < ring else "ring"
        reader.say(f"{size / 1e6:8g} MB: ring {ring:8.3f} ms, tree {tree:8.3f} ms, quicker: {quicker}")


def ring_ms(size: float, ranks: int, link: Link) -> float:
    """2(n-1) messages of an n-th each."""
    return 2 * (ranks - 1) * point_to_point(size / ranks, link)


def tree_ms(size: float, ranks: int, link: Link) -> float:
    """2 log2(n) latencies; the bytes are cut into pieces that follow each other, so that they count twice, up
    and down."""
    latency = point_to_point(0, link)
    return 2 * math.ceil(math.log2(ranks)) * latency + 2 * (point_to_point(size, link) - latency)


def crossing_bytes(ranks: int, link: Link) -> float:
    return ranks * (ranks - 1 - math.ceil(math.log2(ranks))) * link.alpha_us * 1e-6 * link.beta_gb_s * 1e9


def both_sums(rank: int, world: int) -> MessagesInARow:
    mine = torch.arange(8.0 * world) * (rank + 1)
    ring = ring_sum(mine, rank, world)
    (tree, messages) = tree_sum(mine, rank, world)
    assert torch.equal(ring.total, tree), "whole numbers are summed exactly, in any order"
    return MessagesInARow(ring.messages, messages)


def tree_sum(x: Tensor, rank: int, world: int) -> tuple[Tensor, int]:
    """Pairs, then pairs of pairs, up to rank 0, and the same way back. The sum, and the messages that this
    rank had part in."""
    total = x.clone()
    messages = 0
    distance = 1
    joined = list[int]()
    while distance < world and rank % distance == 0:
        other = rank ^ distance
        if rank < other < world:
            received = torch.empty_like(total)
            dist.recv(received, src=other)
            total += received
            joined.append(other)
        elif other < rank:
            dist.send(total, dst=other)
            dist.recv(total, src=other)
            messages += 2
            break
        distance *= 2
    for other in reversed(joined):
        dist.send(total, dst=other)
    return total, messages + 2 * len(joined)
