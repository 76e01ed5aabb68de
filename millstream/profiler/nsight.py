"""Reads what Nsight Systems exports (`nsys export --type sqlite`) as the events that Kineto would have
written.

Kernels, copies, graphs, calls and NVTX ranges. Operators and shapes are not in such a file. Only tables are
read, never views: a file of a stranger runs no query of its own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from millstream.core.errors import TraceError
from millstream.profiler.event import TraceEvent, mended

MAGIC = b"SQLite format 3\x00"
BLOCK = 10_000
"""Rows read at a time."""
_COPIES = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}
_ON_DEVICE = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("kernel", ("demangledName", "shortName")),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("gpu_memcpy", ("copyKind",)),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("gpu_memset", ()),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ("kernel", ()),
}
"""Category of each table, and the columns that hold the name."""
_ON_HOST = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("cuda_runtime", ("nameId",)),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": ("cuda_sync", ()),
    "NVTX_EVENTS": ("user_annotation", ("textId", "text")),
}
_GPUS = ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU")
Row = dict[str, Any]


class NsightFile:
    """Export with the interface of `reader.TraceFile`: read `blocks()` once, then `metadata` has the
    devices."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.unclosed = False

    def blocks(self) -> Iterator[list[TraceEvent]]:
        try:
            with closing(
                sqlite3.connect(f"file:{self.path.absolute()}?mode=ro&immutable=1", uri=True)
            ) as database:
                database.row_factory = sqlite3.Row
                database.execute("PRAGMA trusted_schema = OFF")
                yield from self._blocks(database)
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            raise TraceError(
                f"{self.path} cannot be read as an export of Nsight Systems ({error}); export it again"
            ) from None

    def _blocks(self, database: sqlite3.Connection) -> Iterator[list[TraceEvent]]:
        tables = {
            row["name"] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if not tables & {*_ON_DEVICE, "CUPTI_ACTIVITY_KIND_RUNTIME"}:
            raise TraceError(
                f"{self.path} has no CUDA events; record with nsys profile --trace cuda,nvtx and export to "
                "sqlite"
            )
        words = (
            dict(database.execute("SELECT id, value FROM StringIds").fetchall())
            if "StringIds" in tables
            else {}
        )
        gpus = [name for name in _GPUS if name in tables]
        found = database.execute(f"SELECT * FROM {gpus[0]}").fetchall() if gpus else []
        self.metadata["deviceProperties"] = [{"name": dict(row).get("name") or ""} for row in found]
        for table, (category, names) in (_ON_DEVICE | _ON_HOST).items():
            if table in tables:
                rows = database.execute(f"SELECT * FROM {table}")
                while block := rows.fetchmany(BLOCK):
                    yield [_event(table, category, names, dict(row), words) for row in block]


def _event(table: str, category: str, names: tuple[str, ...], row: Row, words: dict[int, str]) -> TraceEvent:
    timed = isinstance(row.get("start"), int) and isinstance(row.get("end"), int)
    times = {"ts": row["start"] / 1e3, "dur": (row["end"] - row["start"]) / 1e3} if timed else {}
    args = {"correlation": row.get("correlationId", -1), "bytes": row.get("bytes")}
    on_device = table in _ON_DEVICE
    found = {
        "ph": "X",
        "cat": category,
        "name": _name(table, names, row, words),
        "pid": f"gpu {row.get('deviceId', 0)}" if on_device else "host",
        "tid": row.get("streamId", 0) if on_device else row.get("globalTid", 0),
        **times,
        "args": args if on_device or category == "cuda_runtime" else {},
    }
    return mended(found)


def _name(table: str, names: tuple[str, ...], row: Row, words: dict[int, str]) -> str:
    if table.endswith("MEMCPY"):
        return _COPIES.get(row.get("copyKind", 0), "Memcpy")
    if table.endswith("GRAPH_TRACE"):
        return f"CUDA graph {row.get('graphId', '')}"
    for name in names:
        said = row.get(name)
        if said is not None and said in words:
            return words[said]
        if isinstance(said, str):
            return said
    return "Memset" if table.endswith("MEMSET") else table.lower()
