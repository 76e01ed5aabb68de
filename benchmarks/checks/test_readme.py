"""The list of benchmarks names every program, every result and pages that quote them."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

FOLDER = Path(__file__).parents[1]
README = (FOLDER / "README.md").read_text()
NAMES = set(re.findall(r"`([^`]+)`", README))


def test_every_program_is_listed_and_every_listed_one_is_there() -> None:
    programs = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert programs - NAMES == set()
    table = re.findall(r"^\| ([^|]+) \|", README, re.MULTILINE)[1:]
    listed = {name for cell in table for name in re.findall(r"`([^`]+)`", cell)}
    assert [name for name in listed if not (FOLDER / f"{name.replace('.', '/')}.py").exists()] == []


def test_every_result_is_listed() -> None:
    patterns = [name for name in NAMES if name.endswith(".json")]
    results = [path.name for path in (FOLDER / "results").iterdir()]
    assert [name for name in results if not any(fnmatch(name, pattern) for pattern in patterns)] == []


def test_a_page_that_is_said_to_quote_a_benchmark_names_it() -> None:
    rows = re.findall(r"^\| (`[^|]+) \| [^|]+ \| ([^|]+) \| ([^|]+) \|$", README, re.MULTILINE)
    assert len(rows) > 30
    for commands, results, pages in rows:
        names = [f"benchmarks.{name}" for name in re.findall(r"`([^`]+)`", commands)]
        names += [
            result.partition("*")[0].removesuffix(".json") for result in re.findall(r"`([^`]+)`", results)
        ]
        for page in re.findall(r"\]\(([^)]+)\)", pages):
            text = (FOLDER / page).read_text()
            assert any(name in text for name in names), f"{page} names none of {names}"
