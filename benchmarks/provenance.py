"""Results that cannot be checked: of no known commit, of a changed tree, of an unnamed machine, or edited by
hand.

    python -m benchmarks.provenance            # every result that fails, and why; exits 1 if any does
    python -m benchmarks.provenance brook fleet    # these alone

Every file in `results/` is held to the same rules, and so is every row in it that names a commit of its own:

- its commit is in the history of HEAD and is not younger than the measurement; the tree had no changes;
- the code that ran, told by its digest, is the commit's;
- the machine and the versions are named;
- nothing under `measured` is called published: figures of others are measured by a program here, or stand
  elsewhere;
- the content is what the program wrote: its digest says so. A file from before there were digests must be as
  it was in the last commit without them. No committed version of a file has the date of its present one and
  another content, and no row lost the mark of a changed tree.

An edit by hand is found, a forgery is not: a program can be made to write anything.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS
from millstream.commands.report import ROOT, blob_hash, is_source, source_digest
from millstream.core.seal import FIELD, is_as_sealed

BEFORE_DIGESTS = "b9095d4e8459c72d91cd47836089be1754497a18"
"""The last commit whose programs wrote results without a digest."""
ARCHITECTURES = ("", "aarch64", "arm64", "arm", "x86_64", "amd64", "i386", "i686")
"""Values of `cpu` that name only an architecture, or nothing: no processor model."""
VERSIONS = ("millstream", "torch", "python")

Record = dict[str, Any]


class NoHistory(Exception):
    """Nothing can be checked here."""


@dataclass(frozen=True, kw_only=True)
class History:
    """Git history of the results and of the commits they name."""

    root: Path
    commits: dict[str, datetime]
    """Every ancestor of HEAD, with when it was committed."""
    earlier: dict[str, list[tuple[str, Record]]]
    """Each committed version of a result with the commit that brought it, by its path."""
    before_digests: dict[str, str]
    """Blobs of the results in the last commit without digests, by path."""
    _sources: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path = ROOT, results: Path = RESULTS, before: str = BEFORE_DIGESTS) -> History:
        if not (root / ".git").exists():
            raise NoHistory(f"{root} has no git history; run this in a clone")
        if _git(root, "rev-parse", "--is-shallow-repository") == "true":
            raise NoHistory("this clone is shallow; run git fetch --unshallow")
        folder = results.relative_to(root).as_posix()
        lines = (line.split() for line in _git(root, "log", "--format=%H %cI").splitlines())
        return cls(
            root=root,
            commits={name: datetime.fromisoformat(date) for name, date in lines},
            earlier=_versions(root, folder),
            before_digests=_tree(root, before, folder),
        )

    def find(self, name: str) -> str | None:
        """The full name of an ancestor of HEAD that is abbreviated."""
        return next((full for full in self.commits if len(name) >= 7 and full.startswith(name)), None)

    def source_of(self, commit: str) -> str:
        """Digest of a commit's code, as a result has that of the code that ran."""
        if commit not in self._sources:
            files = {path: blob for path, blob in _tree(self.root, commit).items() if is_source(path)}
            self._sources[commit] = source_digest(files)
        return self._sources[commit]


def _git(root: Path, *words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()


def _tree(root: Path, commit: str, *folders: str) -> dict[str, str]:
    """Blobs of a commit by their paths; empty where there is no such commit."""
    try:
        lines = _git(root, "ls-tree", "-r", "--full-tree", commit, "--", *folders).splitlines()
    except subprocess.CalledProcessError:
        return {}
    split = (line.partition("\t") for line in lines)
    return {path: about.split()[2] for about, _, path in split}


def _versions(root: Path, folder: str) -> dict[str, list[tuple[str, Record]]]:
    named = list[tuple[str, str, str]]()
    commit = ""
    for line in _git(
        root, "log", "--format=%H", "--raw", "--no-renames", "--no-abbrev", "--", folder
    ).splitlines():
        if line.startswith(":"):
            about, _, path = line.partition("\t")
            _, _, _, blob, kind = about.split()
            if kind != "D":
                named.append((path, commit, blob))
        elif line:
            commit = line[:8]
    contents = _contents(root, {blob for _, _, blob in named})
    found: dict[str, list[tuple[str, Record]]] = {}
    for path, commit, blob in named:
        try:
            record = json.loads(contents[blob])
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict):
            found.setdefault(path, []).append((commit, record))
    return found


def _contents(root: Path, blobs: Iterable[str]) -> dict[str, bytes]:
    """Read the contents of many blobs with one call of git."""
    told = "".join(f"{blob}\n" for blob in blobs).encode()
    said = subprocess.run(
        ["git", "cat-file", "--batch"], cwd=root, check=True, capture_output=True, input=told
    ).stdout
    found = {}
    at = 0
    while at < len(said):
        end = said.index(b"\n", at)
        blob, _, size = said[at:end].decode().split()
        found[blob] = said[end + 1 : end + 1 + int(size)]
        at = end + int(size) + 2
    return found


def faults(path: Path, history: History) -> list[str]:
    """Everything that keeps a result from being checked; empty for a good one."""
    try:
        record = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        return [f"cannot be read: {error}"]
    if not isinstance(record, dict):
        return ["is no result"]
    name = path.relative_to(history.root).as_posix()
    return [
        *_seal_faults(record, name, path, history),
        *_header_faults(record, history),
        *_row_faults(record, history),
        *_typed_in(record),
        *_edits(record, name, history),
    ]


