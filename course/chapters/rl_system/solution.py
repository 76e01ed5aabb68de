"""Chapter 14, solution."""

from __future__ import annotations


def best_writers(write_s: float, learn_s: float, devices: int) -> int:
    return min(range(1, devices), key=lambda writers: max(write_s / writers, learn_s / (devices - writers)))


def state_gb(billions: float, learning: int, answering: int, shards: int) -> float:
    return billions * (16 * learning + 2 * answering) / shards
