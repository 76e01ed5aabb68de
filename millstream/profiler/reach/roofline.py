"""Share of a device's ceilings that a rank's work reached: flops and bytes of kernels against measured
ceilings.

Kernels are known by the shapes of their operators. Where a phase of ours has too few of them, it is known as
a whole, by what it must compute (`phase_reach.py`). Work that stands in no relation to either is counted as
unknown, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from millstream.planner.hardware import Device, Rates
from millstream.profiler.anatomy import Anatomy
from millstream.profiler.costs import OWN_WORK
from millstream.profiler.intervals import Floats
from millstream.profiler.kinds import BETWEEN, COMPUTING, FAMILIES, Kind, family_of
from millstream.profiler.reach.ceilings import peak
from millstream.profiler.reach.phase_reach import Mask, PhaseReach, counted_phases
from millstream.profiler.trace import Trace

NEAR = 0.6
"""Share of a measured ceiling from which on that ceiling is what bounds the kernel."""
_BEGINNINGS = re.compile(r"^void |at::native::|\(anonymous namespace\)::|cutlass::")
TOP = 12
"""Number of kernels that are listed by name."""
IMPOSSIBLE = 2.5
"""Multiple of a ceiling: caches give more than memory does, and a tensor that goes in twice counts twice. A
kernel above it did not do what its shapes say."""
NO_DEVICE_TB_S = 20.0
NO_DEVICE_TFLOPS = 20_000.0
"""Rates above those of any device, for traces of unknown ones."""
Codes = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilyTime:
    """Kernels of one family, together."""

    family: str
    kernels: int
    ms: float
    known_ms: float
    """Time of the kernels whose shapes the trace has."""
    flops: float
    moved: float

    @property
    def known_share(self) -> float:
        return self.known_ms / self.ms if self.ms else 0.0

    @property
    def tflops(self) -> float:
        return self.flops / self.known_ms / 1e9 if self.known_ms else 0.0

    @property
    def gb_s(self) -> float:
        return self.moved / self.known_ms / 1e6 if self.known_ms else 0.0

    def reached(self, rates: Rates) -> tuple[float, float]:
        """Return the shares of the family's peak and of the memory's bandwidth that it reaches."""
        return self.tflops / peak(rates, self.family), self.gb_s / 1e3 / rates.bandwidth_tb_s

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.moved if self.moved else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelTime:
    """All calls of one kernel."""

    name: str
    family: str
    calls: int
    ms: float
    share: float
    """Share of all work."""
    tflops: float
    gb_s: float
    """Both rates are of the calls whose shapes are known; 0 where none are."""
    reached: float | None
    """Share of the nearer ceiling, if shapes and device are known."""

    @property
    def short(self) -> str:
        """Name without the prefixes that many names share."""
        return _BEGINNINGS.sub("", self.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Roofline:
    device: Device | None
    families: tuple[FamilyTime, ...]
    top: tuple[KernelTime, ...]
    """The kernels that take longest."""
    phases: tuple[PhaseReach, ...]
    """Phases that are known as wholes: their kernels count here and not by their shapes."""
    compute_ms: float
    """Time of work near the peak of its family."""
    memory_ms: float
    """Time of work under the ridge, near the memory's bandwidth."""
    floor_ms: float
    """Time that all known work would take at the ceilings."""
    shaped_ms: float
    """Time of work that is known by its shapes."""
    counted_ms: float
    """Time of work that is known by its phases."""
    graphed_ms: float
    """Time of unknown work that CUDA graphs launched: it belongs to no operator, so it has no shapes."""
    work_ms: float

    @property
    def known_ms(self) -> float:
        return self.shaped_ms + self.counted_ms

    @property
    def reached(self) -> float:
        """Share of the ceilings, over all known work."""
        return min(1.0, self.floor_ms / self.known_ms) if self.known_ms else 0.0


