"""The list of mutants does not rot, and who survives is told."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.mutants import MUTANTS, Mutant
from tests.run_mutants import ROOT, DoesNotApply, mutated, run_all

ALL = [mutant for mutants in MUTANTS.values() for mutant in mutants]


@cache
def source(file: str) -> str:
    return (ROOT / file).read_text()


@cache
def functions_in(file: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(source(file))) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_every_mutant_changes_code_that_is_there_and_names_a_test_that_is(mutant: Mutant) -> None:
    changed = mutated(source(mutant.file), mutant)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source(mutant.file))), "it changes no code"
    assert mutant.test.partition("[")[0] in functions_in(mutant.test_file)


def test_no_two_mutants_have_one_name() -> None:
    assert [name for name, count in Counter(mutant.name for mutant in ALL).items() if count > 1] == []


def test_a_snippet_that_is_not_there_exactly_once_does_not_apply() -> None:
    mutant = Mutant("a mutant", "sums.py", "a + b", "a - b", "test_sums.py", "test_it_adds")
    assert mutated("a + b", mutant) == "a - b"
    for text, count in (("a * b", 0), ("a + b + a + b", 2)):
        with pytest.raises(DoesNotApply, match=f"occurs {count} times in sums.py"):
            mutated(text, mutant)


def repository(folder: Path) -> Path:
    """A sum, a test of it, and a branch that no test goes through."""
    (folder / "sums.py").write_text("def add(a, b):\n    if a is None:\n        return b\n    return a + b\n")
    test = "import sums\n\n\ndef test_it_adds():\n    assert sums.add(1, 2) == 3\n"
    (folder / "test_sums.py").write_text(test)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    return folder


@pytest.mark.slow
def test_each_verdict_is_told_and_the_checkout_is_as_it_was(tmp_path: Path) -> None:
    root = repository(tmp_path)
    test = ("test_sums.py", "test_it_adds")
    before = {path.name: path.read_bytes() for path in root.glob("*.py")}
    mutants = [
        Mutant("wrong", "sums.py", "a + b", "a - b", *test),
        Mutant("unseen", "sums.py", "return b\n", "return a\n", *test),
        Mutant("gone", "sums.py", "a * b", "a + b", *test),
        Mutant("broken", "sums.py", "def add", "def (add", *test),
    ]
    caught, survived, gone, broken = run_all(mutants, root)
    assert (caught.verdict, caught.is_caught) == ("caught", True)
    assert (survived.verdict, survived.is_caught) == ("survived", False)
    assert gone.verdict == "does not apply: the snippet occurs 0 times in sums.py"
    assert broken.verdict.startswith("no test ran (pytest ended with ")
    assert not gone.is_caught
    assert not broken.is_caught
    assert {path.name: path.read_bytes() for path in root.glob("*.py")} == before


@pytest.mark.slow
def test_nothing_is_tried_while_a_named_test_fails_by_itself(tmp_path: Path) -> None:
    root = repository(tmp_path)
    (root / "sums.py").write_text("def add(a, b):\n    return 0\n")
    with pytest.raises(SystemExit, match="these tests fail without any mutant: mend them first"):
        run_all([Mutant("wrong", "sums.py", "return 0", "return 1", "test_sums.py", "test_it_adds")], root)
