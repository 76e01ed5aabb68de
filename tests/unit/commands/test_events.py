"""Timeline files: where their controls land, and what they say when they are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.core.config import StreamConfig
from millstream.core.errors import ControlError
from millstream.core.events import place_events, read_events

CONFIG = StreamConfig(height=64, width=64, fps=12.0)
"""Chunk 0 lasts 0.75 s, later ones 1 s."""


def placed(tmp_path: Path, events: object, seconds: float = 10.0) -> list[tuple[int, str]]:
    path = tmp_path / "events.json"
    path.write_text(json.dumps(events))
    controls = place_events(read_events(path), CONFIG, seconds=seconds)
    return [(chunk, type(control).__name__) for chunk, control in controls]


def test_seconds_land_on_the_next_chunk_that_starts(tmp_path: Path) -> None:
    events = [{"at": at, "type": "seed", "seed": 1} for at in (0, 0.5, 0.75, 0.8, 2.75)]
    assert [chunk for chunk, _ in placed(tmp_path, events)] == [0, 1, 1, 2, 3]


def test_a_cut_shortens_its_chunk_and_moves_what_follows(tmp_path: Path) -> None:
    events = [
        {"chunk": 1, "type": "cut"},
        {"at": 1.5, "type": "seed", "seed": 1},
        {"at": 2.5, "type": "stop"},
    ]
    assert placed(tmp_path, events) == [(1, "Cut"), (2, "SetSeed"), (3, "Stop")]


def test_order_in_time_not_in_the_file_decides(tmp_path: Path) -> None:
    assert [c for c, _ in placed(tmp_path, [{"chunk": 5, "type": "cut"}, {"chunk": 2, "type": "cut"}])] == [
        2,
        5,
    ]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"at": -1, "type": "cut"}, "past"),
        ({"chunk": -3, "type": "cut"}, "past"),
        ({"at": 99, "type": "cut"}, "after the end"),
        ({"chunk": 99, "type": "cut"}, "after the end"),
        ({"type": "cut"}, "either at"),
        ({"at": 1, "chunk": 1, "type": "cut"}, "either at"),
        ({"at": "soon", "type": "cut"}, "float"),
        ({"at": 1, "type": "explode"}, "explode"),
        ({"at": 1}, "type"),
        ({"at": 1, "type": "cut", "volume": 3}, "volume"),
        ({"at": 1, "type": "prompt", "prompt": ""}, "needs either prompt"),
        ({"at": 1, "type": "prompt", "prompt": "x", "mode": "fade"}, "fade"),
        ({"at": 1, "type": "steps", "steps": [100, 900]}, "decrease"),
        ({"at": 1, "type": "pause"}, "person"),
        ("cut", "object"),
    ],
    ids=str,
)
def test_a_wrong_event_is_named_in_one_line(tmp_path: Path, event: object, reason: str) -> None:
    with pytest.raises(ControlError, match=reason) as caught:
        placed(tmp_path, [event])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", '{"at": 1}', "null", "3"])
def test_a_file_that_is_no_list_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "events.json"
    path.write_text(content)
    with pytest.raises(ControlError, match="events"):
        read_events(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="No such file"):
        read_events(tmp_path / "none.json")