def roofline(anatomy: Anatomy, device: Device | None) -> Roofline:
    kernels = _Kernels.of(anatomy).believable(device)
    phases, taken = counted_phases(anatomy, kernels.known, device.rates if device is not None else None)
    floor, by_flops, by_bytes = kernels.floors(device)
    shaped = kernels.known & ~taken
    near = shaped & (floor >= NEAR * kernels.length)
    near_phases = [phase for phase in phases if phase.reached >= NEAR]
    near_ms = {
        is_compute: sum(p.ms for p in near_phases if p.is_compute is is_compute)
        for is_compute in (True, False)
    }
    return Roofline(
        device=device,
        families=tuple(kernels.together(family) for family in np.unique(kernels.family)),
        top=tuple(kernels.longest(device)),
        phases=tuple(phases),
        compute_ms=_ms(kernels.length[near & (by_flops >= by_bytes)]) + near_ms[True],
        memory_ms=_ms(kernels.length[near & (by_flops < by_bytes)]) + near_ms[False],
        floor_ms=_ms(floor[shaped]) + sum(min(phase.floor_ms, phase.ms) for phase in phases),
        shaped_ms=_ms(kernels.length[shaped]),
        counted_ms=sum(phase.ms for phase in phases),
        graphed_ms=_ms(kernels.length[~kernels.known & ~taken & _in_graphs(anatomy)]),
        work_ms=_ms(kernels.length),
    )


@dataclass(frozen=True)
class _Kernels:
    """One row a kernel; times in microseconds."""

    names: list[str]
    name: NDArray[np.int32]
    family: Codes
    """Index into `FAMILIES`."""
    length: Floats
    flops: Floats
    moved: Floats

    def __post_init__(self) -> None:
        lengths = {len(self.family), len(self.length), len(self.flops), len(self.moved)}
        assert len(lengths) == 1, f"columns of {sorted(lengths)} kernels"

    @classmethod
    def of(cls, anatomy: Anatomy) -> _Kernels:
        events = anatomy.trace.events
        workers = anatomy.workers
        names = anatomy.trace.names
        family = _families(anatomy)
        if anatomy.has_device:
            computes = np.array([each in COMPUTING for each in FAMILIES])
            flops, moved = _from_operators(anatomy.trace, workers, computes[family])
        else:
            flops, moved = events.work.at(workers)
        return cls(names, events.name[workers], family, events.length[workers], flops, moved)

    def believable(self, device: Device | None) -> _Kernels:
        """Return the kernels, with flops and bytes 0 where no device could have done the work in the time: an
        operator that reads a part of its input, as an index does."""
        if device is None:
            by_flops = self.flops / (NO_DEVICE_TFLOPS * 1e6)
            by_bytes = self.moved / (NO_DEVICE_TB_S * 1e6)
        else:
            _, by_flops, by_bytes = self.floors(device)
        kept = np.maximum(by_flops, by_bytes) <= IMPOSSIBLE * self.length
        return replace(self, flops=np.where(kept, self.flops, 0.0), moved=np.where(kept, self.moved, 0.0))

    def longest(self, device: Device | None) -> Iterator[KernelTime]:
        floor, _, _ = self.floors(device)
        spent = np.bincount(self.name, weights=self.length, minlength=1)
        for name in np.argsort(-spent, kind="stable")[:TOP]:
            calls = np.flatnonzero(self.name == name)
            told = calls[self.known[calls]]
            if not len(calls):
                return
            us = float(self.length[told].sum())
            yield KernelTime(
                name=self.names[name],
                family=FAMILIES[self.family[calls[0]]],
                calls=len(calls),
                ms=float(spent[name]) / 1e3,
                share=float(spent[name] / max(1e-9, self.length.sum())),
                tflops=float(self.flops[told].sum()) / us / 1e6 if us else 0.0,
                gb_s=float(self.moved[told].sum()) / us / 1e3 if us else 0.0,
                reached=float(floor[told].sum()) / us if us and device is not None else None,
            )

    @property
    def known(self) -> Mask:
        return (self.moved > 0) & (self.length > 0)

    def floors(self, device: Device | None) -> tuple[Floats, Floats, Floats]:
        """Return the least time of each kernel, and the times that its flops and its bytes alone would
        take."""
        if device is None:
            nothing = np.zeros(len(self.length))
            return nothing, nothing, nothing
        peaks = np.array([peak(device.rates, family) for family in FAMILIES])
        by_flops = self.flops / np.maximum(peaks * 1e6, 1e-9)[self.family]
        by_bytes = self.moved / (device.rates.bandwidth_tb_s * 1e6)
        floor = np.where(self.known, np.minimum(np.maximum(by_flops, by_bytes), self.length), 0.0)
        return floor, by_flops, by_bytes

    def together(self, family: int) -> FamilyTime:
        chosen = self.family == family
        told = chosen & self.known
        return FamilyTime(
            family=FAMILIES[family],
            kernels=int(chosen.sum()),
            ms=_ms(self.length[chosen]),
            known_ms=_ms(self.length[told]),
            flops=float(self.flops[told].sum()),
            moved=float(self.moved[told].sum()),
        )


