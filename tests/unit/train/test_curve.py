"""A curve that goes on has each step once."""

from __future__ import annotations

from pathlib import Path

from millstream.train.curve import cut_curve

LINES = [
    '{"step": 0, "flow": 2}\n',
    '{"step": 1, "flow": 1}\n',
    '{"step": 2, "flow": 0}\n',
    '{"step": 3, "fl',
]


def test_steps_that_are_made_again_go_and_so_does_a_line_that_was_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"
    path.write_text("".join(LINES))
    assert cut_curve(path, lambda step: step < 2) == [{"step": 0, "flow": 2}, {"step": 1, "flow": 1}]
    assert path.read_text() == "".join(LINES[:2])


def test_a_run_that_begins_has_none_and_a_whole_one_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"
    assert cut_curve(path, lambda step: True) == []
    assert not path.exists()
    path.write_text(LINES[0])
    before = path.stat()
    cut_curve(path, lambda step: True)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
