"""Two ranks swap a tensor: the way that hangs, and three that do not. Used by `deadlock` and
`three_cures`."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def both_send_first(mine: Tensor, other: int) -> Tensor:
    """Each waits until the other receives, and neither does."""
    theirs = torch.empty_like(mine)
    dist.send(mine, dst=other)
    dist.recv(theirs, src=other)
    return theirs


def in_an_agreed_order(mine: Tensor, other: int) -> Tensor:
    """The smaller rank sends first, the larger one receives first."""
    theirs = torch.empty_like(mine)
    if dist.get_rank() < other:
        dist.send(mine, dst=other)
        dist.recv(theirs, src=other)
    else:
        dist.recv(theirs, src=other)
        dist.send(mine, dst=other)
    return theirs


def without_waiting_to_send(mine: Tensor, other: int) -> Tensor:
    """The send only begins; this rank goes on and receives."""
    theirs = torch.empty_like(mine)
    leaving = dist.isend(mine, dst=other)
    assert leaving is not None, "a rank sends to another one"
    dist.recv(theirs, src=other)
    leaving.wait()  # until then `mine` must not change
    return theirs


def all_at_once(mine: Tensor, other: int) -> Tensor:
    """Both are handed over together, and the backend finds an order. On GPUs this is the usual way."""
    theirs = torch.empty_like(mine)
    both = [dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, theirs, other)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return theirs


CURES = {"order": in_an_agreed_order, "nonblocking": without_waiting_to_send, "batch": all_at_once}
SWAPS = {"none": both_send_first, **CURES}


def swapped(rank: int, world: int, cure: str, numbers: int) -> float:
    """Swap numbers and return what this rank holds afterwards: the other's number."""
    theirs = SWAPS[cure](torch.full((numbers,), float(rank)), 1 - rank)
    assert bool((theirs == theirs[0]).all()), "a message arrives whole"
    return float(theirs[0])
