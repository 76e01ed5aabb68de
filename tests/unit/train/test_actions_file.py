"""Files of actions: what is written is read back, and a mistake is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.core.errors import ConfigError
from millstream.train.data.actions_file import ActionRow, actions_text, read_actions

ROWS = [
    ActionRow(frame=0),
    ActionRow(
        frame=1, keys=("w", "left"), look_x=0.1 + 0.2, look_y=-1.5, pose=(1.0, 2.5, -3.125, 359.9, 1e-3)
    ),
]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_rows_are_read_back_exactly(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"clip.actions{suffix}"
    path.write_text(actions_text(ROWS, suffix))
    assert read_actions(path) == ROWS


def test_a_csv_without_poses_has_no_columns_for_them() -> None:
    assert actions_text(ROWS[:1], ".csv") == "frame,keys,look_x,look_y\n0,,0.0,0.0\n"


def test_a_look_that_is_left_out_is_none(tmp_path: Path) -> None:
    path = tmp_path / "clip.jsonl"
    path.write_text('{"frame": 0, "keys": "w+d"}\n\n{"frame": 1}\n')
    assert read_actions(path) == [ActionRow(frame=0, keys=("w", "d")), ActionRow(frame=1)]


MISTAKES = {
    "a key nobody knows": ("clip.csv", "frame,keys,look_x,look_y\n0,w+jump,0,0\n", "no key is called 'jump'"),
    "a frame left out": ("clip.csv", "frame,keys,look_x,look_y\n0,,0,0\n2,,0,0\n", "frame 2 where 1 is due"),
    "no number": ("clip.csv", "frame,keys,look_x,look_y\n0,w,fast,0\n", "look_x is 'fast'"),
    "not finite": ("clip.csv", "frame,keys,look_x,look_y\n0,w,nan,0\n", "write a number"),
    "a column is missing": ("clip.csv", "frame,keys\n0,w\n", "no column look_x, look_y"),
    "no JSON": ("clip.jsonl", "frame 0\n", "line 1 is no JSON"),
    "no object": ("clip.jsonl", "[0]\n", "line 1 is no object"),
    "another kind of file": ("clip.txt", "", "neither .csv nor .jsonl"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(tmp_path: Path, name: str) -> None:
    file, text, says = MISTAKES[name]
    path = tmp_path / file
    path.write_text(text)
    with pytest.raises(ConfigError, match="clip") as caught:
        read_actions(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_actions(tmp_path / "none.csv")
