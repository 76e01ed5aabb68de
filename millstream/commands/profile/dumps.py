"""`millstream profile read` of what is no trace: snapshots of PyTorch's memory, and dumps of NCCL's flight
recorder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from millstream.core.errors import TraceError
from millstream.mesh.flight_recorder import FlightReading, is_flight, read_flights
from millstream.profiler.dumps.plain import load_plain
from millstream.profiler.dumps.snapshot import MemorySnapshot, is_snapshot, read_snapshot

LOOKED_AT = 1 << 16


def are_dumps(paths: Sequence[Path]) -> bool:
    """By how the first begins: a pickle, or a flight recorder's JSON."""
    try:
        with paths[0].open("rb") as file:
            begin = file.read(LOOKED_AT)
    except (OSError, IndexError):
        return False  # the reader of traces says why
    return begin[:1] == b"\x80" or (b'"entries"' in begin and b'"traceEvents"' not in begin)


def run_read_dumps(paths: Sequence[Path], *, as_json: bool) -> None:
    found = _read(paths)
    if as_json:
        kind = "millstream-snapshot" if isinstance(found, MemorySnapshot) else "millstream-flight"
        print(json.dumps({"format": kind, "version": 1, **asdict(found)}, indent=2))
    elif isinstance(found, MemorySnapshot):
        _show_snapshot(found, Console())
    else:
        _show_flight(found, Console())


def _read(paths: Sequence[Path]) -> MemorySnapshot | FlightReading:
    records = [load_plain(path) for path in paths]
    if all(map(is_flight, records)):
        flights = read_flights(dict(enumerate(records)))
        if not flights.collectives:
            buffer = "TORCH_FR_BUFFER_SIZE=2000 (before torch 2.8 TORCH_NCCL_TRACE_BUFFER_SIZE)"
            raise TraceError(f"the flight recorder holds no collective; run with {buffer} and dump again")
        return flights
    if len(records) == 1 and is_snapshot(records[0]):
        return read_snapshot(records[0])
    raise TraceError(
        f"{paths[0]} is neither a snapshot of memory (give one) nor a flight recorder's dump (give one a "
        "rank)"
    )


def _show_snapshot(found: MemorySnapshot, console: Console) -> None:
    idle = (
        f"{100 * found.idle_share:.0f}% of what is reserved lies idle, at most "
        f"{found.largest_free_mib:.0f} MiB in one piece"
    )
    console.print(
        f"{found.allocated_mib:.0f} MiB held of {found.reserved_mib:.0f} reserved; {idle}", highlight=False
    )
    console.print(
        f"at most {found.peak_mib:.0f} MiB while recorded, {found.out_of_memory} out of memory",
        highlight=False,
    )
    table = Table("held by", "MiB", box=None)
    for name, size in found.owners:
        table.add_row(escape(name), f"{size:.1f}")
    console.print(table)


def _show_flight(found: FlightReading, console: Console) -> None:
    console.print(f"{found.collectives} collectives of {found.ranks} ranks", highlight=False)
    for line in found.findings or ("nothing hangs: all that was begun has ended",):
        console.print(f"  {line}", highlight=False, markup=False)
