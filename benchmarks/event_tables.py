"""Other people's traces, reduced to tables of events: what happened when, on which track, tied to what. No
stacks, no paths.

    python -m benchmarks.event_tables TRACE.json.gz TABLE.json.xz

A table is columns of integers and lists of words, packed. Times are tenths of a microsecond since the first
event. Operators that launch nothing and are short are left out, so traces without a device are not for this.
"""

from __future__ import annotations

import gzip
import json
import lzma
import sys
from pathlib import Path
from typing import Any

TICKS = 10
"""To a microsecond."""
LONG_US = 200.0
MAX_NAME = 90
_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "mtia_ccp_events"}
_HOST = {"cuda_runtime", "cuda_driver", "hip_runtime", "runtime", "driver", "mtia_runtime", "overhead"}
_SHAPES = ("Input Dims", "Input type")
Event = dict[str, Any]


def reduce_trace(path: Path) -> dict[str, Any]:
    """The table of a trace as Kineto wrote it."""
    raw = path.read_bytes()
    record = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    slices = [event for event in record["traceEvents"] if isinstance(event, dict) and event.get("ph") == "X"]
    devices = record.get("deviceProperties") or [{}]
    origins = {_origin(event) for event in slices if _category(event) in _DEVICE}
    kept = sorted(
        (event for event in slices if _is_kept(event, origins)), key=lambda event: float(event["ts"])
    )
    first = float(kept[0]["ts"])
    words: dict[str, dict[str, int]] = {name: {} for name in ("category", "name", "track", "shape")}
    rows = [_row(event, first, words) for event in kept]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    for name in ("begin", "link", "origin"):
        columns[name] = _steps(columns[name])
    return {
        "device": str(devices[0].get("name", "")),
        **{f"{name}s": list(known) for name, known in words.items()},
        "columns": columns,
    }


def write_table(table: dict[str, Any], path: Path) -> None:
    path.write_bytes(lzma.compress(json.dumps(table, separators=(",", ":")).encode(), preset=6))


def write_trace(table_path: Path, path: Path) -> Path:
    """A table as a trace again, for whoever reads traces."""
    table = json.loads(lzma.decompress(table_path.read_bytes()))
    columns = table["columns"]
    for name in ("begin", "link", "origin"):
        columns[name] = _sums(columns[name])
    events = []
    for at in range(len(columns["begin"])):
        row = {name: values[at] for name, values in columns.items()}
        args = {
            "correlation": row["link"],
            "External id": row["origin"],
            **json.loads(table["shapes"][row["shape"]]),
        }
        pid, _, tid = table["tracks"][row["track"]].partition("/")
        event = {
            "ph": "X",
            "cat": table["categorys"][row["category"]],
            "name": table["names"][row["name"]],
            "pid": pid,
            "tid": tid,
        }
        events.append({**event, "ts": row["begin"] / TICKS, "dur": row["length"] / TICKS, "args": args})
    path.write_text(json.dumps({"deviceProperties": [{"name": table["device"]}], "traceEvents": events}))
    return path


def _is_kept(event: Event, origins: set[int]) -> bool:
    if (
        not isinstance(event.get("ts"), int | float)
        or not isinstance(event.get("dur"), int | float)
        or event["dur"] < 0
    ):
        return False
    category = _category(event)
    if category in _DEVICE or category in _HOST or category in ("user_annotation", "gpu_user_annotation"):
        return True
    if category in ("cpu_op", "operator"):
        return event["dur"] >= LONG_US or _origin(event) in origins
    return False


def _row(event: Event, first: float, words: dict[str, dict[str, int]]) -> dict[str, int]:
    args = _args(event)
    said: dict[str, Any] = {key: args[key] for key in ("bytes", "Collective name") if key in args}
    if _category(event) in ("cpu_op", "operator"):
        said |= {key: args[key] for key in _SHAPES if args.get(key)}
    texts = {
        "category": str(event.get("cat", "")),
        "name": str(event.get("name", ""))[:MAX_NAME],
        "track": f"{event.get('pid')}/{event.get('tid')}",
        "shape": json.dumps(said),
    }
    row = {name: words[name].setdefault(text, len(words[name])) for name, text in texts.items()}
    link = args.get("correlation", -1)
    return {
        **row,
        "begin": round((float(event["ts"]) - first) * TICKS),
        "length": round(float(event["dur"]) * TICKS),
        "link": link if isinstance(link, int) else -1,
        "origin": _origin(event),
    }


def _args(event: Event) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _origin(event: Event) -> int:
    args = _args(event)
    found = args.get("External id", args.get("external id", -1))
    return found if isinstance(found, int) else -1


def _category(event: Event) -> str:
    return str(event.get("cat", "")).lower()


def _steps(values: list[int]) -> list[int]:
    return [value - before for value, before in zip(values, [0, *values[:-1]], strict=True)]


def _sums(steps: list[int]) -> list[int]:
    total = 0
    found = []
    for step in steps:
        total += step
        found.append(total)
    return found


if __name__ == "__main__":
    write_table(reduce_trace(Path(sys.argv[1])), Path(sys.argv[2]))
