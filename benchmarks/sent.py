"""Bytes that a rank or a tile sends to the others in a chunk, and their time between cards by the planner's
links: predicted, not measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from millstream.planner.communication import all_gather, all_reduce, all_to_all, point_to_point
from millstream.planner.hardware import Link

MEETING_US = 4.0
"""Stated: a barrier on the device between cards of one NVLink switch, replayed in a graph."""


def listed(sent: Counter[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"kind": kind, "bytes": size, "times": times} for (kind, size), times in sorted(sent.items())]


def sent_ms(sent: Sequence[dict[str, Any]], ranks: int, link: Link) -> float:
    """Return the milliseconds that a chunk's collectives take between cards, none of them hidden."""
    return sum(
        (each["times"] * collective_ms(each["kind"], each["bytes"], ranks, link) for each in sent), 0.0
    )


def collective_ms(kind: str, size: float, ranks: int, link: Link) -> float:
    """Return the milliseconds of one collective to which a rank gives `size` bytes."""
    of_kind: dict[str, Callable[[float, int, Link], float]] = {
        "sum": all_reduce,
        "scatter": all_gather,
        "exchange": all_to_all,
        "collect": lambda size, ranks, link: all_gather(ranks * size, ranks, link),
        "peer scatter": lambda size, ranks, link: met_ms((ranks - 1) / ranks * size, link),
        "peer collect": lambda size, ranks, link: met_ms((ranks - 1) * size, link),
        "peer sum": lambda size, ranks, link: met_ms((ranks - 1) * size, link),
        **dict.fromkeys(("edge", "latents", "picture"), lambda size, _, link: point_to_point(size, link)),
    }
    return of_kind[kind](size, ranks, link)


def met_ms(size: float, link: Link) -> float:
    """Return the milliseconds of a collective in memory that all ranks reach: a meeting, and `size` bytes in
    each direction of the link."""
    return MEETING_US / 1e3 + size / link.beta_gb_s / 1e6


def traded(sent: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Return the number of messages in a chunk, and their bytes."""
    return sum(each["times"] for each in sent), sum(each["times"] * each["bytes"] for each in sent)
