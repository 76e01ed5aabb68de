"""Files of actions beside a clip: csv or jsonl with one row for each frame of pixels, written and read here.

Columns: `frame`; `keys` that are held, in lower case with `+` between them; `look_x` and `look_y`, degrees that
a mouse turns the view in this frame, to the right and up; and where they are known the pose after it: `x`, `y`,
`z` in metres, `yaw` and `pitch` in degrees. What a frame's row says has happened when the frame is seen.
Nothing here knows tensors.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from millstream.core.errors import ConfigError

KEYS = ("w", "a", "s", "d", "up", "down", "left", "right")
"""Ahead, left, back, right; then the arrows, which turn the camera."""
POSE = ("x", "y", "z", "yaw", "pitch")
COLUMNS = ("frame", "keys", "look_x", "look_y")
SUFFIXES = (".csv", ".jsonl")


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionRow:
    """One frame."""

    frame: int
    keys: tuple[str, ...] = ()
    look_x: float = 0.0
    look_y: float = 0.0
    pose: tuple[float, float, float, float, float] | None = None
    """x, y, z, yaw and pitch."""


def actions_text(rows: Sequence[ActionRow], suffix: str) -> str:
    """A whole file; numbers are written so that they are read back exactly."""
    assert suffix in SUFFIXES, f"one of {SUFFIXES}, got {suffix!r}"
    records = [_record(row) for row in rows]
    if suffix == ".jsonl":
        return "".join(f"{json.dumps(record)}\n" for record in records)
    posed = any(row.pose is not None for row in rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, (*COLUMNS, *POSE) if posed else COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def read_actions(path: Path) -> list[ActionRow]:
    """Rows of a csv or jsonl, which must count their frames from 0 and leave none out."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path} is neither .csv nor .jsonl; name a file of actions")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text: {error}") from None
    records = _csv_records(path, text) if path.suffix.lower() == ".csv" else _json_records(path, text)
    return [_row(path, number, line, record) for number, (line, record) in enumerate(records)]


def _record(row: ActionRow) -> dict[str, object]:
    record: dict[str, object] = {
        "frame": row.frame, "keys": "+".join(row.keys), "look_x": row.look_x, "look_y": row.look_y,
    }  # fmt: skip
    if row.pose is not None:
        record.update(zip(POSE, row.pose, strict=True))
    return record


def _csv_records(path: Path, text: str) -> Iterable[tuple[int, Mapping[str, object]]]:
    reader = csv.DictReader(text.splitlines())
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise ConfigError(f"{path} has no column {', '.join(missing)}; it needs {', '.join(COLUMNS)}")
    for record in reader:
        yield reader.line_num, record


def _json_records(path: Path, text: str) -> Iterable[tuple[int, Mapping[str, object]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            raise ConfigError(f"{path} line {number} is no JSON; write one object a line") from None
        if not isinstance(record, dict):
            raise ConfigError(f"{path} line {number} is no object; write one object a line")
        yield number, record


def _row(path: Path, number: int, line: int, record: Mapping[str, object]) -> ActionRow:
    frame = _number(path, line, record, "frame")
    if frame != number:
        raise ConfigError(
            f"{path} line {line}: frame {frame:g} where {number} is due; one row a frame, from 0 on"
        )
    keys = tuple(key for key in str(record.get("keys") or "").split("+") if key)
    unknown = [key for key in keys if key not in KEYS]
    if unknown:
        raise ConfigError(f"{path} line {line}: no key is called {unknown[0]!r}; keys are {', '.join(KEYS)}")
    pose = None
    if all(record.get(name) not in (None, "") for name in POSE):
        x, y, z, yaw, pitch = (_number(path, line, record, name) for name in POSE)
        pose = (x, y, z, yaw, pitch)
    return ActionRow(
        frame=number,
        keys=keys,
        look_x=_number(path, line, record, "look_x"),
        look_y=_number(path, line, record, "look_y"),
        pose=pose,
    )


def _number(path: Path, line: int, record: Mapping[str, object], name: str) -> float:
    """A number; a look that is left out is 0."""
    value = record.get(name)
    if value in (None, "") and name.startswith("look"):
        return 0.0
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{path} line {line}: {name} is {value!r}; write a number")
    return number
