"""Chosen ranks of a real mesh are captured, and read side by side."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from millstream.commands.main import app
from millstream.profiler.reading import read


def test_the_chosen_ranks_of_a_mesh_leave_traces_of_the_same_chunks(tmp_path: Path) -> None:
    out = tmp_path / "trace.json.gz"
    words = (
        "profile run --model wan-tiny --weights random --device cpu --topology front+tp2 --chunks 2 "
        f"--ranks 0,2 --out {out}"
    )
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == 0, result.output
    paths = [tmp_path / "trace.rank0.json.gz", tmp_path / "trace.rank2.json.gz"]
    assert sorted(tmp_path.glob("*.gz")) == paths
    found = read(paths)
    assert [rank.rank for rank in found.group.ranks] == [0, 2]
    assert found.group.front is not None
    assert found.group.front.rank == 0
    assert len(found.group.mesh[0].collectives) > 0
    assert {"step", "commit", "decode"} <= set(found.phases.by_name)
    assert found.phases.chunks == 2
