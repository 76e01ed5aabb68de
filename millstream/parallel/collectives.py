"""Collectives that say what they are: on one explicit group, recorded, and refused before the backend where
they do not belong.

Ranks must call the same collectives in the same order or they wait for each other for ever, so there is one
way to call one, a method of `RankGroup`. Inside a compiled region the functional form is used, which the
compiler sees; in eager the in-place one, which copies nothing. Where the backend knows no GPU (gloo: ranks
that share one), tensors on it pass through pinned host memory. What a rank called is on record
(`parallel/collective_calls.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as functional

from millstream.core.errors import CollectiveRefused
from millstream.models.fast.spread import Record, Run
from millstream.parallel.collective_calls import CollectiveCall, CollectiveRecord, Kind, Purpose

GLOO = "gloo"
NCCL = "cpu:gloo,cuda:nccl"
"""Backends that ranks communicate through: host memory alone, or devices too."""

ALLOWED: dict[Purpose, frozenset[Kind]] = {
    "start-up": frozenset({"gather"}),
    "mesh": frozenset({"sum", "scatter", "exchange", "collect", "broadcast", "gather", "send", "receive"}),
    "training": frozenset({"sum", "scatter", "exchange", "collect", "broadcast", "gather"}),
}
"""Collectives that a group of each purpose may call. The world is for checks at the start."""

INSIDE: frozenset[Kind] = frozenset({"sum", "scatter", "exchange", "collect"})
"""Collectives that a block may call; all others belong between model calls."""

DEVICES = frozenset({"cpu", "cuda"})
"""Where a tensor may lie that a backend is given."""

_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
"""Their names since torch 2.13, which warns of the older ones."""


@dataclass(slots=True)
class PendingCollective:
    """A collective that has begun. Its value must not be read, nor what was sent be changed, before
    `wait`."""

    value: Tensor
    work: dist.Work | None = None
    called: CollectiveCall | None = None
    sent: Tensor | None = None
    """Held until it has left."""
    onto: Tensor | None = None
    """Where the value goes from host memory."""
    traced: bool = False
    """Begun while compiling: the wait becomes a node of the graph."""

    def wait(self) -> Tensor:
        if self.traced:
            return _waited(self.value)
        if self.work is not None:
            self.work.wait()
        if self.called is not None:
            self.called.done = True
        return self.value if self.onto is None else self.onto.copy_(self.value)


class GroupRecording:
    """A recorded call with collectives inside. As long as it is held, their communicator must stay: a process
    whose graph has outlived it waits for ever when it ends."""

    def __init__(self, replay: Run) -> None:
        self._replay = replay

    def __call__(self) -> object:
        return self._replay()


@dataclass(slots=True, eq=False)
class RankGroup:
    """The ranks of one group, and the only way to communicate with them."""

    name: str
    purpose: Purpose
    ranks: tuple[int, ...]
    """Their numbers in the world; places count along them."""
    rank: int
    """This process's number in the world."""
    handle: dist.ProcessGroup | None
    """None for a group of one, where every collective is then nothing, and for one that this rank is not
    in."""
    record: CollectiveRecord = field(default_factory=CollectiveRecord)
    through_host: bool = False
    """True if its backend takes tensors in host memory only."""
    warm: bool = False
    """True once a collective was called on it: then its communicator is there, and calls may be recorded over
    it."""
    recordings: WeakSet[GroupRecording] = field(default_factory=WeakSet)
    """Recorded calls with its collectives inside that are still held."""
    _inside: bool = False

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def is_alone(self) -> bool:
        """True if the group has no other rank, and no backend."""
        return self.size == 1 and self.handle is None

    def recorder(self, record: Record) -> Record:
        """Return `record` for calls with collectives of this group inside. A communicator is created by the
        first collective, and that cannot be recorded."""

        def recorded(run: Run) -> GroupRecording:
            assert self.warm or self.is_alone, (
                f"group {self.name} was never spoken on: a recording cannot be its first call"
            )
            recording = GroupRecording(record(run))
            self.recordings.add(recording)
            return recording

        return recorded

    @property
    def place(self) -> int:
        assert self.rank in self.ranks, f"rank {self.rank} is not in group {self.name} {self.ranks}"
        return self.ranks.index(self.rank)

    @contextmanager
    def inside_blocks(self) -> Iterator[None]:
        """Allow only the collectives that blocks need while they run, whatever is added to one later."""
        outer = self._inside
        self._inside = True
        try:
            yield
        finally:
            self._inside = outer

    def sum(self, x: Tensor, what: str) -> Tensor:
        """Return the sum over the group. `x` may be overwritten."""
        self._refuse("sum", what, x)
        if self.is_alone:
            return x
        if torch.compiler.is_compiling():
            return _waited(functional.all_reduce(x, "sum", self._backend))
        wire = self._on_wire(x)
        with self._begin("sum", what, x):
            dist.all_reduce(wire, group=self._backend)
        return self._back(wire, x)

    def sum_for_parts(self, x: Tensor, what: str) -> Tensor:
        """Return the sum over the group, from which each rank computes its own part of what follows; it
        matters to gradients alone."""
        return self.sum(x, what)

    def start_sum(self, x: Tensor, what: str) -> PendingCollective:
        """Begin to sum over the group, in the place of `x`."""
        self._refuse("sum", what, x)
        if self.is_alone:
            return PendingCollective(x)
        called = self._begin("sum", what, x)
        wire = self._on_wire(x)
        return PendingCollective(
            wire, dist.all_reduce(wire, group=self._backend, async_op=True), called, onto=_other(x, wire)
        )

    def start_scatter(self, x_N: Tensor, what: str) -> PendingCollective:
        """Begin to sum over the group; each place gets its own part of the sum, in order."""
        self._refuse("scatter", what, x_N)
        if self.is_alone:
            return PendingCollective(x_N)
        assert x_N.ndim == 1, f"numbers end to end are scattered, got {tuple(x_N.shape)}"
        assert len(x_N) % self.size == 0, f"{len(x_N)} numbers do not divide over {self.size} ranks"
        called = self._begin("scatter", what, x_N)
        wire = self._on_wire(x_N)
        part = wire.new_empty(len(wire) // self.size)
        work = _reduce_scatter(part, wire, group=self._backend, async_op=True)
        onto = None if wire is x_N else x_N.new_empty(part.shape)
        return PendingCollective(part, work, called, sent=wire, onto=onto)

    def sum_rows(self, x_LD: Tensor, what: str) -> Tensor:
        """Return this place's own rows of the sum over the group; places have theirs in order."""
        return self.start_sum_rows(x_LD, what).wait().unflatten(0, (-1, *x_LD.shape[1:]))

    def start_sum_rows(self, x_LD: Tensor, what: str) -> PendingCollective:
        """Begin to sum over the group, for this place's own rows; the value is the rows end to end."""
        assert len(x_LD) % self.size == 0, f"{len(x_LD)} rows do not divide over {self.size} ranks"
        return self.start_scatter(x_LD.flatten(), what)

    def collect_rows(self, x_SD: Tensor, what: str) -> Tensor:
        """Return the rows of all ranks, one place's after the other's."""
        whole_LD = x_SD.new_empty(self.size * len(x_SD), *x_SD.shape[1:])
        self.collect_into(whole_LD, x_SD.contiguous(), what)
        return whole_LD

    def collect_into(self, whole_N: Tensor, part: Tensor, what: str) -> None:
        """Write the parts of all ranks, end to end in the order of places."""
        self._refuse("collect", what, part)
        if self.is_alone:
            whole_N.copy_(part)
            return
        assert len(whole_N) == self.size * len(part), f"{self.size} parts of {len(part)} for {len(whole_N)}"
        wire = self._on_wire(whole_N)
        mine = self._on_wire(part)
        with self._begin("collect", what, part):
            _all_gather(_plain_bytes(wire), _plain_bytes(mine), group=self._backend)
        self._back(wire, whole_N)

    def meet(self, kind: Kind, what: str, x: Tensor, barrier: Callable[[], None]) -> None:
        """Call a collective in memory that all ranks reach: `x` is written, and may be read by all after the
        `barrier`."""
        self._refuse(kind, what, x)
        with self._begin(kind, what, x):
            barrier()

    def exchange(self, parts: Tensor, what: str) -> Tensor:
        """Send part i of the first dimension to place i; what is received lies in the order of places."""
        return self.start_exchange(parts, what).wait()

    def start_exchange(self, parts: Tensor, what: str) -> PendingCollective:
        """Begin to exchange, and go on while the parts travel."""
        self._refuse("exchange", what, parts)
        if self.is_alone:
            return PendingCollective(parts)
        assert parts.shape[0] == self.size, f"{parts.shape[0]} parts for {self.size} ranks"
        parts = parts.contiguous()
        if torch.compiler.is_compiling():
            each = [1] * self.size
            return PendingCollective(
                functional.all_to_all_single(parts, each, each, self._backend), traced=True
            )
        called = self._begin("exchange", what, parts)
        wire = self._on_wire(parts)
        received = torch.empty_like(wire)
        work = dist.all_to_all_single(received, wire, group=self._backend, async_op=True)
        return PendingCollective(
            received, work, called, sent=wire, onto=None if wire is parts else torch.empty_like(parts)
        )

    def collect(self, x: Tensor, what: str) -> Tensor:
        """Return `x` of all ranks, stacked in the order of places, [size, ...]."""
        self._refuse("collect", what, x)
        if self.is_alone:
            return x.unsqueeze(0)
        x = x.contiguous()
        if torch.compiler.is_compiling():
            return _waited(functional.all_gather_tensor(x.unsqueeze(0), 0, self._backend))
        wire = self._on_wire(x)
        found = wire.new_empty((self.size, *x.shape))
        with self._begin("collect", what, x):
            dist.all_gather(list(found.unbind(0)), wire, group=self._backend)
        return found.to(x.device)

    def broadcast(self, x: Tensor, *, source: int, what: str) -> Tensor:
        """Write `x` of the rank numbered `source` in the world over that of every rank."""
        self._refuse("broadcast", what, x)
        if self.is_alone:
            return x
        wire = self._on_wire(x)
        with self._begin("broadcast", what, x):
            dist.broadcast(wire, group_src=self.ranks.index(source), group=self._backend)
        return self._back(wire, x)

    def gather(self, item: Any, what: str) -> list[Any]:
        """Return the items of all ranks, in the order of places; any plain object, for start-up and
        checks."""
        self._refuse("gather", what)
        found: list[Any] = [item]
        if not self.is_alone:
            found *= self.size
            with self._begin("gather", what, None):
                dist.all_gather_object(found, item, group=self._backend)
        return found

    def send(self, x: Tensor, *, to: int, what: str) -> PendingCollective:
        """Begin to send to the rank numbered `to` in the world."""
        self._refuse("send", what, x, to)
        called = self._begin("send", what, x)
        wire = self._on_wire(x)
        work = dist.isend(_plain_bytes(wire), group_dst=self.ranks.index(to), group=self._backend)
        return PendingCollective(x, work, called, sent=wire)

    def receive(self, x: Tensor, *, source: int, what: str) -> PendingCollective:
        """Begin to receive into `x` from the rank numbered `source` in the world."""
        self._refuse("receive", what, x, source)
        called = self._begin("receive", what, x)
        wire = self._on_wire(x)
        work = dist.irecv(_plain_bytes(wire), group_src=self.ranks.index(source), group=self._backend)
        return PendingCollective(wire, work, called, onto=_other(x, wire))

    @property
    def _backend(self) -> dist.ProcessGroup:
        assert self.handle is not None, f"group {self.name} {self.ranks} was not made on rank {self.rank}"
        return self.handle

    def _refuse(self, kind: Kind, what: str, x: Tensor | None = None, peer: int | None = None) -> None:
        """Raise before the backend is called, where ranks would wait for each other."""
        if kind not in ALLOWED[self.purpose]:
            does = ", ".join(sorted(ALLOWED[self.purpose]))
            raise CollectiveRefused(
                f"{self._spelled(kind, what, x)}: the group is for {self.purpose} ({does})"
            )
        if self._inside and kind not in INSIDE:
            raise CollectiveRefused(
                f"{self._spelled(kind, what, x)} inside a block, which may only {', '.join(sorted(INSIDE))}"
            )
        if self.rank not in self.ranks:
            raise CollectiveRefused(f"{what}: rank {self.rank} is not in group {self.name} {self.ranks}")
        if x is not None and x.device.type not in DEVICES:
            raise CollectiveRefused(
                f"{self._spelled(kind, what, x)}: the tensor is on {x.device}, not on a CPU or GPU"
            )
        if peer is not None and (peer == self.rank or peer not in self.ranks):
            raise CollectiveRefused(
                f"{what}: rank {self.rank} has no peer {peer} in group {self.name} {self.ranks}"
            )

    def _spelled(self, kind: Kind, what: str, x: Tensor | None) -> str:
        shape = "" if x is None else f" of {list(x.shape)}"
        return f"{what}: no {kind}{shape} on group {self.name} {self.ranks}"

    def _on_wire(self, x: Tensor) -> Tensor:
        """Return what the backend is given: `x` itself, or a copy in pinned host memory."""
        if not (self.through_host and x.is_cuda):
            return x
        # Waits for the kernels that write `x`, although the memory is pinned: the backend sends from the
        # host, which knows nothing of streams.
        return torch.empty_like(x, device="cpu", pin_memory=True).copy_(x)

    def _back(self, wire: Tensor, x: Tensor) -> Tensor:
        """Return `x` with the backend's result in it."""
        return x if wire is x else x.copy_(wire)

    def _begin(self, kind: Kind, what: str, x: Tensor | None) -> CollectiveCall:
        self.warm = True
        return self.record.begin(kind, what, self, *((), "cpu") if x is None else (x.shape, x.device.type))


def _plain_bytes(x: Tensor) -> Tensor:
    """Return `x` viewed as bytes where its elements are single bytes, since a backend may not know e4m3."""
    return x.view(torch.uint8) if x.dtype.itemsize == 1 else x


def _other(x: Tensor, wire: Tensor) -> Tensor | None:
    """Return where a value goes that travelled through host memory; None for one that did not."""
    return None if wire is x else x


def _waited(x: Tensor) -> Tensor:
    """Wait as a node of the graph, in the place where the value is needed."""
    ready: Tensor = functional.wait_tensor(x)
    return ready
