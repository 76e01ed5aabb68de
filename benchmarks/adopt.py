"""Takes in results that were measured on a copy of the tree whose git was not at the commit that ran.

    python -m benchmarks.adopt FOLDER            # every result in FOLDER that differs from the one here
    python -m benchmarks.adopt FOLDER brook shares

A copy that is carried to another machine may have an older HEAD and every newer file as a change: its results
then name a commit with a plus sign. They also hold the digest of the code that ran. Where that is the digest
of a commit in this history which is older than the measurement, the result is of that commit; what the copy's
git said stays beside it, as `commit_seen`. Anything else is refused. Results that were given their commit
(`MILLSTREAM_COMMIT`) are taken as they are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.provenance import History, faults, rows
from benchmarks.report import RESULTS
from millstream.commands.report import write_result
from millstream.core.seal import FIELD, is_as_sealed

DAYS = 2
"""How far back in the history a commit is looked for."""

Record = dict[str, Any]


class NotAdopted(Exception):
    """A result that cannot be tied to a commit."""


def adopt(record: Record, history: History) -> Record:
    """The result with each commit that its code's digest tells. Raises `NotAdopted`."""
    if not is_as_sealed(record):
        raise NotAdopted("its digest is of other content")
    adopted: Record = json.loads(json.dumps({name: value for name, value in record.items() if name != FIELD}))
    for origin in [adopted.get("measured_on", adopted), *rows(adopted)]:
        if str(origin.get("commit", "")).endswith("+") and origin.get("source"):
            found = matching_commit(str(origin["source"]), str(origin.get("date", "")), history)
            origin["commit_seen"] = origin["commit"]
            origin["commit"] = found
            origin["commit_known"] = "matched"
    return adopted


def matching_commit(source: str, date: str, history: History) -> str:
    """The newest commit of this code that was made before `date`."""
    for commit in _recent(history, datetime.fromisoformat(date)):
        if history.source_of(commit) == source:
            return commit[:8]
    raise NotAdopted(f"no commit of the {DAYS} days before {date} has the code that ran")


def _recent(history: History, measured: datetime) -> Iterator[str]:
    for commit, committed in history.commits.items():
        if 0 <= (measured - committed).total_seconds() <= DAYS * 24 * 3600:
            yield commit


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="results to take in instead of all that differ")
    options = parser.parse_args()
    history = History.read()
    failed = 0
    for path in sorted(options.folder.glob("*.json")):
        here = RESULTS / path.name
        if options.names and path.stem not in options.names:
            continue
        if here.exists() and here.read_bytes() == path.read_bytes():
            continue
        try:
            write_result(here, adopt(json.loads(path.read_text()), history))
        except NotAdopted as reason:
            failed += 1
            print(f"{path.stem}: not taken in: {reason}")
            continue
        wrong = faults(here, history)
        print(f"{path.stem}: {'; '.join(wrong) or 'taken in'}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
