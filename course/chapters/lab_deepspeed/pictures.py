"""Lab 05, its picture: by the planner's formulas."""

from __future__ import annotations

from course.lab import bars
from millstream.planner.training import Sharding, training_state


def stages() -> str:
    rows = {
        f"stage {zero}": training_state(7_000_000_000, Sharding(zero=zero, shards=8)) for zero in range(4)
    }
    rows["stage 3, offload"] = training_state(7_000_000_000, Sharding(zero=3, shards=8, offload=True))
    return bars("7 billion parameters over 8 devices: what one of them holds at each stage", rows)


PICTURES = {"stages": stages}
