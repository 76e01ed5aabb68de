"""A trace in memory: events as columns, some forty bytes each, with what the file says of itself.

Filled from `reader.py`. Times are microseconds by the trace's own clock. At most `MAX_EVENTS` are kept: those
after are counted and left out, and the trace says so.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.core.errors import TraceError
from millstream.profiler.costs import input_bytes, op_cost
from millstream.profiler.event import EVENTS, Arguments, TraceEvent, mended
from millstream.profiler.evidence import correct_kinds, is_all_to_all
from millstream.profiler.intervals import Floats
from millstream.profiler.kinds import FOREIGN, Kind, kind_of
from millstream.profiler.nsight import MAGIC, NsightFile
from millstream.profiler.reader import TraceFile

MAX_EVENTS = 4_000_000
MAX_NAMES = 200_000
MAX_OPEN = 10_000
"""Slices begun and not yet ended, over all threads."""
OTHERS = "(other names)"
Ids = NDArray[np.int64] | NDArray[np.int32]
LATEST_US = 2.0**62
"""Latest possible time; a later one, or one that is not a number, is invalid."""
_SKIPPED = {"ac2g", "async_cpu_to_gpu", "fwdbwd", "trace", "cuda_sync", "cuda_profiler_range"}
"""Categories that repeat other events."""
SHORT_FRAME_US = 200.0
"""Stacks are the bulk of large traces, and only long frames say what a gap was spent with."""


@dataclass(frozen=True, kw_only=True)
class EventWork:
    """Work of the events that say what they do: operators with shapes, copies, messages."""

    of: NDArray[np.int32]
    """Index into the events, in order."""
    flops: Floats
    moved: Floats
    """Bytes, at least; copies and collectives say theirs."""

    def at(self, chosen: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """Return flops and bytes of these events, by index; 0 for those that do not say."""
        if not len(self.of):
            return np.zeros(len(chosen)), np.zeros(len(chosen))
        at = np.minimum(np.searchsorted(self.of, chosen.astype(np.int32)), len(self.of) - 1)
        said = self.of[at] == chosen
        return np.where(said, self.flops[at], 0.0), np.where(said, self.moved[at], 0.0)


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
    link: Ids
    """Ties what runs on the device to the call that launched it; -1 if unknown."""
    origin: Ids
    """Ties what runs on the device to the operator it is of; -1 if unknown."""
    work: EventWork

    def __post_init__(self) -> None:
        lengths = {len(column) for name, column in vars(self).items() if name != "work"}
        assert len(lengths) == 1, f"columns of {sorted(lengths)} events"

    def ends(self, chosen: NDArray[np.intp]) -> Floats:
        """Return the ends of these events, by index."""
        ends: Floats = self.begin[chosen] + self.length[chosen]
        return ends

    def __len__(self) -> int:
        return len(self.begin)

    def are(self, *kinds: Kind) -> NDArray[np.bool_]:
        """Return a mask of the events of these kinds."""
        wanted = np.zeros(256, bool)
        wanted[list(kinds)] = True
        found: NDArray[np.bool_] = wanted[self.kind]
        return found

    def of(self, *kinds: Kind) -> NDArray[np.intp]:
        """Return the indices of the events of these kinds."""
        return np.flatnonzero(self.are(*kinds))


@dataclass(frozen=True, kw_only=True)
class MemoryEvents:
    """Changes of the allocator on one device, in order of time."""

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
        """Name of the first accelerator; empty where there is none."""
        found = self.metadata.get("deviceProperties") or []
        return (
            str(found[0].get("name", ""))
            if isinstance(found, list) and found and isinstance(found[0], dict)
            else ""
        )

    @property
    def ours(self) -> dict[str, Any]:
        """Record that `profile run` wrote into it."""
        found = self.metadata.get("millstream")
        return found if isinstance(found, dict) else {}


def read_trace(path: Path, *, rank: int = 0, max_events: int = MAX_EVENTS) -> Trace:
    """Read a trace. `rank` is for traces that do not say theirs."""
    file = NsightFile(path) if _begins_with(path, MAGIC) else TraceFile(path, EVENTS, mended)
    filling = _Filling(max_events)
    for block in file.blocks():
        filling.add(block)
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


@dataclass
class _WorkColumns:
    of: array[int] = field(default_factory=lambda: array("i"))
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
        self.columns = _Columns()
        self.work = _WorkColumns()
        self.memory = _MemoryColumns()
        self.names: dict[str, int] = {}
        self.known: dict[tuple[str, str], tuple[Kind, int]] = {}
        """Kind and name's number, by category and name."""
        self.tracks: dict[tuple[str, str], int] = {}
        self.by_thread: dict[tuple[int | str | None, int | str | None], int] = {}
        self.open: dict[int, list[TraceEvent]] = {}
        self.num_open = 0
        self.left_out = 0
        self.broken = 0
        self.foreign: set[str] = set()

    def add(self, events: Iterable[TraceEvent]) -> None:
        for event in events:
            phase = event.ph
            if phase == "X":
                self._slice(event, event.ts, event.dur)
            elif phase == "i" and event.name == "[memory]":
                self._memory(event)
            elif phase in ("B", "E"):
                self._half(event, phase)

    def _slice(self, event: TraceEvent, begin: float, length: float) -> None:
        category = event.cat
        args = event.args
        columns = self.columns
        if category.lower() in _SKIPPED or (
            category == "python_function" and -LATEST_US < length < SHORT_FRAME_US
        ):
            return
        if not (-LATEST_US < begin < LATEST_US and 0 <= length < LATEST_US):
            self.broken += 1
            return
        if len(columns.begin) >= self.max_events:
            self.left_out += 1
            return
        kind, name = self.known.get((category, event.name)) or self._known(category, event.name)
        if kind is Kind.EXCHANGE and is_all_to_all(args.collective):
            kind = Kind.COLLECTIVE
        flops, moved = op_cost(event.name, args) if kind is Kind.OP else (0.0, _size(args))
        if moved or flops:
            self._work(flops, moved)
        columns.begin.append(begin)
        columns.length.append(length)
        columns.kind.append(kind)
        columns.name.append(name)
        columns.track.append(self._track(event))
        columns.link.append(_number(args.correlation))
        columns.origin.append(_number(args.older_origin if args.origin is None else args.origin))

    def _work(self, flops: float, moved: float) -> None:
        """Add the work of the next event."""
        self.work.of.append(len(self.columns.begin))
        self.work.flops.append(flops)
        self.work.moved.append(moved)

    def _half(self, event: TraceEvent, phase: str) -> None:
        """Take one half of a slice written Chrome's other way: its begin, or its end, on a thread."""
        stack = self.open.setdefault(self._track(event), [])
        if not -LATEST_US < event.ts < LATEST_US:
            self.broken += 1
        elif phase == "B" and self.num_open < MAX_OPEN:
            stack.append(event.detached())
            self.num_open += 1
        elif phase == "E" and stack:
            begun = stack.pop()
            self.num_open -= 1
            self._slice(begun, begun.ts, event.ts - begun.ts)
        else:
            self.broken += 1

    def _memory(self, event: TraceEvent) -> None:
        if len(self.memory.at) >= self.max_events:
            self.left_out += 1
            return
        args = event.args
        columns = self.memory
        if args.change is None or not -LATEST_US < event.ts < LATEST_US:
            self.broken += 1
            return
        columns.at.append(event.ts)
        columns.change.append(_number(args.change, 0))
        columns.allocated.append(_number(args.allocated, 0))
        columns.reserved.append(_number(args.reserved, 0))
        columns.address.append(_number(args.address))
        columns.track.append(self._track(event))
        columns.device.append(max(-1, min(_number(args.device), 1 << 16)))

    def _known(self, category: str, name: str) -> tuple[Kind, int]:
        """Return the kind of such events, and their name's number."""
        if category.lower() in FOREIGN:
            self.foreign.add(category)
        found = kind_of(category, name), self._name(name)
        if len(self.known) < MAX_NAMES:
            self.known[category, name] = found
        return found

    def _name(self, name: str) -> int:
        known = self.names.get(name)
        if known is not None:
            return known
        return self.names.setdefault(name if len(self.names) < MAX_NAMES else OTHERS, len(self.names))

    def _track(self, event: TraceEvent) -> int:
        found = self.by_thread.get((event.pid, event.tid))
        if found is None:
            found = self.tracks.setdefault((str(event.pid), str(event.tid)), len(self.tracks))
            if len(self.by_thread) < MAX_NAMES:
                self.by_thread[event.pid, event.tid] = found
        return found

    def trace(self, path: Path, file: TraceFile[TraceEvent] | NsightFile, rank: int) -> Trace:
        columns = {name: _numpy(values) for name, values in vars(self.columns).items()}
        columns["link"], columns["origin"] = _narrow(columns["link"]), _narrow(columns["origin"])
        names = list(self.names)
        columns["kind"] = correct_kinds(
            columns["kind"], columns["begin"], columns["length"], columns["link"], names
        )
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
            events=Events(
                work=EventWork(**{name: _numpy(values) for name, values in vars(self.work).items()}),
                **columns,
            ),
            memory=MemoryEvents(
                **{name: values[device == accelerator][order] for name, values in memory.items()}
            ),
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
        return False  # the reader says why


