"""What is it bound by? Each row of the table of diagnoses is put into a workload, and must be found there."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.planner.hardware import DEVICES
from millstream.profiler.ranks import gather
from millstream.profiler.reading import Reading, read
from millstream.profiler.rules.findings import ADVICE, UNTRUSTED
from millstream.profiler.rules.overheads import BETWEEN_OPERATORS, IN_LONG_GAPS
from millstream.profiler.simulated_rank import COMPUTE, TALK, SimulatedRank, collective
from millstream.profiler.simulated_workloads import WORKLOADS, SimulatedWorkload, block
from millstream.profiler.trace import read_trace

pytestmark = pytest.mark.slow

BY_NAME = {workload.name: workload for workload in WORKLOADS}


def reading(folder: Path, name: str, seed: int = 2000) -> Reading:
    return read(BY_NAME[name].write(folder, seed))


def pair(rng: int = 0) -> list[SimulatedRank]:
    return [SimulatedRank(rank, DEVICES["h200"], random.Random(rng + rank)) for rank in range(2)]


def written(folder: Path, ranks: list[SimulatedRank]) -> list[Path]:
    return [rank.write(folder, len(ranks)) for rank in ranks]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_the_bottleneck_that_was_put_there_is_named(tmp_path: Path, workload: SimulatedWorkload) -> None:
    verdicts = [read(workload.write(tmp_path, seed)).diagnosis.verdict for seed in (2000, 2001, 2002)]
    assert [verdict.name for verdict in verdicts].count(workload.expected) >= 2
    assert not [v for v in verdicts if v.name != workload.expected and v.confidence == "high"], (
        "confidently wrong"
    )


@pytest.mark.parametrize("gap_us", [3.0, 300.0])
def test_a_trace_of_a_processor_is_told_nothing_of_graphs_and_launches(tmp_path: Path, gap_us: float) -> None:
    """Short operators, and Python between them, for however long."""
    step = 20.0 + gap_us
    ops = [
        dict(ph="X", cat="cpu_op", name="aten::add", pid=1, tid=1, ts=step * i, dur=20.0) for i in range(500)
    ]
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps({"traceEvents": ops}))
    found = read([path])
    said = [
        finding
        for finding in (found.diagnosis.verdict, *found.diagnosis.others)
        if finding.name == "CPU-bound"
    ]
    assert [finding.advice for finding in said] == [BETWEEN_OPERATORS]
    assert said[0].gain == pytest.approx(gap_us / step, abs=0.01)
    assert "no operator runs" in said[0].evidence[0]
    assert found.group.ranks[0].shares["launch"] == 0.0


def test_every_row_of_the_table_has_a_workload() -> None:
    assert {workload.expected for workload in WORKLOADS} == set(ADVICE) - {"unexplained"}
    assert len(WORKLOADS) >= 12


@settings(max_examples=25)
@given(workload=st.sampled_from(WORKLOADS), seed=st.integers(3000, 9999))
def test_shares_add_up_to_the_wall_and_no_gain_is_more_than_all(
    tmp_path_factory: pytest.TempPathFactory, workload: SimulatedWorkload, seed: int
) -> None:
    found = read(workload.write(tmp_path_factory.mktemp("traces"), seed))
    for rank in found.group.ranks:
        assert sum(rank.shares.values()) == pytest.approx(1.0, abs=1e-6)
        assert all(share >= -1e-9 for share in rank.shares.values())
    for finding in (found.diagnosis.verdict, *found.diagnosis.others):
        assert 0 <= finding.gain <= 1
        assert finding.evidence, finding.name


def after_each_number(folder: Path, *, thinks_us: float) -> Reading:
    """Three products, whose launches take nearly as long as they do, and a number brought back, forty
    times."""
    rank = SimulatedRank(0, DEVICES["h200"], random.Random(3))
    for _ in range(40):
        for _ in range(3):
            rank.op("aten::mm", "nvjet_tst_gemm", 25.0, dispatch=18.0)
        rank.item(dispatch=30.0)
        rank.python(thinks_us)
    return read(written(folder, [rank]))


def test_a_wait_is_blamed_for_the_empty_queue_it_leaves_however_short_it_was(tmp_path: Path) -> None:
    found = after_each_number(tmp_path, thinks_us=1.0)
    (rank,) = found.group.ranks
    assert rank.waiting.total < 0.25 * rank.wall, "the host hardly waits"
    assert rank.blocked.total > rank.waiting.total, "and the operator around the wait goes with it"
    assert rank.shares["sync"] > 3 * rank.shares["launch"]
    assert found.diagnosis.verdict.name == "synchronisation"


def test_a_host_that_thinks_long_after_a_wait_is_what_the_device_waits_for(tmp_path: Path) -> None:
    found = after_each_number(tmp_path, thinks_us=400.0)
    assert found.diagnosis.verdict.name == "CPU-bound"


def test_a_gap_is_the_hosts_until_the_launch_and_the_queues_after_it(tmp_path: Path) -> None:
    """Forty times: 400 us of Python, a launch, and a device that begins 600 us after it."""
    rank = SimulatedRank(0, DEVICES["h200"], random.Random(3), noise=0.0)
    for _ in range(40):
        rank.now = rank.free.get(COMPUTE, 0.0) + 400.0
        rank.free[COMPUTE] = rank.now + 600.0
        rank.op("aten::mm", "nvjet_tst_gemm", 1000.0, dispatch=1.0)
    (found,) = read(written(tmp_path, [rank])).group.ranks
    assert found.shares["host"] == pytest.approx(0.2, abs=0.01)
    assert found.shares["queue"] == pytest.approx(0.3, abs=0.015), (
        "but for the first, before which nothing is seen"
    )


def test_a_host_that_waits_for_a_device_that_does_nothing_waits_for_what_is_not_in_the_trace(
    tmp_path: Path,
) -> None:
    rank = SimulatedRank(0, DEVICES["h200"], random.Random(3), noise=0.0)
    for _ in range(40):
        rank.op("aten::mm", "nvjet_tst_gemm", 1000.0)
        rank.synchronise()
    rank.free[TALK] = rank.now + 5000.0  # work of which no event was written
    rank.synchronise()
    found = read(written(tmp_path, [rank]))
    assert found.group.ranks[0].shares["lost"] == pytest.approx(0.11, abs=0.02)
    assert any("the trace may be cropped" in doubt for doubt in found.diagnosis.doubts)
    assert found.diagnosis.verdict.confidence != "high"


def test_without_launch_calls_nobody_says_whose_fault_the_gaps_are(tmp_path: Path) -> None:
    rank = SimulatedRank(0, DEVICES["h200"], random.Random(3))
    for _ in range(40):
        rank.op("aten::mm", "nvjet_tst_gemm", 100.0)
        rank.python(400.0)
    rank.events = [event for event in rank.events if event["cat"] == "kernel"]
    verdict = read(written(tmp_path, [rank])).diagnosis.verdict
    assert (verdict.name, verdict.confidence) == ("unexplained", "low")
    assert verdict.advice.startswith("record the host as well")


def test_sums_are_not_wall_time(tmp_path: Path) -> None:
    """Communication that work covers costs nothing, however much of it there is."""
    found = reading(tmp_path, "products over covered communication")
    (rank, *_) = found.group.ranks
    assert rank.collectives.total > 0.1 * rank.wall
    assert rank.shares["collective"] < 0.05
    assert found.diagnosis.verdict.name == "compute-bound"


def test_rank_0_is_not_representative(tmp_path: Path) -> None:
    """Alone, a rank that waits seems bound by communication; beside the slow one it is seen what it waits
    for."""
    ranks = pair()
    for _ in range(12):
        for rank, tokens in zip(ranks, (1000, 4000), strict=True):
            block(rank, tokens, 2048)
        collective(ranks, 20.0, 1000)
    paths = written(tmp_path, ranks)
    alone = read(paths[:1]).diagnosis.verdict
    together = read(paths).diagnosis.verdict
    assert alone.name == "communication-bound"
    assert any("one rank only" in line for line in alone.evidence)
    assert together.name == "straggler"
    assert any("rank 1 comes last to 100%" in line for line in together.evidence)


def test_transfer_is_the_minimum_over_ranks_and_the_rest_is_waiting(tmp_path: Path) -> None:
    ranks = [replace(rank, noise=0.0) for rank in pair()]
    for _ in range(5):
        ranks[1].python(300.0)
        collective(ranks, 100.0, 1000)
    skew = gather([read_trace(path) for path in written(tmp_path, ranks)]).skew
    assert skew.matched == 5
    assert skew.straggler == 1
    lengths = [event["dur"] for event in ranks[0].events if event["name"].startswith("nccl")]
    assert skew.waited_ms[0] == pytest.approx((sum(lengths) - 5 * 100.0) / 1e3, rel=1e-6)
    assert skew.waited_ms[1] == pytest.approx(0.0, abs=0.02)


def test_ranks_whose_clocks_differ_are_still_compared_by_lengths(tmp_path: Path) -> None:
    ranks = pair()
    for _ in range(12):
        for rank, tokens in zip(ranks, (1000, 4000), strict=True):
            block(rank, tokens, 2048)
        collective(ranks, 20.0, 1000)
    for event in ranks[1].events:
        event["ts"] += 1e9
    found = read(written(tmp_path, ranks))
    assert found.diagnosis.verdict.name == "straggler"
    assert found.diagnosis.verdict.confidence != "high"
    assert any("clocks do not agree" in doubt for doubt in found.diagnosis.doubts)


@pytest.mark.parametrize(("gap_us", "advice"), [(100.0, ADVICE["CPU-bound"]), (20_000.0, IN_LONG_GAPS)])
def test_a_gap_that_no_launch_would_fill_is_to_be_looked_into(
    tmp_path: Path, gap_us: float, advice: str
) -> None:
    """Ten kernels with Python before each: compiling helps between short gaps, and not where the host is at
    something else."""
    events = []
    for number in range(10):
        at = number * (gap_us + 200.0)
        call = dict(
            cat="cuda_runtime",
            name="cudaLaunchKernel",
            tid=1,
            ts=at + gap_us,
            dur=5.0,
            args={"correlation": number},
        )
        kernel = dict(
            cat="kernel", name="gemm", tid=7, ts=at + gap_us + 10.0, dur=150.0, args={"correlation": number}
        )
        events += [dict(ph="X", pid=0, **call), dict(ph="X", pid=0, **kernel)]
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({"traceEvents": events}))
    found = read([path]).diagnosis
    said = [finding for finding in (found.verdict, *found.others) if finding.name == "CPU-bound"]
    assert [finding.advice for finding in said] == [advice]


@pytest.mark.parametrize("name", [w.name for w in WORKLOADS if w.expected == UNTRUSTED])
def test_of_a_trace_that_cannot_be_trusted_nothing_is_said_but_to_record_again(
    tmp_path: Path, name: str
) -> None:
    diagnosis = reading(tmp_path, name).diagnosis
    assert diagnosis.verdict.advice.startswith("record again")
    assert diagnosis.verdict.gain == 0
    assert diagnosis.others == ()


def test_a_bubble_is_held_against_what_its_schedule_predicts(tmp_path: Path) -> None:
    paths = BY_NAME["a pipeline with few micro-batches"].write(tmp_path, 2000)
    found = read(paths, stages=4, micro_batches=8).diagnosis
    assert "the schedule predicts 27%" in found.verdict.evidence[0]


def test_shapes_are_needed_to_call_work_compute_bound(tmp_path: Path) -> None:
    """Without them nobody knows how near the peak it is, and nobody says so."""
    paths = BY_NAME["large products"].write(tmp_path, 2000)
    record = json.loads(paths[0].read_text())
    for event in record["traceEvents"]:
        event.get("args", {}).pop("Input Dims", None)
    paths[0].write_text(json.dumps(record))
    verdict = read(paths).diagnosis.verdict
    assert (verdict.name, verdict.confidence) == ("unexplained", "low")


def test_the_roofline_counts_a_product_as_it_is(tmp_path: Path) -> None:
    (rank, _) = pair()
    rank.noise = 0.0
    rank.product(4096, 4096, 4096, reach=0.8)
    (found,) = read([rank.write(tmp_path, 1)]).roofs
    (family,) = found.families
    assert family.flops == 2 * 4096**3
    assert family.moved == 3 * 2 * 4096**2
    assert family.tflops == pytest.approx(0.8 * DEVICES["h200"].rates.matmul_tflops, rel=1e-3)
    assert found.reached == pytest.approx(0.8, rel=1e-3)


def test_a_simulation_is_the_same_again_for_the_same_seed() -> None:
    first, again = ([rank.events for rank in WORKLOADS[0].build(random.Random(5))] for _ in range(2))
    assert first == again
