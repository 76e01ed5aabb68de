"""What a chunk is taken to cost, from those that were measured."""

from __future__ import annotations

import pytest

from millstream.serving.chunk_times import KEPT, MAX_GEOMETRIES, ChunkTimes, Geometry
from tests.unit.serving.test_admission import GEOMETRY, shape


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def seconds_of(times: ChunkTimes, geometry: Geometry = GEOMETRY) -> float:
    estimate = times.estimate(geometry)
    assert estimate is not None
    return estimate.seconds


def test_the_chunk_time_covers_the_spread_that_was_seen() -> None:
    times = ChunkTimes(Hands())
    for index in range(100):
        times.add(GEOMETRY, 1.0 if index % 5 == 0 else 0.2)
    assert seconds_of(times) == 1.0
    for _ in range(KEPT):
        times.add(GEOMETRY, 0.2)
    assert seconds_of(times) == 0.2


def test_a_first_chunk_that_pays_for_kernels_counts_only_until_there_is_another() -> None:
    times = ChunkTimes(Hands())
    times.add(GEOMETRY, 0.3)
    assert seconds_of(times) == 0.3, "nothing better is known"
    times.add(GEOMETRY, 0.03)
    assert seconds_of(times) == 0.03
    times.add(GEOMETRY, 0.3)
    assert seconds_of(times) == 0.3, "a later one counts"


def test_a_device_that_slows_down_is_believed_within_three_chunks_and_one_slow_chunk_alone_is_not() -> None:
    clock = Hands()
    times = ChunkTimes(clock)
    for _ in range(50):
        clock.now += 1.0
        times.add(GEOMETRY, 0.5)
    times.add(GEOMETRY, 1.0)
    assert seconds_of(times) == 0.5
    times.add(GEOMETRY, 1.0)
    assert seconds_of(times) == 1.0


def test_what_was_slow_is_forgotten_within_a_minute_of_anything_newer() -> None:
    """A machine busy while the server started, then a session of another geometry: the first one is scaled
    from that."""
    clock = Hands()
    times = ChunkTimes(clock)
    times.add(GEOMETRY, 60.0)
    clock.now = 61.0
    assert seconds_of(times) == 60.0
    times.add(shape(500), 0.1)
    assert seconds_of(times) == pytest.approx(0.2)


def test_the_nearest_geometry_is_of_the_same_model_and_old_ones_make_room() -> None:
    times = ChunkTimes()
    times.add(shape(1000, "wan"), 9.0)
    assert times.estimate(GEOMETRY) is None
    for tokens in range(1, MAX_GEOMETRIES + 1):
        times.add(shape(tokens), 0.1)
    assert times.estimate(shape(1000, "wan")) is None
    nearest = times.estimate(GEOMETRY)
    assert nearest is not None
    assert nearest.scaled_from is not None
    assert nearest.scaled_from.tokens == MAX_GEOMETRIES
