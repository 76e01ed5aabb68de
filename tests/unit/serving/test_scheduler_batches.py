"""Chunks that share a turn, where that is quicker and makes nobody late."""

from __future__ import annotations

from collections import Counter

import pytest

from millstream.serving.batching import BatchPolicy
from millstream.serving.scheduler import Scheduler
from millstream.serving.turns import Terms
from millstream.session.pacing import Pace
from tests.unit.scheduler_moves import TERMS, land, metrics, run_of
from tests.unit.simulated_device import SimulatedDevice


def batching_device(seconds_by_size: dict[int, float], sessions: int, **policy: int) -> SimulatedDevice:
    """Sessions of one kind, with a lead of three chunks."""
    scheduler = Scheduler(batching=BatchPolicy(**policy))
    simulated = SimulatedDevice(scheduler, seconds=lambda names: seconds_by_size[len(names)])
    for index in range(sessions):
        terms = Terms(pace=Pace(fps=16, chunk_frames=12, lead_s=2.25))
        simulated.add(f"s{index}", terms, batch_key="denoise 480x832")
    return simulated


def sizes(simulated: SimulatedDevice) -> list[int]:
    return [len(run.session_ids) for _, run in simulated.turns]


@pytest.mark.parametrize(("max_size", "continuity"), [(1, 0.625), (4, 1.0)])
def test_batches_that_are_faster_carry_sessions_that_one_by_one_would_not(
    max_size: int, continuity: float
) -> None:
    simulated = batching_device({1: 0.3, 2: 0.4, 3: 0.5, 4: 0.6}, 4, max_size=max_size)
    simulated.run(100.0)
    before = metrics(simulated)
    simulated.run(300.0)
    assert max(sizes(simulated)) <= max_size
    for name, session in metrics(simulated).items():
        assert 1 - (session.stalled_s - before[name].stalled_s) / 200.0 == pytest.approx(continuity, abs=0.01)


def test_batches_that_are_slower_are_only_ever_tried() -> None:
    simulated = batching_device(
        {1: 0.3, 2: 0.62, 3: 0.95, 4: 1.3}, 4, explore_every=32, refresh_every=100_000
    )
    simulated.run(600.0)
    tried = [size for size in sizes(simulated) if size > 1]
    assert tried == [2] * 3, "and four not even that, where two do not pay"


@pytest.mark.parametrize(("neighbour", "together"), [(False, ("a", "b")), (True, ("a",))])
def test_a_batch_that_would_make_a_neighbour_late_is_not_run(
    neighbour: bool, together: tuple[str, ...]
) -> None:
    scheduler = Scheduler()
    for size, seconds in ((1, 0.3), (2, 0.42)):
        for _ in range(3):
            scheduler.batch_times.add("shape", size, seconds)
    scheduler.add("a", TERMS, 0.0, batch_key="shape")
    scheduler.add("b", Terms(pace=Pace(fps=8, chunk_frames=12)), 0.1, batch_key="shape")
    if neighbour:  # dry at 0.8 and 0.1 s a chunk: there is time for it after one chunk, not after two
        scheduler.add("neighbour", Terms(pace=Pace(fps=20, chunk_frames=12)), 0.1)
        land(scheduler, "neighbour", 0.2, seconds=0.1)
    assert run_of(scheduler, 0.3) == together


def test_sessions_without_a_key_or_with_another_never_share_a_batch() -> None:
    scheduler = Scheduler()
    for size in (1, 2):
        for _ in range(3):
            scheduler.batch_times.add("shape", size, 0.1)
    for name, key in (("a", "shape"), ("b", "other shape"), ("c", None), ("d", None)):
        scheduler.add(name, TERMS, 0.0, batch_key=key)
    assert [run_of(scheduler, 0.0) for _ in range(4)] == [("a",), ("b",), ("c",), ("d",)]


def test_the_same_sessions_share_their_calls_in_the_same_order_whoever_is_most_urgent() -> None:
    """A recorded call is of certain sessions in a certain order."""
    simulated = batching_device({1: 0.3, 2: 0.4, 4: 0.6}, 6)
    simulated.run(120.0)
    together = Counter(run.session_ids for _, run in simulated.turns if len(run.session_ids) > 1)
    assert set(together) == {("s0", "s1", "s2", "s3"), ("s0", "s1"), ("s2", "s3"), ("s4", "s5")}
    assert together["s0", "s1", "s2", "s3"] > 10 < together["s4", "s5"]


def test_who_comes_sits_where_somebody_left() -> None:
    simulated = batching_device({1: 0.3, 2: 0.4}, 4, max_size=2)
    simulated.run(30.0)
    simulated.remove("s1")
    simulated.add("new", TERMS, batch_key="denoise 480x832")
    simulated.run(60.0)
    together = {run.session_ids for at, run in simulated.turns if at > 31.0 and len(run.session_ids) > 1}
    assert together == {("s0", "new"), ("s2", "s3")}
