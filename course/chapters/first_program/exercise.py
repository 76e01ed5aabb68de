"""Chapter 1, exercises. Fill in the two functions, then run `millstream course check 1`."""

from __future__ import annotations


def place_of(rank: int, gpus_per_node: int) -> tuple[int, int]:
    """Ranks are numbered node by node. Which node is this rank on, and which GPU of the node is its own?"""
    raise NotImplementedError("place_of")


def rows_of(rank: int, world: int, rows: int) -> range:
    """Share out `rows` rows over `world` ranks: in order, all of them, each once, shares that differ by at
    most one row.

    Ranks with a smaller number get the larger shares.
    """
    raise NotImplementedError("rows_of")
