"""A result of a carried copy is tied to the commit whose code ran, or refused."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from benchmarks.adopt import NotAdopted, adopt
from benchmarks.provenance import History
from millstream.core.seal import sealed

NOW = datetime(2026, 1, 2, 12, tzinfo=timezone.utc)
OLDER = "a" * 40
NEWER = "b" * 40


class Known(History):
    """Two commits of known code, one before the measurement and one after it."""

    def source_of(self, commit: str) -> str:
        return {OLDER: "code of older", NEWER: "code of newer"}[commit]


@pytest.fixture
def history(tmp_path: Path) -> History:
    commits = {NEWER: NOW + timedelta(hours=1), OLDER: NOW - timedelta(hours=1)}
    return Known(root=tmp_path, commits=commits, earlier={}, before_digests={})


def result(source: str, **changes: object) -> dict[str, object]:
    origin = {"date": NOW.isoformat(), "commit": "0123456+", "commit_known": "seen", "source": source}
    return sealed({**origin, "measured": {"rows": [{**origin, "fps": 1}]}, **changes})


def test_a_result_is_of_the_commit_whose_code_ran_and_says_what_git_said(history: History) -> None:
    found = adopt(result("code of older"), history)
    for origin in (found, found["measured"]["rows"][0]):
        assert (origin["commit"], origin["commit_seen"], origin["commit_known"]) == (
            OLDER[:8],
            "0123456+",
            "matched",
        )
    assert found["measured"]["rows"][0]["fps"] == 1


@pytest.mark.parametrize("source", ["code of newer", "code of none"])
def test_code_of_no_commit_before_the_measurement_is_refused(history: History, source: str) -> None:
    with pytest.raises(NotAdopted, match="has the code that ran"):
        adopt(result(source), history)


def test_a_result_that_was_edited_is_refused(history: History) -> None:
    with pytest.raises(NotAdopted, match="other content"):
        adopt(result("code of older") | {"date": "2026-01-01T00:00:00+00:00"}, history)


def test_a_commit_that_was_given_stays(history: History) -> None:
    given = result("code of older", commit="abcdef0", commit_known="given")
    given["measured"] = {}
    assert adopt(sealed(given), history)["commit"] == "abcdef0"
