"""A measured result with all that is needed to judge it: hardware, versions, commit, configuration.

Where a result says it was measured is checked later, by `benchmarks/provenance.py`: the commit is in the
history, the tree had no changes, and the files that ran are those of the commit.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from millstream import __version__
from millstream.commands.machine import hardware, machine_line
from millstream.core.files import write_whole
from millstream.core.seal import sealed

ROOT = Path(__file__).parents[2]
COMMIT_VARIABLE = "MILLSTREAM_COMMIT"
"""Names the commit where git cannot: a copy of the tree without its history, as it is carried to another
machine."""
RESULTS = "benchmarks/results"
"""Left out when a tree is asked for changes: the results that a series of benchmarks writes one after the
other."""
SOURCE_FOLDERS = ("millstream", "course", "benchmarks", "tests")
SOURCE_SUFFIXES = (".py", ".toml", ".cu", ".safetensors", ".js", ".css", ".html")


class Commit(NamedTuple):
    """The commit that a result is of, and how it is known."""

    name: str
    """With a plus sign where the tree has changes that are not in it."""
    known: Literal["seen", "given", "unknown"]
    """Asked of git here, given by the environment, or neither."""


def describe(name: str, configuration: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    return {
        "benchmark": name,
        **header(),
        "configuration": configuration,
        "measured": measured,
    }


def header() -> dict[str, Any]:
    """When, from which code, on which machine and with which versions something was measured."""
    return {
        **origin(),
        "hardware": hardware(),
        "versions": {
            "millstream": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
    }


def origin() -> dict[str, Any]:
    """When and from which code something was measured."""
    commit = current_commit()
    found = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit.name,
        "commit_known": commit.known,
    }
    return found if commit.known == "unknown" else found | {"source": source_digest(source_files(ROOT))}


def row_origin() -> dict[str, Any]:
    """Return `origin` and the machine, for a row that is kept when others are measured again elsewhere."""
    return origin() | {"machine": machine_line()}


def write_result(path: Path, report: dict[str, Any]) -> None:
    """Write a result with the digest of its content: one that was edited by hand can be told."""
    write_whole(path, json.dumps(sealed(report), indent=2) + "\n")


def make_folder(out: Path | None) -> None:
    """Where a result will be written, before hours are spent on it."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)


def tell(report: dict[str, Any], *, as_json: bool, out: Path | None, show: Callable[[], None]) -> None:
    """Print it, for programs or as `show` does for people, and write it down if so asked."""
    if as_json:
        print(json.dumps(sealed(report), indent=2))
    else:
        show()
    if out is not None:
        write_result(out, report)


def current_commit() -> Commit:
    """Ask git for the commit of this tree; where it cannot tell, take the one that the environment gives.

    Files that git does not know count as changes unless it ignores them: Python imports them like any other.
    """
    if (ROOT / ".git").exists():
        try:
            name = _git("rev-parse", "--short", "HEAD")
            changes = _git(
                "status", "--porcelain", "--untracked-files=all", "--", ".", f":(exclude){RESULTS}"
            )
            return Commit(f"{name}+" if changes else name, "seen")
        except (OSError, subprocess.CalledProcessError):
            pass
    given = os.environ.get(COMMIT_VARIABLE, "")
    return Commit(given, "given") if given else Commit("unknown", "unknown")


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", "--no-optional-locks", *words], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout.strip()


def is_source(path: str) -> bool:
    """Return whether a path in the repository is code or weights that a measurement may run."""
    folder, _, _ = path.partition("/")
    return folder in SOURCE_FOLDERS and path.endswith(SOURCE_SUFFIXES)


def source_files(root: Path) -> dict[str, str]:
    """Paths of all code that is here, each with the hash that git gives to its content."""
    found = {}
    for folder in SOURCE_FOLDERS:
        for path in (root / folder).rglob("*"):
            name = path.relative_to(root).as_posix()
            if is_source(name) and path.is_file():
                found[name] = blob_hash(path.read_bytes())
    return found


def blob_hash(content: bytes) -> str:
    """Hash that git gives to a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def source_digest(files: dict[str, str]) -> str:
    """Digest of code by its paths and hashes: the same from the files that ran and from a commit's tree."""
    lines = (f"{blob} {path}" for path, blob in sorted(files.items()))
    return f"sha256:{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()}"


def spelled(request: Any) -> dict[str, Any]:
    """A request for a report: the engine's fields beside its own."""
    fields = asdict(request)
    engine: dict[str, Any] = fields.pop("engine")
    return engine | fields
