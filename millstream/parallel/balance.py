"""Which layers go to which stage of a pipeline, so that its slowest stage is as quick as it can be.

Plain arithmetic, no torch. Layers stay in order and every stage gets one at least. Besides its layers a stage
may have other work (the VAE, where the front shares its device), and may be slower than others at the same
layer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

Bounds = tuple[int, ...]
"""Where each stage begins, and where the last one ends: stage s has layers bounds[s] up to bounds[s + 1]."""
GAIN = 1.1
"""How much quicker the slowest stage must become for another split to be worth it."""


def balance(
    costs: Sequence[float], stages: int, *, slowness: Sequence[float] = (), other_work: Sequence[float] = ()
) -> Bounds:
    """Return the split of layers that cost `costs` whose slowest stage costs least; of equals the one that
    gives early stages less."""
    assert 1 <= stages <= len(costs), f"{len(costs)} layers do not make {stages} stages"
    slowness = slowness or [1.0] * stages
    other_work = other_work or [0.0] * stages
    assert len(slowness) == len(other_work) == stages, (
        f"{len(slowness)} speeds and {len(other_work)} other works of {stages} stages"
    )
    sums = [0.0, *itertools.accumulate(costs)]
    best: list[tuple[float, Bounds]] = [(0.0 if stop == 0 else math.inf, (0,)) for stop in range(len(sums))]
    for stage in range(stages):
        best = [
            min(
                (
                    (
                        max(best[start][0], (sums[stop] - sums[start]) * slowness[stage] + other_work[stage]),
                        (*best[start][1], stop),
                    )
                    for start in range(stage, stop)
                ),
                default=(math.inf, ()),
            )
            for stop in range(len(sums))
        ]
    return best[-1][1]


def stage_costs(
    costs: Sequence[float],
    bounds: Bounds,
    *,
    slowness: Sequence[float] = (),
    other_work: Sequence[float] = (),
) -> list[float]:
    """Return the cost of each stage of a split."""
    stages = len(bounds) - 1
    slowness = slowness or [1.0] * stages
    other_work = other_work or [0.0] * stages
    layers = itertools.pairwise(bounds)
    return [
        sum(costs[start:stop]) * slow + other
        for (start, stop), slow, other in zip(layers, slowness, other_work, strict=True)
    ]


def better_split(
    bounds: Bounds, *, slowness: Sequence[float], other_work: Sequence[float] = (), gain: float = GAIN
) -> Bounds | None:
    """Return the split of equal layers that suits these stages; None if `bounds` does nearly as well."""
    layers = [1.0] * bounds[-1]
    found = balance(layers, len(bounds) - 1, slowness=slowness, other_work=other_work)
    now, then = (
        max(stage_costs(layers, each, slowness=slowness, other_work=other_work)) for each in (bounds, found)
    )
    return found if now > gain * then else None


def owner(layer: int, bounds: Bounds) -> int:
    """Return the stage that has a layer."""
    assert bounds[0] <= layer < bounds[-1], f"layer {layer} of {bounds}"
    return next(stage for stage in range(len(bounds) - 1) if bounds[stage] <= layer < bounds[stage + 1])
