"""A trace in memory: events as columns, some fifty bytes each, with what the file says of itself.

Filled from `reader.py`. Times are microseconds by the trace's own clock. At most `MAX_EVENTS` are kept: those after are
counted and left out, and the trace says so.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from millstream.core.errors import TraceError
from millstream.profiler.costs import input_bytes, op_cost
from millstream.profiler.evidence import is_all_to_all, settle
from millstream.profiler.intervals import Floats
from millstream.profiler.kinds import FOREIGN, Kind, kind_of
from millstream.profiler.nsight import MAGIC, NsightFile
from millstream.profiler.reader import TraceFile

MAX_EVENTS = 4_000_000
MAX_NAMES = 200_000
MAX_OPEN = 10_000
"""Begun and not yet ended, over all threads."""
OTHERS = "(other names)"
LATEST_US = 2.0**62
"""No clock has come so far; what claims to be later, or not a number, is no time."""
_SKIPPED = {"ac2g", "async_cpu_to_gpu", "fwdbwd", "trace", "cuda_sync", "cuda_profiler_range"}
"""They repeat what is there already."""
SHORT_FRAME_US = 200.0
"""Stacks are the bulk of large traces, and only long frames say what a gap was spent with."""


@dataclass(frozen=True, kw_only=True)
class Events:
    """Slices of time, in the order of the file."""

    begin: Floats
    length: Floats
    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    """Index into `Trace.names`."""
    track: NDArray[np.int32]
    """Index into `Trace.tracks`."""
    link: NDArray[np.int64]
    """Ties what runs on the device to the call that launched it; -1 if unknown."""
    origin: NDArray[np.int64]
    """Ties what runs on the device to the operator it is of; -1 if unknown."""
    flops: Floats
    moved: Floats
    """Bytes, at least; copies and collectives say theirs."""

    def __post_init__(self) -> None:
        lengths = {len(column) for column in vars(self).values()}
        assert len(lengths) == 1, f"columns of {sorted(lengths)} events"

    @property
    def end(self) -> Floats:
        ends: Floats = self.begin + self.length
        return ends

    def __len__(self) -> int:
        return len(self.begin)

    def of(self, *kinds: Kind) -> NDArray[np.intp]:
        """Which are of these kinds, by index."""
        return np.flatnonzero(np.isin(self.kind, [int(kind) for kind in kinds]))


@dataclass(frozen=True, kw_only=True)
class MemoryEvents:
    """What the allocator did on one device, in order of time."""

    at: Floats
    change: NDArray[np.int64]
    allocated: NDArray[np.int64]
    reserved: NDArray[np.int64]
    address: NDArray[np.int64]
    track: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Trace:
    path: Path
    rank: int
    metadata: dict[str, Any]
    names: list[str]
    tracks: list[tuple[str, str]]
    """Process and thread, or device and stream."""
    events: Events
    memory: MemoryEvents
    left_out: int
    """Events past the bound."""
    broken: int
    """Events without a time, or of negative length."""
    unclosed: bool
    """A bare list without its last bracket, as Chrome allows: it may have been cut off."""
    foreign: tuple[str, ...] = ()
    """Categories of devices whose events are not known by name."""

    @property
    def device_name(self) -> str:
        """Of the first accelerator; empty where there is none."""
        found = self.metadata.get("deviceProperties") or []
        return str(found[0].get("name", "")) if isinstance(found, list) and found and isinstance(found[0], dict) else ""

    @property
    def ours(self) -> dict[str, Any]:
        """What `profile run` wrote into it."""
        found = self.metadata.get("millstream")
        return found if isinstance(found, dict) else {}


def read_trace(path: Path, *, rank: int = 0, max_events: int = MAX_EVENTS) -> Trace:
    """`rank` is for traces that do not say theirs."""
    file = NsightFile(path) if _begins_with(path, MAGIC) else TraceFile(path)
    filling = _Filling(max_events)
    filling.take(file.events())
    trace = filling.trace(path, file, rank)
    if not len(trace.events):
        raise TraceError(f"{path} has no timed events; capture at least one chunk")
    return trace


@dataclass
class _Columns:
    begin: array[float] = field(default_factory=lambda: array("d"))
    length: array[float] = field(default_factory=lambda: array("d"))
    kind: array[int] = field(default_factory=lambda: array("B"))
    name: array[int] = field(default_factory=lambda: array("i"))
    track: array[int] = field(default_factory=lambda: array("i"))
    link: array[int] = field(default_factory=lambda: array("q"))
    origin: array[int] = field(default_factory=lambda: array("q"))
    flops: array[float] = field(default_factory=lambda: array("d"))
    moved: array[float] = field(default_factory=lambda: array("d"))


@dataclass
class _MemoryColumns:
    at: array[float] = field(default_factory=lambda: array("d"))
    change: array[int] = field(default_factory=lambda: array("q"))
    allocated: array[int] = field(default_factory=lambda: array("q"))
    reserved: array[int] = field(default_factory=lambda: array("q"))
    address: array[int] = field(default_factory=lambda: array("q"))
    track: array[int] = field(default_factory=lambda: array("i"))
    device: array[int] = field(default_factory=lambda: array("i"))


class _Filling:
    def __init__(self, max_events: int) -> None:
        self.max_events = max_events
        self.columns, self.memory = _Columns(), _MemoryColumns()
        self.names: dict[str, int] = {}
        self.tracks: dict[tuple[str, str], int] = {}
        self.open: dict[int, list[tuple[float, dict[str, Any]]]] = {}
        self.num_open = 0
        self.left_out = 0
        self.broken = 0
        self.foreign: set[str] = set()

    def take(self, events: Iterable[dict[str, Any]]) -> None:
        for event in events:
            phase = event.get("ph")
            if phase == "X":
                self._slice(event, event.get("ts"), event.get("dur", 0))
            elif phase == "i" and event.get("name") == "[memory]":
                self._memory(event)
            elif phase in ("B", "E"):
                self._half(event, str(phase))

    def _slice(self, event: dict[str, Any], begin: Any, length: Any) -> None:
        category = str(event.get("cat", ""))
        if category.lower() in _SKIPPED:
            return
        if category == "python_function" and _is_time(length) and length < SHORT_FRAME_US:
            return
        if not (_is_time(begin) and _is_time(length) and length >= 0):
            self.broken += 1
            return
        if len(self.columns.begin) >= self.max_events:
            self.left_out += 1
            return
        name, args, columns = str(event.get("name", "")), event.get("args") or {}, self.columns
        args = args if isinstance(args, dict) else {}
        kind = kind_of(category, name)
        if kind is Kind.EXCHANGE and is_all_to_all(args.get("Collective name")):
            kind = Kind.COLLECTIVE
        if category.lower() in FOREIGN:
            self.foreign.add(category)
        flops, moved = op_cost(name, args) if kind is Kind.OP else (0.0, _size(args))
        columns.begin.append(float(begin))
        columns.length.append(float(length))
        columns.kind.append(int(kind))
        columns.name.append(self._name(name))
        columns.track.append(self._track(event))
        columns.link.append(_number(args, "correlation"))
        columns.origin.append(_number(args, "External id" if "External id" in args else "external id"))
        columns.flops.append(flops)
        columns.moved.append(moved)

    def _half(self, event: dict[str, Any], phase: str) -> None:
        """Chrome's other way to write a slice: where it begins, and where it ends, on a thread."""
        stack, at = self.open.setdefault(self._track(event), []), event.get("ts")
        if not _is_time(at):
            self.broken += 1
        elif phase == "B" and self.num_open < MAX_OPEN:
            stack.append((float(at), event))
            self.num_open += 1
        elif phase == "E" and stack:
            begin, begun = stack.pop()
            self.num_open -= 1
            self._slice(begun, begin, at - begin)
        else:
            self.broken += 1

    def _memory(self, event: dict[str, Any]) -> None:
        if len(self.memory.at) >= self.max_events:
            self.left_out += 1
            return
        args, columns = event.get("args"), self.memory
        if not isinstance(args, dict) or not _is_time(event.get("ts")):
            self.broken += 1
            return
        columns.at.append(float(event["ts"]))
        columns.change.append(_number(args, "Bytes", 0))
        columns.allocated.append(_number(args, "Total Allocated", 0))
        columns.reserved.append(_number(args, "Total Reserved", 0))
        columns.address.append(_number(args, "Addr"))
        columns.track.append(self._track(event))
        columns.device.append(max(-1, min(_number(args, "Device Id"), 1 << 16)))

    def _name(self, name: str) -> int:
        known = self.names.get(name)
        if known is not None:
            return known
        return self.names.setdefault(name if len(self.names) < MAX_NAMES else OTHERS, len(self.names))

    def _track(self, event: dict[str, Any]) -> int:
        return self.tracks.setdefault((str(event.get("pid")), str(event.get("tid"))), len(self.tracks))

    def trace(self, path: Path, file: TraceFile | NsightFile, rank: int) -> Trace:
        columns = {name: _numpy(values) for name, values in vars(self.columns).items()}
        names = list(self.names)
        columns["kind"] = settle(columns["kind"], columns["begin"], columns["length"], columns["link"], names)
        memory = {name: _numpy(values) for name, values in vars(self.memory).items()}
        device = memory.pop("device")
        accelerator = device.max(initial=-1)  # a trace of a GPU also has the host's
        order = np.argsort(memory["at"][device == accelerator], kind="stable")
        return Trace(
            path=path,
            rank=_rank(file.metadata, rank),
            metadata=file.metadata,
            names=names,
            tracks=list(self.tracks),
            events=Events(**columns),
            memory=MemoryEvents(**{name: values[device == accelerator][order] for name, values in memory.items()}),
            left_out=self.left_out,
            broken=self.broken + self.num_open,
            unclosed=file.unclosed,
            foreign=tuple(sorted(self.foreign)),
        )


def _begins_with(path: Path, magic: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False  # whoever reads it says why


def _is_time(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and abs(value) < LATEST_US


def _numpy(values: Any) -> NDArray[Any]:
    return np.frombuffer(values, dtype=values.typecode).copy() if len(values) else np.empty(0, dtype=values.typecode)


def _number(args: dict[str, Any], key: str, otherwise: int = -1) -> int:
    value = args.get(key, otherwise)
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else otherwise


def _size(args: dict[str, Any]) -> float:
    """Bytes of a copy, or of a collective's message."""
    if isinstance(args.get("bytes"), int):
        return float(args["bytes"])
    count, dtype = args.get("In msg nelems"), str(args.get("dtype", "")).lower()
    if not isinstance(count, int):
        return input_bytes(args)
    return float(count * (2 if "16" in dtype or "half" in dtype else 1 if "8" in dtype or "byte" in dtype else 4))


def _rank(metadata: dict[str, Any], otherwise: int) -> int:
    for place in ("millstream", "distributedInfo"):  # torch counts the ranks of a mesh without its front
        found = metadata.get(place)
        if isinstance(found, dict) and isinstance(found.get("rank"), int):
            return int(found["rank"])
    return otherwise
