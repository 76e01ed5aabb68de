"""Chapter 1, solution."""

from __future__ import annotations


def place_of(rank: int, gpus_per_node: int) -> tuple[int, int]:
    return divmod(rank, gpus_per_node)


def rows_of(rank: int, world: int, rows: int) -> range:
    share, left = divmod(rows, world)
    first = rank * share + min(rank, left)
    return range(first, first + share + (rank < left))
