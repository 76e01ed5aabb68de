"""Layers over stages: never worse than any other split, every layer once, no stage empty."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.parallel.balance import balance, owner, stage_costs

COSTS = st.lists(st.floats(0.1, 10), min_size=1, max_size=8)


@given(COSTS, st.integers(1, 4), st.data())
def test_no_split_is_better(costs: list[float], stages: int, data: st.DataObject) -> None:
    stages = min(stages, len(costs))
    each = st.lists(st.floats(0.5, 4), min_size=stages, max_size=stages)
    more = dict(slowness=data.draw(each), other_work=data.draw(each))
    found = balance(costs, stages, **more)
    others = ((0, *cuts, len(costs)) for cuts in itertools.combinations(range(1, len(costs)), stages - 1))
    best = min(max(stage_costs(costs, bounds, **more)) for bounds in others)
    assert max(stage_costs(costs, found, **more)) == pytest.approx(best)
    assert (found[0], found[-1]) == (0, len(costs))
    assert all(start < stop for start, stop in itertools.pairwise(found))


@given(COSTS, st.integers(1, 4))
def test_every_layer_has_one_owner(costs: list[float], stages: int) -> None:
    bounds = balance(costs, min(stages, len(costs)))
    owners = [owner(layer, bounds) for layer in range(len(costs))]
    assert owners == sorted(owners)
    assert set(owners) == set(range(len(bounds) - 1))


def test_the_stage_that_also_decodes_gets_fewer_layers() -> None:
    assert balance([1.0] * 40, 2) == (0, 20, 40)
    assert balance([1.0] * 40, 2, other_work=(8.0, 0.0)) == (0, 16, 40)
    assert balance([1.0] * 40, 2, slowness=(3.0, 1.0)) == (0, 10, 40)
