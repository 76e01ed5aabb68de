"""What a load run comes to: percentiles, and the limits it is held to."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millstream.load.gate import missed
from millstream.load.host import HostReading, Usage
from millstream.load.record import LoadRecord
from millstream.load.run import LoadResult
from millstream.load.summary import percentile, summarise
from tests.unit.load_chunks import CHUNK_S, chunk

# Percentiles.


def test_of_a_hundred_values_the_99th_percentile_is_the_99th() -> None:
    summary = summarise([float(value) for value in range(100, 0, -1)])
    assert summary is not None
    assert (summary.count, summary.p50, summary.p95, summary.p99, summary.largest) == (100, 50, 95, 99, 100)


def test_of_nothing_there_is_no_summary() -> None:
    assert summarise([]) is None


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.floats(0.001, 1))
def test_a_percentile_is_the_smallest_value_that_covers_its_share(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values) + 1e-9


# The gate.


def good_run() -> LoadRecord:
    record = LoadRecord(0)
    record.connecting(-1.0)
    for index in range(10):
        record.chunk(chunk(index), index * CHUNK_S)
    record.clock.halt(10 * CHUNK_S)
    return record


def result_of(record: LoadRecord, **others: Any) -> LoadResult:
    empty: dict[str, Any] = dict(everybody={}, server=None, connects=None, after_connects=None)
    return LoadResult(people=(record.result(100.0),), **{**empty, **others})


def test_a_good_run_passes_the_gate() -> None:
    assert missed(result_of(good_run())) == []


def test_each_limit_that_is_missed_is_said() -> None:
    slow = good_run()
    slow.samples.first_frame_s = [2.5]
    slow.samples.control_shown_s = [slow.promise_s + 0.1]
    slow.clock.late_s = 1.0
    slow.steered("lost", 0.0)
    slow.error("bad_state: no")
    lines = "\n".join(missed(result_of(slow)))
    for words in ("first frame after 2.50 s", "(p95)", "continuity 0.88", "never showed", "bad_state"):
        assert words in lines


def test_a_refusal_is_no_miss_unless_it_was_slow() -> None:
    refused = LoadRecord(0)
    refused.refused("all places are taken", 0.05)
    assert missed(result_of(refused)) == []
    refused.samples.refusal_s = [0.2]
    assert "0.200 s to be refused" in missed(result_of(refused))[0]


def test_memory_threads_and_tasks_that_stay_behind_are_said() -> None:
    start = HostReading(resident_bytes=1000, threads=5, tasks=7)
    usage = Usage(start=start, peak_bytes=1100, end=HostReading(resident_bytes=1030, threads=6, tasks=8))
    lines = missed(result_of(good_run(), after_connects=usage))
    assert len(lines) == 3
    for line, words in zip(lines, ("3.0%", "6 threads", "8 tasks"), strict=True):
        assert words in line


def test_what_stays_behind_on_a_device_is_told_apart_from_host_memory() -> None:
    start = HostReading(resident_bytes=1000, threads=5, tasks=7, device_bytes=400)
    end = HostReading(resident_bytes=1000, threads=5, tasks=7, device_bytes=500)
    usage = Usage(start=start, peak_bytes=1000, end=end)
    assert usage.growth == 0
    assert usage.device_growth == 0.25
