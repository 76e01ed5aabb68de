"""Results are of commits, trees and machines that can be named, and are as programs wrote them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import provenance
from benchmarks.provenance import History, NoHistory, failing, faults, result_files
from millstream.commands.report import source_digest, source_files, write_result

pytestmark = pytest.mark.slow  # git is asked

OWED = {
    "abuse-beside",
    "abuse-mutations",
    "abuse-soak",
    "brook",
    "endurance",
    "fleet",
    "fleet-doors",
    "forks-wan-tiny",
    "forks-wan2.1-t2v-1.3b",
    "inputs",
    "keep_kills",
    "look",
    "look_ahead",
    "rank_kills",
    "self_forcing",
    "served-brook-gpu",
    "shares",
    "train_equality",
    "train_kills",
    "train_memory",
    "train_step",
    "tune_behind",
}
"""Results that are still to be measured again: each goes from here when it is, and none comes in."""
FOLDED = {
    "compare-14b-320x576",
    "profile-h200",
    "quality-1.3b-fp8",
    "served-1.3b-480x832-bf16",
    "served-1.3b-480x832-fp8",
    "served-14b-320x576-fp8",
    "sessions-2-together",
    "stream-1.3b-480x832-w9-fp8",
    "stream-1.3b-480x832-w9-on",
    "stream-1.3b-480x832-w9-own-convolution",
    "stream-14b-320x576-w6-fp8",
    "stream-14b-320x576-w6-on",
    "stream-14b-480x832-w6-fp8",
    "stream-14b-480x832-w6-fp8-low-attention",
    "stream-14b-480x832-w6-on",
    "weight_sync-brook",
    "file_kills",
    "outputs",
    "overlap",
    "pipeline_timelines",
    "spans",
}
"""Results of commits that were folded into 9af4371a: as their programs wrote them, but the code that ran cannot be
looked up any more. To be measured again as well; none comes in."""
MADE = "2026-01-01T10:00:00+00:00"
MEASURED = "2026-01-01T11:00:00+00:00"
MACHINE = {"cpu": "A processor", "cpu_model": "family 6", "cpu_flags": ["avx2"], "cores": 2, "threads": 2}
VERSIONS = {"millstream": "0.1.0", "torch": "2", "python": "3"}

Change = Callable[[dict[str, Any]], object]


class Repository:
    """A history with code, and results that are measured on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.results = root / "benchmarks" / "results"
        self.results.mkdir(parents=True)
        self.git("init", "--quiet")
        (root / "benchmarks/run.py").write_text("print(1)")
        self.first = self.commit("code")

    def git(self, *words: str, date: str = MADE) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        done = subprocess.run(
            ["git", *identity, *words],
            cwd=self.root,
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | dates,
        )
        return done.stdout.strip()

    def commit(self, subject: str, date: str = MADE) -> str:
        self.git("add", "--all", ".")
        self.git("commit", "--quiet", "--allow-empty", "-m", subject, date=date)
        return self.git("rev-parse", "--short", "HEAD")

    def record(self, **changed: Any) -> dict[str, Any]:
        source = source_digest(source_files(self.root))
        about = {"date": MEASURED, "commit": self.first, "commit_known": "seen", "source": source}
        return {
            **about,
            "hardware": MACHINE,
            "versions": VERSIONS,
            "configuration": {},
            "measured": {"ms": 1.0},
        } | changed

    def row(self, **changed: Any) -> dict[str, Any]:
        record = self.record()
        return (
            {"ms": 1.0, "machine": "A processor"}
            | {key: record[key] for key in ("date", "commit", "source")}
            | changed
        )

    def write(self, **changed: Any) -> Path:
        path = self.results / "one.json"
        write_result(path, self.record(**changed))
        return path

    def edit(self, path: Path, change: Change) -> None:
        record = json.loads(path.read_text())
        change(record)
        path.write_text(json.dumps(record))

    def faults(self, path: Path, before: str = "HEAD") -> str:
        return "; ".join(faults(path, History.read(self.root, self.results, before)))


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_no_committed_result_fails_but_those_that_are_to_be_measured_again() -> None:
    try:
        found = failing(result_files(), History.read())
    except (NoHistory, OSError) as reason:
        pytest.skip(f"results cannot be checked here: {reason}")
    told = "\n".join(
        f"{name}: {'; '.join(each)}" for name, each in found.items() if name not in OWED | FOLDED
    )
    assert not told, told
    assert found.keys() >= OWED | FOLDED, "measured again or taken out: take these from OWED or FOLDED"