def _families(anatomy: Anatomy) -> Codes:
    """Return each kernel's family by its own name; where that tells nothing, by its operator's name, if the
    kernel is at least half of the operator's time."""
    trace = anatomy.trace
    workers = anatomy.workers
    events = trace.events
    by_name = np.array([FAMILIES.index(family_of(name)) for name in trace.names], np.uint8)
    found = by_name[events.name[workers]]
    ops = events.of(Kind.OP)
    ops = ops[events.origin[ops] >= 0]
    if not anatomy.has_device or not len(ops) or not len(workers):
        return found
    ops = ops[np.argsort(events.origin[ops], kind="stable")]
    origin = events.origin[workers]
    at = np.minimum(np.searchsorted(events.origin[ops], origin), len(ops) - 1)
    tied = events.origin[ops][at] == origin
    together = np.bincount(at, weights=np.where(tied, events.length[workers], 0.0), minlength=len(ops))
    own_work = np.array([name in OWN_WORK for name in trace.names])
    op = events.name[ops][at]
    told = (
        tied
        & (events.length[workers] >= 0.5 * together[at])
        & (found == FAMILIES.index(BETWEEN))
        & own_work[op]
    )
    families: Codes = np.where(told, by_name[op], found)
    return families


def _from_operators(trace: Trace, kernels: NDArray[np.intp], computes: Mask) -> tuple[Floats, Floats]:
    """Return flops and bytes of each kernel. An operator's bytes are divided among its kernels by their
    lengths; its flops among those that compute, if any do."""
    events = trace.events
    ops = events.of(Kind.OP)
    ops = ops[events.origin[ops] >= 0]
    flops, moved = events.work.at(ops)
    ops = ops[moved > 0]
    flops = flops[moved > 0]
    moved = moved[moved > 0]
    if not len(ops) or not len(kernels):
        return np.zeros(len(kernels)), np.zeros(len(kernels))
    order = np.argsort(events.origin[ops], kind="stable")
    ops = ops[order]
    flops = flops[order]
    moved = moved[order]
    origin = events.origin[kernels]
    at = np.minimum(np.searchsorted(events.origin[ops], origin), len(ops) - 1)
    length = np.where(events.origin[ops][at] == origin, events.length[kernels], 0.0)
    in_all = np.bincount(at, weights=length, minlength=len(ops))[at]
    in_computing = np.bincount(at, weights=np.where(computes, length, 0.0), minlength=len(ops))[at]
    share = length / np.maximum(in_all, 1e-9)
    of_flops = np.where(
        in_computing > 0, np.where(computes, length, 0.0) / np.maximum(in_computing, 1e-9), share
    )
    return of_flops * flops[at], share * moved[at]


def _in_graphs(anatomy: Anatomy) -> Mask:
    events = anatomy.trace.events
    launched: Mask = np.isin(events.link[anatomy.workers], events.link[events.of(Kind.GRAPH)])
    return launched & (events.link[anatomy.workers] >= 0)


def _ms(lengths: Floats) -> float:
    return float(lengths.sum()) / 1e3
