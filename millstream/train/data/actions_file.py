"""Files of actions beside a clip: csv or jsonl with one row for each frame of pixels, written and read here.

Columns: `frame`, which may be left out; `keys` that are held, in lower case with `+` between them; `look_x` and
`look_y`, degrees that a mouse turns the view in this frame, to the right and up; `axes` of a gamepad with spaces
between them, where there is one; and where they are known the pose after the frame: `x`, `y`, `z` in metres,
`yaw` and `pitch` in degrees. What a frame's row says has happened when the frame is seen.
Nothing here knows tensors. A latent frame's actions are made of rows in `frame_actions`.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from millstream.core.conditions import check_axes, check_keys
from millstream.core.errors import ControlError, VideoError

KEYS = ("w", "a", "s", "d", "up", "down", "left", "right")
"""Keys of the world to walk in: ahead, left, back, right; then the arrows, which turn the camera."""
POSE = ("x", "y", "z", "yaw", "pitch")
COLUMNS = ("frame", "keys", "look_x", "look_y")
KNOWN = (*COLUMNS, "axes", *POSE)
SUFFIXES = (".csv", ".jsonl")
MAX_ROWS = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionRow:
    """One frame."""

    frame: int
    keys: tuple[str, ...] = ()
    look_x: float = 0.0
    look_y: float = 0.0
    axes: tuple[float, ...] = ()
    pose: tuple[float, float, float, float, float] | None = None
    """x, y, z, yaw and pitch."""


def actions_text(rows: Sequence[ActionRow], suffix: str) -> str:
    """A whole file; numbers are written so that they are read back exactly."""
    assert suffix in SUFFIXES, f"one of {SUFFIXES}, got {suffix!r}"
    records = [_record(row) for row in rows]
    if suffix == ".jsonl":
        return "".join(f"{json.dumps(record)}\n" for record in records)
    names = [name for name in KNOWN if name in COLUMNS or any(name in record for record in records)]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def read_actions(path: Path) -> list[ActionRow]:
    """Rows of a csv or jsonl. Frames that are numbered count from 0, and none is left out."""
    if path.suffix.lower() not in SUFFIXES:
        raise VideoError(f"{path} is neither .csv nor .jsonl; name a file of actions")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise VideoError(f"{path} cannot be read as text: {error}") from None
    records = _csv_records(path, text) if path.suffix.lower() == ".csv" else _json_records(path, text)
    rows = list[ActionRow]()
    for line, record in records:
        if len(rows) == MAX_ROWS:
            raise VideoError(f"{path} has more than {MAX_ROWS} rows; cut the video")
        rows.append(_row(path, len(rows), line, record))
    return rows


def _record(row: ActionRow) -> dict[str, object]:
    record: dict[str, object] = {
        "frame": row.frame, "keys": "+".join(row.keys), "look_x": row.look_x, "look_y": row.look_y,
    }  # fmt: skip
    if row.axes:
        record["axes"] = " ".join(map(repr, row.axes))
    if row.pose is not None:
        record.update(zip(POSE, row.pose, strict=True))
    return record


def _csv_records(path: Path, text: str) -> Iterable[tuple[int, Mapping[str, object]]]:
    reader = csv.DictReader(text.splitlines())
    names = reader.fieldnames or ()
    if "keys" not in names:
        raise VideoError(f"{path} has no column keys; its first line names columns: {','.join(COLUMNS)}")
    unknown = [name for name in names if name not in KNOWN]
    if unknown:
        raise VideoError(f"{path} has a column {unknown[0]!r}; columns are {', '.join(KNOWN)}")
    for record in reader:
        yield reader.line_num, record


def _json_records(path: Path, text: str) -> Iterable[tuple[int, Mapping[str, object]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            raise VideoError(f"{path} line {number} is no JSON; write one object a line") from None
        if not isinstance(record, dict):
            raise VideoError(f"{path} line {number} is no object; write one object a line")
        unknown = [name for name in record if name not in KNOWN]
        if unknown:
            raise VideoError(f"{path} line {number} has {unknown[0]!r}; names are {', '.join(KNOWN)}")
        yield number, record


def _row(path: Path, number: int, line: int, record: Mapping[str, object]) -> ActionRow:
    frame = _number(path, line, record, "frame", number)
    if frame != number:
        raise VideoError(
            f"{path} line {line}: frame {frame:g} where {number} is due; one row a frame, from 0 on"
        )
    keys = tuple(filter(None, (key.strip() for key in str(record.get("keys") or "").split("+"))))
    axes = tuple(_finite(path, line, "axes", part) for part in str(record.get("axes") or "").split())
    try:
        check_keys(keys)
        check_axes(axes)
    except ControlError as error:
        raise VideoError(f"{path} line {line}: {error}") from None
    pose = None
    if all(record.get(name) not in (None, "") for name in POSE):
        x, y, z, yaw, pitch = (_number(path, line, record, name, 0.0) for name in POSE)
        pose = (x, y, z, yaw, pitch)
    return ActionRow(
        frame=number,
        keys=keys,
        look_x=_number(path, line, record, "look_x", 0.0),
        look_y=_number(path, line, record, "look_y", 0.0),
        axes=axes,
        pose=pose,
    )


def _number(path: Path, line: int, record: Mapping[str, object], name: str, left_out: float) -> float:
    value = record.get(name)
    return left_out if value in (None, "") else _finite(path, line, name, value)


def _finite(path: Path, line: int, name: str, value: object) -> float:
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise VideoError(f"{path} line {line}: {name} is {value!r}; write a number")
    return number