def test_a_result_as_its_program_wrote_it_passes(repository: Repository) -> None:
    assert not repository.faults(repository.write(measured={"rows": [repository.row()]}))


def test_a_commit_that_is_not_in_the_history_of_head_fails(repository: Repository) -> None:
    assert "commit 0123456789 is not in the history" in repository.faults(
        repository.write(commit="0123456789")
    )
    repository.git("checkout", "--quiet", "--orphan", "beside")
    beside = repository.commit("beside")
    repository.git("checkout", "--quiet", "--detach", repository.first)
    assert f"commit {beside} is not in the history" in repository.faults(repository.write(commit=beside))
    assert "commit unknown is not in the history" in repository.faults(repository.write(commit="unknown"))


def test_a_tree_with_changes_fails(repository: Repository) -> None:
    assert "a tree with changes" in repository.faults(repository.write(commit=f"{repository.first}+"))


def test_a_commit_that_is_younger_than_the_measurement_fails(repository: Repository) -> None:
    later = repository.commit("later", date="2026-01-01T13:00:00+02:00")
    assert not repository.faults(repository.write(commit=later)), "11:00 in another time zone"
    later = repository.commit("later", date="2026-01-01T11:30:00+00:00")
    assert "made 30.0 minutes after the measurement" in repository.faults(repository.write(commit=later))


def test_a_result_without_a_date_fails(repository: Repository) -> None:
    assert "has no date" in repository.faults(repository.write(date="2026-01-01T11:00:00"))


def test_code_that_is_not_that_of_the_commit_fails_even_without_a_mark(repository: Repository) -> None:
    (repository.root / "benchmarks/run.py").write_text("print(2)")
    assert "the code that ran is not that of commit" in repository.faults(repository.write())


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"hardware": MACHINE | {"cpu": ""}}, "its processor has no name"),
        ({"hardware": MACHINE | {"cpu": "aarch64", "cpu_model": ""}}, "its processor has no name"),
        ({"hardware": {"cpu": "Intel(R) Xeon(R) Processor"}}, "the model and instructions"),
        ({"hardware": MACHINE, "configuration": {"device": "cuda"}}, "its GPU has no name"),
        ({"versions": {"torch": "2", "python": "3"}}, "the version of millstream"),
        ({"source": ""}, "the code that ran is not told"),
    ],
)
def test_a_machine_without_a_name_and_a_missing_version_fail(
    repository: Repository, changed: dict[str, Any], fault: str
) -> None:
    assert fault in repository.faults(repository.write(**changed))


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"commit": "0123456789"}, "not in the history"),
        ({"date": ""}, "without a date and machine"),
        ({"machine": ""}, "without a date and machine"),
        ({"source": "sha256:0"}, "the code that ran is not that of"),
    ],
)
def test_a_row_with_a_commit_of_its_own_is_held_to_the_same_rules(
    repository: Repository, changed: dict[str, Any], fault: str
) -> None:
    path = repository.write(measured={"rows": {"good": repository.row(), "bad": repository.row(**changed)}})
    assert "1 rows: " in repository.faults(path)
    assert fault in repository.faults(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(commit=record["commit"].removesuffix("+")),
        lambda record: record["measured"].update(ms=0.9),
        lambda record: record["hardware"].update(cpu="Another"),
        lambda record: record.update(note="a line"),
    ],
)
def test_a_result_that_was_edited_by_hand_fails(repository: Repository, change: Change) -> None:
    path = repository.write(commit=f"{repository.first}+")
    repository.edit(path, change)
    assert "edited by hand: its digest is of other content" in repository.faults(path)


