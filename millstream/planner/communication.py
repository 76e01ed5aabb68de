"""Collectives by the alpha-beta model: so many messages, so many bytes over the slowest link. Milliseconds
out."""

from __future__ import annotations

import math

from millstream.planner.hardware import Link


def point_to_point(num_bytes: float, link: Link) -> float:
    return _ms(1, num_bytes, link)


def all_reduce(num_bytes: float, ranks: int, link: Link) -> float:
    """The quicker of ring and tree."""
    if ranks == 1:
        return 0.0
    ring = _ms(2 * (ranks - 1), 2 * (ranks - 1) / ranks * num_bytes, link)
    tree = _ms(2 * math.ceil(math.log2(ranks)), 2 * num_bytes, link)
    return min(ring, tree)


def all_gather(num_bytes: float, ranks: int, link: Link) -> float:
    """`num_bytes` is the gathered whole. Reduce-scatter costs the same."""
    return 0.0 if ranks == 1 else _ms(ranks - 1, (ranks - 1) / ranks * num_bytes, link)


def all_to_all(num_bytes: float, ranks: int, link: Link) -> float:
    """`num_bytes` is what each rank holds."""
    return 0.0 if ranks == 1 else _ms(ranks - 1, (ranks - 1) / ranks * num_bytes, link)


def broadcast(num_bytes: float, ranks: int, link: Link) -> float:
    return 0.0 if ranks == 1 else _ms(math.ceil(math.log2(ranks)), num_bytes, link)


def _ms(messages: float, num_bytes: float, link: Link) -> float:
    assert num_bytes >= 0, f"{messages} messages of {num_bytes} bytes"
    return messages * link.alpha_us / 1e3 + num_bytes / link.beta_gb_s / 1e6
