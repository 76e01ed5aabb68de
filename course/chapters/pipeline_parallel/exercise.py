"""Chapter 7, exercises. Fill in the functions, then run `millstream course check 7`."""

from __future__ import annotations


def micro_batches_for(stages: int, most_waiting: float) -> int:
    """The fewest micro-batches with which a GPipe or 1F1B pipeline waits at most this share of the time, for
    example 0.1."""
    raise NotImplementedError("micro_batches_for")


def order_1f1b(stage: int, stages: int, parts: int) -> list[tuple[str, int]]:
    """Return a stage's passes in order, as ("F", micro-batch) and ("B", micro-batch).

    First it goes forward as often as there are stages after it. Then one forward, one backward, in turns;
    then what is left.
    """
    raise NotImplementedError("order_1f1b")
