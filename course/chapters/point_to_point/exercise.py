"""Chapter 2, exercises. Fill in the functions, then run `millstream course check 2`."""

from __future__ import annotations

from torch import Tensor


def shift(x: Tensor, rank: int, world: int) -> Tensor:
    """Send `x` to the next rank, and return what comes from the one before. The last rank's next is rank 0.

    It must work for any number of ranks, one included, and must not hang.
    """
    raise NotImplementedError("shift")


def pipeline_turns(stages: int, parts: int) -> int:
    """Count the turns that micro-batches take through the stages, if a stage takes one turn for
    each."""
    raise NotImplementedError("pipeline_turns")
