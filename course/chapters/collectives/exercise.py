"""Chapter 3, exercises. Fill in the functions, then run `millstream course check 3`."""

from __future__ import annotations

from torch import Tensor


def norm_of_all(shard: Tensor) -> float:
    """The Euclidean norm of a vector of which every rank holds a piece. Every rank gets it, by one
    all-reduce."""
    raise NotImplementedError("norm_of_all")


def gathered_by_a_ring(x: Tensor, rank: int, world: int) -> Tensor:
    """An all-gather from sends and receives: everybody's `x`, stacked in the order of ranks.

    A rank may speak to its two neighbours only, and sends world-1 messages.
    """
    raise NotImplementedError("gathered_by_a_ring")
