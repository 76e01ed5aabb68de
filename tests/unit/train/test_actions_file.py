"""Files of actions: what is written is read back, and a mistake is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.core.conditions import FrameActions
from millstream.core.errors import VideoError
from millstream.train.data.actions_file import ActionRow, actions_text, read_actions
from millstream.train.data.frame_actions import frame_actions

ROWS = [
    ActionRow(frame=0),
    ActionRow(
        frame=1, keys=("w", "left"), look_x=0.1 + 0.2, look_y=-1.5, pose=(1.0, 2.5, -3.125, 359.9, 1e-3)
    ),
    ActionRow(frame=2, keys=("space",), axes=(-0.5, 1.0)),
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


def test_frames_need_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "clip.csv"
    path.write_text("keys,look_x\nw + a,1.5\n,\n")
    rows = read_actions(path)
    assert rows == [ActionRow(frame=0, keys=("w", "a"), look_x=1.5), ActionRow(frame=1)]


def test_a_model_is_told_the_same_with_looks_to_the_right_and_down() -> None:
    assert frame_actions(ROWS) == [
        FrameActions(),
        FrameActions(keys=("left", "w"), look=(0.1 + 0.2, 1.5)),
        FrameActions(keys=("space",), axes=(-0.5, 1.0)),
    ]


MISTAKES = {
    "no key": ("clip.csv", "keys\nthe quick brown fox jumps\n", "line 2: a key has a name of"),
    "too many keys": ("clip.csv", "keys\na+b+c+d+e+f+g+h+i+j+k+l+m+n+o+p+q\n", "at most 16 keys"),
    "an axis too far": ("clip.jsonl", '{"axes": "0 2"}\n', "axes are up to 8 numbers"),
    "an unknown column": (
        "clip.csv",
        "keys,right,down\nw,1,0\n",
        "a column 'right'; columns are frame, keys",
    ),
    "an unknown name": ("clip.jsonl", '{"keys": "w", "look": 3}\n', "line 1 has 'look'"),
    "a frame left out": ("clip.csv", "frame,keys,look_x,look_y\n0,,0,0\n2,,0,0\n", "frame 2 where 1 is due"),
    "no number": ("clip.csv", "frame,keys,look_x,look_y\n0,w,fast,0\n", "look_x is 'fast'"),
    "not finite": ("clip.csv", "frame,keys,look_x,look_y\n0,w,nan,0\n", "write a number"),
    "a column is missing": ("clip.csv", "frame,look_x\n0,1\n", "no column keys"),
    "no JSON": ("clip.jsonl", "frame 0\n", "line 1 is no JSON"),
    "no object": ("clip.jsonl", "[0]\n", "line 1 is no object"),
    "another kind of file": ("clip.txt", "", "neither .csv nor .jsonl"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(tmp_path: Path, name: str) -> None:
    file, text, says = MISTAKES[name]
    path = tmp_path / file
    path.write_text(text)
    with pytest.raises(VideoError, match="clip") as caught:
        read_actions(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(VideoError, match="cannot be read"):
        read_actions(tmp_path / "none.csv")
