"""Shares of the wall against an independent computation: every microsecond is looked at on its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.profiler.anatomy import take_apart
from millstream.profiler.trace import read_trace

NAMES = {
    "work": ("kernel", "gemm"),
    "talk": ("kernel", "ncclDevKernel_AllReduce_Sum_bf16"),
    "expert": ("kernel", "void deep_ep::internode::dispatch<8>(int4*)"),
    "pass": ("kernel", "ncclDevKernel_SendRecv"),
    "copy": ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)"),
}
SPAN = st.tuples(st.sampled_from(sorted(NAMES)), st.integers(0, 900), st.integers(1, 120), st.integers(1, 4))


def events(spans: list[tuple[str, int, int, int]]) -> list[dict[str, Any]]:
    found = []
    for link, (what, begin, length, stream) in enumerate(spans):
        category, name = NAMES[what]
        common = {"ph": "X", "args": {"correlation": link}}
        found.append(
            {**common, "cat": category, "name": name, "ts": begin, "dur": length, "pid": 0, "tid": stream}
        )
        found.append(
            {
                **common,
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "ts": begin,
                "dur": 1,
                "pid": 1,
                "tid": 1,
            }
        )
    return found


def by_moments(spans: list[tuple[str, int, int, int]]) -> dict[str, float]:
    """What each moment is spent with: work covers communication, and both cover copies."""
    first = min(begin for _, begin, _, _ in spans)
    last = max(begin + length for _, begin, length, _ in spans)
    counted = dict.fromkeys(("work", "talk", "copy", "busy"), 0)
    for moment in range(first, last):
        running = {what for what, begin, length, _ in spans if begin <= moment < begin + length}
        counted["busy"] += bool(running)
        if "work" in running:
            counted["work"] += 1
        elif running & {"talk", "expert", "pass"}:
            counted["talk"] += 1
        elif "copy" in running:
            counted["copy"] += 1
    return {name: count / (last - first) for name, count in counted.items()}


@settings(max_examples=60)
@given(spans=st.lists(SPAN, min_size=1, max_size=25))
def test_busy_communication_and_copies_are_within_a_point_of_counting_moments(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[str, int, int, int]]
) -> None:
    path: Path = tmp_path_factory.mktemp("shares") / "trace.json"
    path.write_text(json.dumps({"traceEvents": events(spans)}))
    rank = take_apart(read_trace(path))
    shares = rank.shares
    truth = by_moments(spans)
    assert shares["work"] == pytest.approx(truth["work"], abs=0.01)
    assert shares["collective"] + shares["exchange"] == pytest.approx(truth["talk"], abs=0.01)
    assert shares["copy"] == pytest.approx(truth["copy"], abs=0.01)
    assert rank.busy.total / rank.wall == pytest.approx(truth["busy"], abs=0.01)
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-6)
    assert min(shares.values()) >= -1e-9
