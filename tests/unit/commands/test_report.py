"""Origin of a result: the commit it names, and whether the code that ran is that commit's."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from millstream.commands import report
from millstream.commands.report import (
    Commit,
    current_commit,
    describe,
    header,
    row_origin,
    source_digest,
    source_files,
)
from millstream.core.seal import is_as_sealed

pytestmark = pytest.mark.slow  # git is asked


def git(root: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *words], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one commit that the report takes for its own."""
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.delenv("MILLSTREAM_COMMIT", raising=False)
    for name, text in (
        ("millstream/model.py", "print(1)"),
        ("docs/page.md", "a page"),
        ("benchmarks/results/one.json", "{}"),
        (".gitignore", "out/\n__pycache__/\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    return tmp_path


def test_a_tree_as_committed_has_no_mark(tree: Path) -> None:
    assert current_commit() == Commit(git(tree, "rev-parse", "--short", "HEAD"), "seen")


@pytest.mark.parametrize("changed", ["millstream/model.py", "docs/page.md", "millstream/not_added.py"])
def test_a_tree_with_changes_is_marked_as_is_one_with_files_that_git_does_not_know(
    tree: Path, changed: str
) -> None:
    (tree / changed).write_text("another")
    assert current_commit().name.endswith("+")


def test_a_change_that_is_staged_is_a_change(tree: Path) -> None:
    (tree / "millstream/model.py").write_text("another")
    git(tree, "add", ".")
    assert current_commit().name.endswith("+")


@pytest.mark.parametrize(
    "changed", ["out/log.txt", "benchmarks/results/one.json", "benchmarks/results/two.json"]
)
def test_results_of_the_same_series_and_ignored_files_are_no_changes(tree: Path, changed: str) -> None:
    (tree / changed).parent.mkdir(exist_ok=True)
    (tree / changed).write_text("another")
    assert not current_commit().name.endswith("+")


def test_the_environment_names_the_commit_only_where_git_cannot(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_COMMIT", "abcdef0123")
    assert current_commit().known == "seen"
    (tree / ".git").rename(tree / "not_git")
    assert current_commit() == Commit("abcdef0123", "given")
    assert header()["commit_known"] == "given"
    monkeypatch.delenv("MILLSTREAM_COMMIT")
    assert current_commit() == Commit("unknown", "unknown")
    assert "source" not in header()


def test_a_folder_whose_git_points_nowhere_takes_the_commit_that_is_given(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / ".git").rename(tree / "not_git")
    (tree / ".git").write_text("gitdir: /nowhere\n")
    monkeypatch.setenv("MILLSTREAM_COMMIT", "abcdef0123")
    assert current_commit() == Commit("abcdef0123", "given")


def test_the_code_that_ran_has_the_digest_of_what_git_holds_of_it(tree: Path) -> None:
    (tree / "millstream/__pycache__").mkdir()
    (tree / "millstream/__pycache__/model.pyc").write_text("compiled")
    committed = {"millstream/model.py": git(tree, "rev-parse", "HEAD:millstream/model.py")}
    assert source_files(tree) == committed
    before = header()["source"]
    assert before == source_digest(committed)
    (tree / "docs/page.md").write_text("another")
    assert header()["source"] == before
    (tree / "millstream/model.py").write_text("print(2)")
    assert header()["source"] != before


def test_a_result_is_written_with_the_digest_of_its_content(tree: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    report.write_result(path, describe("one", {"sizes": (1, 2)}, {"ms": 1.5}))
    record = json.loads(path.read_text())
    assert is_as_sealed(record)
    assert record["measured"] == {"ms": 1.5}
    assert set(row_origin()) == {"date", "commit", "commit_known", "source", "machine"}
