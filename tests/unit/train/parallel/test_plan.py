"""How training is shared out is checked before anything is made, and what is wrong is said with what would
fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.config import DiTConfig
from millstream.core.errors import ConfigError
from millstream.train.parallel.plan import ParallelPlan
from millstream.train.parallel.stages import part_numbers

MODEL = DiTConfig(layers=4, width=48, heads=4, ffn=96)


@given(*(st.integers(1, 3) for _ in range(3)))
def test_every_rank_has_a_place_of_its_own(dp: int, cp: int, tp: int) -> None:
    plan = ParallelPlan(dp=dp, cp=cp, tp=tp)
    places = [plan.place_of(rank) for rank in range(plan.world_size)]
    assert len(set(places)) == plan.world_size == dp * cp * tp
    assert [place.tp for place in places[:tp]] == list(range(tp)), "those who speak most are neighbours"


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zbv"])
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_every_part_of_a_pipeline_is_on_one_rank(schedule: str, pp: int) -> None:
    plan = ParallelPlan(pp=pp, schedule=schedule, micro_batches=pp)
    numbers = [number for place in range(pp) for number in part_numbers(plan, place)]
    assert sorted(numbers) == list(range(pp * plan.parts_per_rank))
    if schedule == "zbv":
        assert part_numbers(plan, 0) == (0, 2 * pp - 1), "a V begins and ends on the first rank"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (dict(dp=0), "dp must be 1 or more, got 0"),
        (dict(data="zero4"), "data must be one of replicas, ddp, zero1"),
        (dict(dp=4, data="hsdp"), "needs shards that divide dp = 4, got 0"),
        (dict(dp=4, data="hsdp", shards=3), "divide dp = 4, got 3; 1, 2, 4 would"),
        (dict(dp=4, shards=2), "shards is for data = hsdp"),
        (dict(tp=2, data="zero2"), "tp goes with data = replicas or fsdp"),
        (dict(pp=2, data="fsdp"), "pp goes with data = replicas and cp = 1"),
        (dict(pp=2, cp=2), "pp goes with data = replicas and cp = 1"),
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ParallelPlan(**fields)


@pytest.mark.parametrize(
    ("fields", "batch", "said"),
    [
        (
            dict(dp=4),
            6,
            "a batch of 6 does not divide over dp = 4 and micro_batches = 1; take a multiple of 4",
        ),
        (dict(tp=3), 4, "tp = 3 does not divide the model's 4 heads; 1, 2, 4 would"),
        (dict(cp=8), 4, "cp = 8 does not divide the model's 4 heads; 1, 2, 4 would"),
        (
            dict(pp=4, schedule="zbv", micro_batches=4),
            4,
            "4 layers are too few for pp = 4 with 2 parts a rank; take pp = 2",
        ),
        (dict(pp=4, micro_batches=2), 4, "pp = 4 needs 4 or more micro_batches"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_with_what_would(fields: dict, batch: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ParallelPlan(**fields).check(MODEL, batch)


def test_too_few_ranks_are_told_how_many_are_needed() -> None:
    with pytest.raises(
        ConfigError, match=r"4 ranks \(pp 1 x dp 2 x cp 1 x tp 2\) and there are 3; .*--nproc-per-node 4"
    ):
        ParallelPlan(dp=2, tp=2).check_ranks(3)
