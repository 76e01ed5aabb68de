"""Playing rates of sessions that together ask for more than the device has. Pure arithmetic.

Every clock is slowed until the slowed demand fits: session i plays at rate min(1, level x weight_i), with the
one level at which the rates use the device up. No session gets more than real time, none gets nothing, and
with equal weights all lose the same share. Where demand fits, all rates are 1. The scheduler orders chunks by
deadlines on the slowed clocks, and earliest deadline first keeps deadlines that fit.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)

NEGLIGIBLE = 1e-9
"""A load below this is not slowed: the arithmetic could not tell it from rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayingLoad:
    load: float
    """Device seconds per second of media."""
    weight: float


def playing_rates(demands: Mapping[Name, PlayingLoad]) -> dict[Name, float]:
    """The rate of each session, above 0 and at most 1; their loads at these rates sum to 1 or less."""
    rates = dict.fromkeys(demands, 1.0)
    felt = [(name, demand) for name, demand in demands.items() if demand.load > NEGLIGIBLE]
    weighted = sum(demand.load * demand.weight for _, demand in felt)
    left = 1.0
    for name, demand in sorted(felt, key=lambda pair: -pair[1].weight):  # the heaviest reach real time first
        if left * demand.weight < weighted:
            rates[name] = left * demand.weight / weighted
        else:
            left -= demand.load
            weighted -= demand.load * demand.weight
    return rates
