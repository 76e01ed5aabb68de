"""The house in figures: no cycle, no import between tests and benchmarks, and what the counters count."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.house import (
    PACKAGE,
    class_counts,
    crossings,
    cycles,
    is_headless,
    is_parallel,
    num_comments,
    parsed,
    rooms,
    tool_imports,
)


def test_no_file_imports_itself_by_way_of_others() -> None:
    assert cycles(parsed(PACKAGE)) == set(), "in a cycle, or behind one"


def test_a_cycle_is_found() -> None:
    first = ast.parse("from millstream import b")
    second = ast.parse("def late():\n    from millstream.a import x")
    assert cycles({"millstream.a": first, "millstream.b": second}) == {"millstream.a", "millstream.b"}


def test_neither_tests_nor_benchmarks_import_the_other() -> None:
    assert crossings() == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("benchmarks/speed.py", "from tests.server.fakes import FakeService"),
        ("benchmarks/checks/test_speed.py", "import tests.unit"),
        ("tests/unit/test_speed.py", "from benchmarks import speed"),
        ("tests/soak/kills.py", "def late() -> None:\n    from benchmarks.report import write_report"),
        ("millstream/core/speed.py", "import benchmarks"),
        ("course/speed.py", "from tests import unit"),
    ],
)
def test_an_import_that_crosses_is_found(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    assert len(crossings(tmp_path)) == 1


def test_a_class_name_stands_for_one_class() -> None:
    assert [name for name, count in class_counts(parsed(PACKAGE)).items() if count > 1] == []


def test_the_rooms_together_are_the_package() -> None:
    found = rooms()
    paths = list(PACKAGE.rglob("*.py"))
    assert set(found) == {path.parent.name for path in PACKAGE.glob("*/__init__.py")} | {"beside them"}
    assert sum(room["files"] for room in found.values()) == len(paths)
    assert sum(room["lines"] for room in found.values()) == sum(
        len(path.read_text().splitlines()) for path in paths
    )
    assert sum(room["classes"] for room in found.values()) == class_counts(parsed(PACKAGE)).total()


def test_imports_of_tools_are_counted_by_room() -> None:
    product = ast.parse(
        "from millstream.planner.time import ChunkTime\nimport course.site\nfrom millstream.core import "
        "controls"
    )
    tool = ast.parse("from millstream.planner.time import ChunkTime")
    assert tool_imports({"millstream.serving.a": product, "millstream.train.b": tool}) == {
        "imports": 2,
        "rooms": {"serving": {"planner": 1, "course": 1}},
    }


@pytest.mark.parametrize(
    ("text", "headless"),
    [
        ("Of a rank at its fullest moment.", True),
        ("Whether it was told by then.", True),
        ("The same on Ray.", True),
        ("Whose turn it is.", False),
        ("Return the rank's bytes.", False),
    ],
)
def test_a_docstring_without_its_verb_or_noun_is_headless(text: str, headless: bool) -> None:
    assert is_headless(text) is headless


@pytest.mark.parametrize(
    ("text", "parallel"),
    [
        ("a, b = 1, 2", True),
        ("self.a, b = x, y", True),
        ("a, b = b, a", False),
        ("a, b = pair()", False),
        ("a = 1, 2", False),
    ],
)
def test_an_assignment_of_several_at_once_is_counted(text: str, parallel: bool) -> None:
    (statement,) = ast.parse(text).body
    assert is_parallel(statement) is parallel


def test_comments_for_programs_are_not_counted() -> None:
    assert num_comments("a = 1  # why\nb = 2  # type: ignore\nc = 3  # noqa: E501\n# alone\n") == 2
