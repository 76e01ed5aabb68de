"""Share of the ceilings that whole phases reached, where their kernels say nothing: inside a CUDA graph, or
launched by no operator.

A phase's kernels are those that run inside its notes on the device, on the same stream. What it must compute
is the planner's count, of the plain network: walks between matmuls are not in it, and a path that knows a
shorter way, as the fast decoder does where it doubles pictures, reaches a little more by it than its kernels
did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millstream.core.chunk_work import Part
from millstream.core.trace import Work, parse_label
from millstream.planner.hardware import Rates
from millstream.profiler.anatomy import Anatomy
from millstream.profiler.intervals import Floats
from millstream.profiler.kinds import Kind
from millstream.profiler.reach.ceilings import peak
from millstream.profiler.reach.told_work import phase_parts

FEW_SHAPES = 0.5
"""Share of a phase's time with known shapes; from here on its kernels are judged by their own shapes."""
IMPOSSIBLE = 1.25
"""Multiple of the ceilings; a phase above it was counted wrongly, or ran on another device."""
ROUNDING_US = 0.01
Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseReach:
    """One phase over all its chunks in the trace."""

    name: str
    kernels: int
    ms: float
    """Time of its kernels."""
    flops: float
    moved: float
    compute_ms: float
    """Part of its floor that is bound by operations."""
    memory_ms: float
    """Part of its floor that is bound by bytes."""

    @property
    def floor_ms(self) -> float:
        return self.compute_ms + self.memory_ms

    @property
    def is_compute(self) -> bool:
        """True if most of its floor is bound by operations, not bytes."""
        return self.compute_ms >= self.memory_ms

    @property
    def reached(self) -> float:
        """Share of the ceilings that it reaches, each part against its own."""
        return min(1.0, self.floor_ms / self.ms)

    @property
    def tflops(self) -> float:
        return self.flops / self.ms / 1e9

    @property
    def gb_s(self) -> float:
        return self.moved / self.ms / 1e6


def counted_phases(anatomy: Anatomy, known: Mask, rates: Rates | None) -> tuple[list[PhaseReach], Mask]:
    """Return the phases that have to be counted as wholes, and a mask of the rank's kernels that belong to
    them; `known` marks the kernels whose shapes are known."""
    length = anatomy.trace.events.length[anatomy.workers] / 1e3
    taken = np.zeros(len(length), bool)
    found: list[PhaseReach] = []
    if rates is None or not anatomy.has_device:
        return found, taken
    parts = phase_parts(anatomy.trace.ours)
    for name, (chunks, notes) in _notes(anatomy, parts).items():
        inside = _inside(anatomy, notes)
        ms = float(length[inside].sum())
        told = float(length[inside & known].sum())
        if ms <= 0 or told >= FEW_SHAPES * ms:
            continue
        reach = _reach(name, int(inside.sum()), ms, [part.times(chunks) for part in parts[name]], rates)
        if reach.floor_ms <= IMPOSSIBLE * ms:
            found.append(reach)
            taken |= inside
    return found, taken


def _notes(anatomy: Anatomy, wanted: Mapping[str, Sequence[Part]]) -> dict[str, tuple[int, NDArray[np.intp]]]:
    """Return for each phase of ours the number of chunks that have it, and its notes on the device, in order
    of time."""
    events = anatomy.trace.events
    chunks: dict[str, set[Work]] = defaultdict(set)
    notes: dict[str, list[int]] = defaultdict(list)
    labels = {index: parse_label(name) for index, name in enumerate(anatomy.trace.names)} if wanted else {}
    for note in events.of(Kind.DEVICE_NOTE):
        label = labels.get(int(events.name[note]))
        if label is not None and label[0] in wanted:
            chunks[label[0]].add(label[1])
            notes[label[0]].append(int(note))
    in_order = {
        name: np.array(sorted(found, key=lambda note: events.begin[note])) for name, found in notes.items()
    }
    return {name: (len(chunks[name]), in_order[name]) for name in wanted if name in in_order}


def _inside(anatomy: Anatomy, notes: NDArray[np.intp]) -> Mask:
    """Return a mask of the rank's kernels that ran inside one of the notes, on the same stream."""
    events = anatomy.trace.events
    workers = anatomy.workers
    inside = np.zeros(len(workers), bool)
    for track in np.unique(events.track[notes]):
        own = notes[events.track[notes] == track]
        begins: Floats = events.begin[own] - ROUNDING_US
        at = np.searchsorted(begins, events.begin[workers], side="right") - 1
        within = (at >= 0) & (events.ends(workers) <= events.ends(own)[at] + ROUNDING_US)
        inside |= within & (events.track[workers] == track)
    return inside


def _reach(name: str, kernels: int, ms: float, parts: Sequence[Part], rates: Rates) -> PhaseReach:
    held = {True: 0.0, False: 0.0}
    for part in parts:
        by_flops = part.flops / peak(rates, part.family, eight_bit=part.eight_bit) / 1e9
        by_bytes = part.moved / rates.bandwidth_tb_s / 1e9
        held[by_flops >= by_bytes] += max(by_flops, by_bytes)
    flops = sum(part.flops for part in parts)
    moved = sum(part.moved for part in parts)
    return PhaseReach(
        name=name,
        kernels=kernels,
        ms=ms,
        flops=flops,
        moved=moved,
        compute_ms=held[True],
        memory_ms=held[False],
    )
