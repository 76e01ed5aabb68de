"""Results of `bench stream` on GPUs against the plan: which results are compared, and how they are made into
a table."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import plan_results
from benchmarks.pages import marks, put_between
from benchmarks.plan_results import DOCS, MEMORY_GOAL, TIME_GOAL, row_of, rows_of, table
from millstream.planner.hardware import DEVICES, H200_RATES

pytestmark = pytest.mark.slow

BEGIN, END = marks("plan_results")

PLAIN: dict[str, Any] = {
    "hardware": {"gpu": "NVIDIA H200"},
    "configuration": {
        "model": "wan2.1-t2v-1.3b",
        "weights": ["random"],
        "speed": {"blocks": False, "fp8": []},
        "stream": {"height": 480, "width": 832, "window": 9, "steps": [1000, 750, 500, 250]},
    },
    "measured": {
        "chunk_ms": {"p50": 507.9},
        "memory_mib": {"steady": 7998.7, "end": 3628.6, "peak": 16090.2},
    },
}
ON = dict(blocks=True, round_keys=True, decoder=True, own_convolution=True)
FP8 = ["qkv", "out", "cross", "mlp"]


def result(
    model: str, size: tuple[int, int], window: int, speed: dict[str, Any], ms: float, **memory_mib: float
) -> dict[str, Any]:
    record = copy.deepcopy(PLAIN)
    record["configuration"] |= {"model": model, "speed": speed}
    record["configuration"]["stream"] |= {"height": size[0], "width": size[1], "window": window}
    record["measured"] = {"chunk_ms": {"p50": ms}, "memory_mib": memory_mib}
    return record


SMALL = ("wan2.1-t2v-1.3b", (480, 832), 9)
LARGE = ("wan2.1-t2v-14b", (320, 576), 6)
MEASURED = (
    PLAIN,
    result(*SMALL, ON, 306.0),
    result(*SMALL, {**ON, "graphs": True}, 292.7, steady=10149.3, peak=17461.0),
    result(*SMALL, {**ON, "graphs": True, "own_convolution": False}, 311.2, steady=10127.5, peak=17472.2),
    result(*SMALL, {**ON, "graphs": True, "fp8": FP8}, 261.1, steady=8959.1, peak=16303.8),
    result(*LARGE, {**ON, "graphs": True, "fp8": FP8}, 364.7),
    result(*SMALL, {**ON, "graphs": True, "even_waves": True}, 284.2, steady=10149.3, peak=17461.0),
    result(*LARGE, {**ON, "graphs": True, "even_waves": True, "fp8": FP8}, 362.6),
)
"""As an H200 gave them."""


@pytest.mark.parametrize("record", MEASURED)
def test_time_and_memory_on_an_h200_are_as_planned(record: dict[str, Any]) -> None:
    row = row_of(record)
    assert row is not None
    assert abs(row.chunk_ms.miss) <= TIME_GOAL, row
    for memory in (row.steady_gib, row.peak_gib):
        assert memory is None or abs(memory.miss) <= MEMORY_GOAL / 2, row


def test_only_the_rows_that_numbers_were_fitted_to_are_called_fitted() -> None:
    rows = [row_of(record) for record in MEASURED]
    assert [row.fitted for row in rows if row is not None] == [
        True,
        False,
        True,
        False,
        False,
        False,
        True,
        False,
    ]


def test_a_device_that_was_calibrated_is_planned_with_by_its_own_rates() -> None:
    slower = replace(
        DEVICES["h200"], measured=replace(H200_RATES, matmul_tflops=0.5 * H200_RATES.matmul_tflops)
    )
    known = row_of(PLAIN)
    calibrated = row_of(PLAIN, slower)
    another = row_of(PLAIN, replace(slower, name="B200"))
    assert known is not None
    assert calibrated is not None
    assert known == another
    assert calibrated.chunk_ms.planned > 1.1 * known.chunk_ms.planned


@pytest.mark.parametrize(
    ("part", "changes"),
    [("hardware", {"gpu": "NVIDIA Unheard"}), ("hardware", {"gpu": ""}), ("configuration", {"sessions": 4})],
)
def test_a_result_of_an_unknown_device_or_of_several_sessions_is_left_out(
    part: str, changes: dict[str, Any]
) -> None:
    record = copy.deepcopy(PLAIN)
    record[part] |= changes
    assert row_of(record) is None


def test_a_miss_beyond_the_goal_stands_out(tmp_path: Path) -> None:
    late = copy.deepcopy(PLAIN)
    late["measured"]["chunk_ms"]["p50"] = 1022.9
    (tmp_path / "stream-late.json").write_text(json.dumps(late))
    (tmp_path / "stream-plain.json").write_text(json.dumps(PLAIN))
    (tmp_path / "other.json").write_text("{}")
    rows = rows_of(tmp_path)
    assert [("**-50.0%**" in line, "**" in line) for line in table(rows)[2:]] == [
        (True, True),
        (False, False),
    ]
    assert "5 of 6 numbers" in plan_results.summary(rows)


def test_the_table_takes_its_own_place_in_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / "planning.md"
    place = "<!-- plan_results profile begins -->\nold\n<!-- plan_results profile ends -->\n"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\n{place}after\n")
    (tmp_path / "stream-plain.json").write_text(json.dumps(PLAIN))
    monkeypatch.setattr(plan_results, "DOCS", document)
    monkeypatch.setattr(sys, "argv", ["plan_results", "--results", str(tmp_path), "--docs"])
    plan_results.main()
    text = document.read_text()
    assert text.startswith(f"before\n{BEGIN}\n| stream |")
    assert text.endswith(" numbers.\n<!-- plan_results profile ends -->\nafter\n")
    assert "old" not in text
    assert put_between(text, "plan_results", ["x"]).startswith(f"before\n{BEGIN}\nx\n{END}\n")


def test_the_committed_document_has_a_place_for_it() -> None:
    text = DOCS.read_text()
    assert text.index(BEGIN) < text.index(END)
