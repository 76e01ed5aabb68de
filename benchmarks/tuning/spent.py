"""How much of its time a run of tuning has spent, and how it went, from the curve that it leaves.

A run that was cut off goes on from its last checkpoint and writes the steps after it again: the later line of
a step counts.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path

PHASES = ("sync_s", "try_s", "rollout_s", "reward_s", "learn_s")
"""Phases of a step whose time counts towards a way's limit."""
SHOWN = ("reward", "kl_reached", "kl_coefficient", "norm")
POINTS = 12
"""Points of a curve in a row."""


class SpentTime:
    def __init__(self, curve: Path) -> None:
        lines = map(json.loads, curve.read_text().splitlines()) if curve.exists() else ()
        self._steps: dict[int, dict[str, float]] = {line["step"]: _numbers(line) for line in lines}

    def add(self, step: int, numbers: Mapping[str, object]) -> None:
        """The step that makes so many. Steps after it that a run once did are no longer its own."""
        self._steps = {number: said for number, said in self._steps.items() if number < step} | {
            step: _numbers(numbers)
        }

    @property
    def seconds(self) -> float:
        return sum(sum(step.get(phase, 0.0) for phase in PHASES) for step in self._steps.values())

    def summary(self, streams_per_step: int) -> dict[str, float]:
        """In all, and where a step's time went in the mean."""
        count = len(self._steps)
        where = {
            phase: statistics.mean(step.get(phase, 0.0) for step in self._steps.values()) for phase in PHASES
        }
        return {"seconds": self.seconds, "steps": count, "streams": streams_per_step * count} | where

    def curve(self) -> list[dict[str, float]]:
        """Means of as many steps each; `step` is the last of them."""
        numbers = sorted(self._steps)
        width = -(-len(numbers) // POINTS)
        parts = [numbers[first : first + width] for first in range(0, len(numbers), width)] if numbers else []
        return [{"step": part[-1], **self._means(part)} for part in parts]

    def _means(self, steps: list[int]) -> dict[str, float]:
        found = {
            name: [self._steps[step][name] for step in steps if name in self._steps[step]] for name in SHOWN
        }
        return {name: statistics.mean(values) for name, values in found.items() if values}


def _numbers(line: Mapping[str, object]) -> dict[str, float]:
    return {
        name: float(value) for name in (*PHASES, *SHOWN) if isinstance(value := line.get(name), float | int)
    }
