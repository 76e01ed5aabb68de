"""Sets of moments, against counting one moment after another."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from millstream.profiler.intervals import EMPTY, Intervals, union

Pairs = list[tuple[int, int]]
pairs = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=12
)


def made(found: Pairs) -> Intervals:
    return union(np.array([a for a, _ in found], float), np.array([b for _, b in found], float))


def moments(found: Pairs) -> set[int]:
    """Unit cells that are covered."""
    return {cell for begin, end in found for cell in range(begin, end)}


def cells(found: Intervals) -> set[int]:
    return moments([(int(a), int(b)) for a, b in zip(found.begin, found.end, strict=True)])


@given(pairs)
def test_a_union_covers_each_moment_once(found: Pairs) -> None:
    assert cells(made(found)) == moments(found)
    assert made(found).total == len(moments(found))
    assert (made(found).begin[1:] > made(found).end[:-1]).all(), "disjoint and in order"


@given(pairs, pairs)
def test_and_or_and_minus_are_those_of_sets(one: Pairs, other: Pairs) -> None:
    a = made(one)
    b = made(other)
    assert cells(a & b) == moments(one) & moments(other)
    assert cells(a | b) == moments(one) | moments(other)
    assert cells(a - b) == moments(one) - moments(other)


@given(pairs, st.integers(0, 20), st.integers(21, 60))
def test_gaps_are_what_is_left_of_a_stretch(found: Pairs, begin: int, end: int) -> None:
    assert cells(made(found).gaps(begin, end)) == set(range(begin, end)) - moments(found)
    assert cells(made(found).clipped(begin, end)) == set(range(begin, end)) & moments(found)


@given(pairs, pairs)
def test_how_much_of_each_stretch_lies_within(one: Pairs, stretches: Pairs) -> None:
    begin, end = (np.array([pair[i] for pair in stretches], float) for i in (0, 1))
    expected = [len(moments([stretch]) & moments(one)) for stretch in stretches]
    assert made(one).within(begin, end).tolist() == expected


def test_nothing_is_an_interval_set_too() -> None:
    assert EMPTY.total == 0
    assert (EMPTY & EMPTY).total == 0
    assert EMPTY.gaps(1.0, 3.0).total == 2.0
