"""The failure lab, exercises. Fill in the functions, then run `millstream course check failures`."""

from __future__ import annotations

from collections.abc import Sequence


def first_difference(records: Sequence[Sequence[str]]) -> int | None:
    """Every rank's collectives in the order of its calls. The place of the first on which ranks do not agree;
    None if all do.

    A rank that has stopped calling differs from one that goes on.
    """
    raise NotImplementedError("first_difference")


def slow_rank(own_s: Sequence[float], step_s: Sequence[float], *, times: float = 1.5) -> int | None:
    """Seconds that each rank works by itself, and of its whole step. The rank whose own work is at least
    `times` the median.

    The whole step says nothing: all ranks end it together. None if no rank is that slow.
    """
    raise NotImplementedError("slow_rank")


def fits(holes: Sequence[int], asked: int, page: int | None) -> bool:
    """Return whether `asked` bytes fit into free memory that lies in these holes: in one piece, or in pages
    of `page` bytes."""
    raise NotImplementedError("fits")
