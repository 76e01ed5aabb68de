"""Lab 03, its picture: by the planner's formulas."""

from __future__ import annotations

from course.lab import bars
from millstream.planner.training import learner_state


def held() -> str:
    ways = {
        "copies": ("replicas", 1),
        "ZeRO-1": ("zero1", 4),
        "ZeRO-2": ("zero2", 4),
        "fully sharded": ("fsdp", 4),
    }
    rows = {name: learner_state(1_000_000, 0, data=data, ranks=ranks) for name, (data, ranks) in ways.items()}
    return bars("What a rank of four holds of a model with Adam, by the planner", rows)


PICTURES = {"held": held}