def _header(record: Record) -> Record:
    """Date, commit, machine and versions: a profile has them in a part of their own."""
    header: Record = record.get("measured_on", record)
    return header


def _seal_faults(record: Record, name: str, path: Path, history: History) -> Iterator[str]:
    if FIELD in record:
        if not is_as_sealed(record):
            yield "edited by hand: its digest is of other content; measure it again"
    elif history.before_digests.get(name) != blob_hash(path.read_bytes()):
        yield "has no digest, and is not as it was before results had one; measure it again"


def _header_faults(record: Record, history: History) -> Iterator[str]:
    header = _header(record)
    is_sealed = FIELD in record
    yield from _origin_faults(header, header.get("date", ""), history, is_sealed=is_sealed)
    machine = header.get("hardware") or {}
    cpu = machine.get("cpu", "")
    if not cpu or (is_sealed and cpu in ARCHITECTURES and not machine.get("cpu_model")):
        yield f"its processor has no name ({cpu!r})"
    if is_sealed and not {"cpu_model", "cpu_flags"} <= machine.keys():
        yield "the model and instructions of its processor are not told"
    if _asked_device(record).startswith("cuda") and not machine.get("gpu"):
        yield "its GPU has no name"
    for package in VERSIONS:
        if not (header.get("versions") or {}).get(package):
            yield f"the version of {package} is not told"


def _asked_device(record: Record) -> str:
    configuration = record.get("configuration")
    return str(configuration.get("device") or "") if isinstance(configuration, dict) else ""


def _row_faults(record: Record, history: History) -> Iterator[str]:
    """Faults of rows with a commit of their own; alike ones are told once, with how many they are."""
    counted: dict[str, int] = {}
    for row in rows(record):
        date = row.get("date") or _header(record).get("date", "")
        is_sealed = FIELD in record
        found = list(_origin_faults(row, date, history, is_sealed=is_sealed))
        if is_sealed and not (row.get("date") and row.get("machine")):
            found.append(f"of commit {row['commit']} without a date and machine of its own")
        for fault in found:
            counted[fault] = counted.get(fault, 0) + 1
    yield from (f"{times} rows: {fault}" for fault, times in counted.items())


def rows(record: Record) -> Iterator[Record]:
    """Everything in what was measured that names a commit of its own."""
    yield from _with_commit(record.get("measured"))


def _with_commit(value: Any) -> Iterator[Record]:
    if isinstance(value, dict):
        if isinstance(value.get("commit"), str):
            yield value
        for each in value.values():
            yield from _with_commit(each)
    elif isinstance(value, list):
        for each in value:
            yield from _with_commit(each)


def _origin_faults(origin: Record, date: str, history: History, *, is_sealed: bool) -> Iterator[str]:
    commit = str(origin.get("commit") or "")
    name = commit.removesuffix("+")
    if not name:
        yield "names no commit"
        return
    if name != commit:
        yield f"measured on a tree with changes ({commit})"
    full = history.find(name)
    if full is None:
        yield f"commit {name} is not in the history of HEAD"
        return
    try:
        late = (history.commits[full] - datetime.fromisoformat(date)).total_seconds()
    except (ValueError, TypeError):
        yield f"has no date with a time zone ({date!r})"
    else:
        if late > 0:
            yield f"commit {name} was made {late / 60:.1f} minutes after the measurement"
    source = origin.get("source")
    if source and source != history.source_of(full):
        yield f"the code that ran is not that of commit {name}"
    elif is_sealed and not source:
        yield "the code that ran is not told"


def _typed_in(record: Record) -> Iterator[str]:
    measured = record.get("measured")
    if isinstance(measured, dict) and "published" in measured:
        yield "has published figures among those that were measured"


def _edits(record: Record, name: str, history: History) -> Iterator[str]:
    """Yield edits by hand that a file's history shows: figures or marks changed without measuring."""
    date = _header(record).get("date")
    unmarked: set[str] = set()
    for commit, earlier in history.earlier.get(name, []):
        if date and _header(earlier).get("date") == date and earlier != record:
            yield f"edited by hand: of the same date and other content than in {commit}"
        unmarked |= {_figures(row, without="+") for row in rows(earlier) if row["commit"].endswith("+")}
    lost = sum(_figures(row) in unmarked for row in rows(record))
    if lost:
        yield f"edited by hand: {lost} rows lost the mark of a changed tree"


def _figures(row: Record, without: str = "") -> str:
    """A row in one string to compare, its commit less a mark."""
    return json.dumps(row | {"commit": row["commit"].removesuffix(without)}, sort_keys=True)


def failing(paths: Iterable[Path], history: History) -> dict[str, list[str]]:
    """Faults of results by their names, of those that have any."""
    found = {path.stem: faults(path, history) for path in paths}
    return {name: each for name, each in found.items() if each}


def result_files(folder: Path = RESULTS) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="results to check instead of all")
    names = parser.parse_args().names
    files = [path for path in result_files() if not names or path.stem in names]
    try:
        found = failing(files, History.read())
    except NoHistory as reason:
        sys.exit(f"cannot check: {reason}")
    for name, each in found.items():
        print(f"{name}: {'; '.join(each)}")
    print(f"{len(found)} of {len(files)} results fail")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