def _numpy(values: Any) -> NDArray[Any]:
    """View the values as an array, without a copy."""
    return np.frombuffer(values, dtype=values.typecode) if len(values) else np.empty(0, dtype=values.typecode)


def _narrow(ids: NDArray[np.int64]) -> Ids:
    """Return the ids in 32 bits, if all of them fit."""
    fit = ids.min(initial=0) >= -(2**31) and ids.max(initial=0) < 2**31
    return ids.astype(np.int32) if fit else ids


def _number(value: Any, otherwise: int = -1) -> int:
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else otherwise


def _size(args: Arguments) -> float:
    """Return the bytes of a copy, or of a collective's message."""
    size = _number(args.bytes)
    elements = _number(args.elements)
    if size >= 0:
        return float(size)
    if elements < 0:
        return input_bytes(args)
    dtype = str(args.dtype).lower()
    return float(
        elements * (2 if "16" in dtype or "half" in dtype else 1 if "8" in dtype or "byte" in dtype else 4)
    )


def _rank(metadata: dict[str, Any], otherwise: int) -> int:
    for place in ("millstream", "distributedInfo"):  # torch counts the ranks of a mesh without its front
        found = metadata.get(place)
        if isinstance(found, dict) and isinstance(found.get("rank"), int):
            return int(found["rank"])
    return otherwise
