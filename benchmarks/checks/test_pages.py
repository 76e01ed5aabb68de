"""The docs' measurements agree with the results, and their messages with the message types."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import (
    course_gpu,
    course_results,
    distributed_page,
    fleet_page,
    fleet_sim,
    forking_page,
    outputs,
    performance_page,
    plan_results,
    plan_scaling,
    profiling_page,
    protocol_page,
    training_page,
    tuning_page,
)
from benchmarks.pages import put_between, write_between
from course.catalogue import find_chapter

PAGES = (
    performance_page,
    distributed_page,
    profiling_page,
    fleet_page,
    fleet_sim,
    forking_page,
    outputs,
    protocol_page,
    training_page,
    tuning_page,
)


@pytest.mark.parametrize(("writer", "name"), [(writer, name) for writer in PAGES for name in writer.TABLES])
def test_a_page_holds_the_tables_that_its_command_writes(writer: ModuleType, name: str) -> None:
    page = writer.PAGE.read_text()
    lines = list(writer.TABLES[name]())
    assert len(lines) > 2, "a head, and something under it"
    assert put_between(page, name, lines) == page, f"run python -m {writer.__name__}"


@pytest.mark.parametrize("key", ["10", "14"])
def test_a_chapter_says_what_its_scripts_said_on_a_gpu(key: str) -> None:
    page = find_chapter(key).page.read_text()
    lines = course_gpu.lines_of(key)
    assert len(lines) > 3, "a command, and what it said"
    assert put_between(page, "benchmarks.course_gpu", lines) == page, (
        "run python -m benchmarks.course_gpu --pages"
    )


@pytest.mark.parametrize("key", course_results.SAID)
def test_a_chapter_says_what_was_measured_on_a_gpu(key: str) -> None:
    page = find_chapter(key).page.read_text()
    lines = course_results.lines_of(key)
    assert put_between(page, course_results.MARK, lines) == page, "run python -m benchmarks.course_results"


def test_the_planning_page_holds_the_table_of_the_committed_results() -> None:
    page = plan_results.DOCS.read_text()
    rows = plan_results.rows_of(plan_results.RESULTS)
    lines = [*plan_results.table(rows), "", plan_results.summary(rows)]
    assert put_between(page, "plan_results", lines) == page, "run python -m benchmarks.plan_results --docs"


def test_the_planning_page_shows_the_curves_as_they_are_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))  # this machine may have been measured
    page = plan_scaling.PAGE.read_text()
    lines = plan_scaling.table(plan_scaling.found())
    assert put_between(page, "plan_scaling", lines) == page, "run python -m benchmarks.plan_scaling --docs"


def test_a_table_takes_its_own_place_and_a_page_without_one_is_not_touched(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- x begins -->\nold\n<!-- x ends -->\nafter\n")
    write_between(page, "x", ["new"])
    assert page.read_text() == "before\n<!-- x begins -->\nnew\n<!-- x ends -->\nafter\n"
    with pytest.raises(AssertionError, match="no <!-- y begins -->"):
        write_between(page, "y", ["new"])
    assert "new" in page.read_text()