def test_taking_the_digest_out_as_well_does_not_help(repository: Repository) -> None:
    path = repository.write()
    repository.edit(path, lambda record: record.pop("digest"))
    assert "has no digest, and is not as it was" in repository.faults(path)


def test_a_result_from_before_digests_passes_as_it_was_then_and_not_otherwise(repository: Repository) -> None:
    path = repository.write()
    repository.edit(path, lambda record: record.pop("digest"))
    before = repository.commit("results", date="2026-01-01T12:00:00+00:00")
    assert not repository.faults(path, before)
    repository.edit(path, lambda record: record.update(date="2026-01-01T11:30:00+00:00"))
    assert "has no digest, and is not as it was" in repository.faults(path, before)


def test_a_result_that_is_sealed_again_after_an_edit_is_found_by_its_history(repository: Repository) -> None:
    repository.write(measured={"ms": 1.0})
    commit = repository.commit("results", date="2026-01-01T12:00:00+00:00")
    path = repository.write(measured={"ms": 0.5})
    assert "of the same date and other content than in " + commit[:7] in repository.faults(path)
    path = repository.write(measured={"ms": 0.5}, date="2026-01-01T12:30:00+00:00")
    assert not repository.faults(path), "measured again"


def test_a_row_that_lost_the_mark_of_a_changed_tree_is_found_by_its_history(repository: Repository) -> None:
    row = repository.row()
    repository.write(measured={"rows": [row | {"commit": f"{row['commit']}+"}]})
    repository.commit("results", date="2026-01-01T12:00:00+00:00")
    path = repository.write(
        measured={"rows": [row, repository.row(ms=2.0)]}, date="2026-01-01T12:30:00+00:00"
    )
    assert "1 rows lost the mark of a changed tree" in repository.faults(path)


def test_published_figures_among_measured_ones_fail(repository: Repository) -> None:
    path = repository.write(measured={"cases": {}, "published": {"seconds": 1.72}})
    assert "published figures among those that were measured" in repository.faults(path)


def test_a_file_that_is_no_result_fails(repository: Repository) -> None:
    (repository.results / "two.json").write_text("[]")
    (repository.results / "three.txt").write_text("1.72 s")
    found = failing(
        result_files(repository.results), History.read(repository.root, repository.results, "HEAD")
    )
    assert found.keys() == {"two", "three"}


def test_nothing_is_said_of_results_without_their_history(repository: Repository, tmp_path: Path) -> None:
    shallow = tmp_path / "shallow"
    repository.commit("another")
    repository.git("clone", "--quiet", "--depth", "1", f"file://{repository.root}", str(shallow))
    with pytest.raises(NoHistory, match="unshallow"):
        History.read(shallow, shallow / "benchmarks/results")
    with pytest.raises(NoHistory, match="no git history"):
        History.read(tmp_path / "nowhere", tmp_path / "nowhere")


def test_the_command_names_each_result_that_fails_and_exits_with_1(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = repository.write(commit="0123456789")
    history = History.read(repository.root, repository.results, "HEAD")
    monkeypatch.setattr(provenance.History, "read", lambda: history)
    monkeypatch.setattr(provenance, "result_files", lambda: [path])
    monkeypatch.setattr("sys.argv", ["provenance"])
    with pytest.raises(SystemExit, match="1"):
        provenance.main()
    assert capsys.readouterr().out.startswith("one: commit 0123456789 is not in the history")
    repository.write()
    with pytest.raises(SystemExit, match="0"):
        provenance.main()
