"""What `make quick` leaves out before it looks: files in which every test is slow, and no others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import pytest_ignore_collect


@pytest.mark.parametrize(
    ("text", "markers", "ignored"),
    [
        ("pytestmark = pytest.mark.slow  # it trains\n", "not slow", True),
        ("import pytest\n\npytestmark = pytest.mark.slow\n", "not slow", True),
        ("pytestmark = pytest.mark.slow\n", "not course", None),
        ("pytestmark = pytest.mark.slower\n", "not slow", None),
        (
            "@pytest.mark.slow\ndef test_one() -> None: ...\n\ndef test_other() -> None: ...\n",
            "not slow",
            None,
        ),
    ],
)
def test_a_file_is_left_out_where_all_of_it_is_slow(
    tmp_path: Path, text: str, markers: str, ignored: bool | None
) -> None:
    path = tmp_path / "test_something.py"
    path.write_text(text)
    config: object = SimpleNamespace(option=SimpleNamespace(markexpr=markers))
    assert pytest_ignore_collect(path, config) is ignored
