"""An all-reduce made of sends and receives. What it sends is held against the planner's formula, its sum
against torch's."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course.chapters.collectives.ring import RingSum, ring_sum
from course.reader import Reader
from millstream.mesh.local_ranks import must_divide, on_ranks


def run(reader: Reader, world: int = 4, numbers: int = 1200) -> None:
    must_divide(numbers, "numbers", world)
    size = 4 * numbers
    guess = reader.predict(
        f"{size} bytes are summed over {world} ranks in a ring. How many bytes does each rank send?"
    )
    answers: list[RingSum] = on_ranks(held_against_torch, world, numbers)
    expected = 2 * (world - 1) / world * size
    reader.reveal(
        guess, expected, by="2(n-1)/n bytes, as in planner.communication.all_reduce", tolerance=0.01
    )
    for rank, found in enumerate(answers):
        assert found.messages == 2 * (world - 1), f"rank {rank} sent {found.messages} messages"
        assert found.sent_bytes == expected, f"rank {rank} sent {found.sent_bytes} bytes"
        reader.say(
            f"rank {rank} sent {found.messages} messages, {found.sent_bytes} bytes; its sum is torch's"
        )
    reader.say(
        f"to send everything to one rank and back, that rank alone would take in {(world - 1) * size} bytes"
    )


def held_against_torch(rank: int, world: int, numbers: int) -> RingSum:
    mine = torch.arange(float(numbers)) + rank
    found = ring_sum(mine, rank, world)
    expected = mine.clone()
    dist.all_reduce(expected)
    assert torch.equal(found.total, expected), "whole numbers are summed exactly, in any order"
    return found._replace(total=torch.empty(0))
