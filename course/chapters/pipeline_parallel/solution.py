"""Chapter 7, solution."""

from __future__ import annotations


def micro_batches_for(stages: int, most_waiting: float) -> int:
    parts = 1
    while (stages - 1) / (parts + stages - 1) > most_waiting:
        parts += 1
    return parts


def order_1f1b(stage: int, stages: int, parts: int) -> list[tuple[str, int]]:
    ahead = min(stages - 1 - stage, parts)
    order = [("F", part) for part in range(ahead)]
    for part in range(parts - ahead):
        order += [("F", ahead + part), ("B", part)]
    return order + [("B", part) for part in range(parts - ahead, parts)]
