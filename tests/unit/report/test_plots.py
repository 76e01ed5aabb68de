"""Plots as PNG files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from millstream.core.errors import ConfigError
from millstream.report.plots import (
    BandPoint,
    TimelineBar,
    banded_lines,
    grouped_bars,
    require_matplotlib,
    timelines,
)

PNG = b"\x89PNG"


@pytest.mark.slow
def test_each_kind_of_plot_is_written_as_a_png(tmp_path: Path) -> None:
    bar = TimelineBar(row="mesh", number=3, begin_ms=0.0, length_ms=4.0)
    timelines(tmp_path / "new" / "timeline.png", {"a run": [bar]}, rows=("mesh", "front"))
    grouped_bars(
        tmp_path / "bars.png",
        {"seen": [0.5], "held out": [0.4]},
        ["colour"],
        title="",
        y_label="share",
        goal=0.9,
    )
    line = [BandPoint(x=second, y=0.9, low=0.8, high=1.0) for second in (2.0, 4.0)]
    banded_lines(tmp_path / "lines.png", {"seen": line}, title="", x_label="second", y_label="share")
    found = sorted(tmp_path.rglob("*.png"))
    assert [path.name for path in found] == ["bars.png", "lines.png", "timeline.png"]
    assert all(path.read_bytes().startswith(PNG) for path in found)


def test_an_option_that_needs_matplotlib_is_refused_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        ConfigError, match=r"--plot needs matplotlib; install it: pip install 'millstream\[plots\]'"
    ):
        require_matplotlib("--plot")
