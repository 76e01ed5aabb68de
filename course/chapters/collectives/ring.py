"""A ring all-reduce from sends and receives, which counts what it sends. Used by `ring_all_reduce` and in
chapter 4."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class RingSum(NamedTuple):
    total: Tensor
    messages: int
    """That this rank sent."""
    sent_bytes: int


def ring_sum(x: Tensor, rank: int, world: int) -> RingSum:
    """First every rank ends up with the sum of one part, then the sums go round. Each time a rank sends one
    part on.

    `x` is one-dimensional and divides over the ranks.
    """
    assert len(x) % world == 0, f"{len(x)} numbers do not divide over {world} ranks"
    parts = [part.clone() for part in x.chunk(world)]
    messages = 0
    sent_bytes = 0
    for turn in range(2 * (world - 1)):
        leaves = (rank - turn) % world
        comes = (rank - turn - 1) % world
        received = torch.empty_like(parts[comes])
        leaving = dist.isend(parts[leaves], dst=(rank + 1) % world)
        assert leaving is not None, "a rank sends to its neighbour"
        dist.recv(received, src=(rank - 1) % world)
        leaving.wait()
        is_summing = turn < world - 1
        parts[comes] = parts[comes] + received if is_summing else received
        messages = messages + 1
        sent_bytes = sent_bytes + parts[leaves].nbytes
    return RingSum(torch.cat(parts), messages, sent_bytes)
