"""Measurements of a run, for rules to judge by: our own numbers and terms, no events and hardly a name.

`measure.py` fills it from traces; msgspec writes and reads it, so that a run can be judged again without its
traces (`benchmarks/strangers.py`). Shares are of the rank's wall where nothing else is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

SHORT_US = 10.0
"""A kernel that takes less ends before the host can launch the next."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordFacts:
    """Recording of the trace: whether it can be believed."""

    events: int
    broken: int
    left_out: int
    unclosed: bool
    foreign: tuple[str, ...]
    """Categories of devices whose events are not known by name."""
    calls_device: bool
    """True if a device is named, or calls to one are in the trace."""
    launches: int
    """Launches that say what they launch."""
    launches_lost: float
    """Share of these launches with nothing on the device."""
    graphs: int
    kernels_per_graph: float
    captures: bool
    """True if graphs are captured in the trace."""
    doubled: float
    """Share of the kernels' time in which two of one stream overlap."""
    early: float
    """Share of the kernels that start before they are launched."""
    profiler: float
    """Share of the profiler's own time."""
    slower: float
    """Time under the profiler as a multiple of that without, where known; else 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostFacts:
    """Activity of the host."""

    waiting: float
    """Share in which the host stands still until the device has caught up."""
    blocked: float
    """Share of waiting, with operators that do little else."""
    waits: int
    """Number of calls that make it wait."""
    allocations: int
    """Number of calls to the driver for memory."""
    calls_per_ms: float
    """Launches per millisecond; operators where there is no device."""
    idle: float
    """Idle share of the device, whatever the host did meanwhile."""
    idle_long: float
    """Idle share in gaps that no launch would fill."""
    input_from: str
    """workers, process or stacks; empty where no input is loaded."""
    prepares: str = ""
    """Frame that prepares input, where stacks show it."""
    reserves: float = 0.0
    """Reserved memory as a multiple of the allocated; 0 where neither is known."""
    retries: int = 0
    """Allocations that had to be tried again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TalkFacts:
    """Communication between ranks."""

    total: float
    waited: float
    """Share spent in collectives, waiting for others to come."""
    sent: float
    """Share that exchanges would take without waiting."""
    decoding: float
    """Share of decoding latents to frames."""
    working: float
    """Share of decoding with the device busy."""
    stands: float
    """Share in which the rank waits for a message, or idles."""
    stands_for_front: float
    """Share in which it waits or idles while the front decodes; 0 where clocks differ or there is no
    front."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelClass:
    """Kernels of one family; rates are of those whose shapes are known."""

    kernels: int
    ms: float
    tflops: float
    gb_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkFacts:
    """Work of the device, in milliseconds of its kernels."""

    knows_device: bool
    work_ms: float
    shaped_ms: float
    counted_ms: float
    graphed_ms: float
    compute_ms: float
    memory_ms: float
    floor_ms: float
    """As `reach/roofline.py` has them."""
    near_peak: dict[str, float]
    near_memory: dict[str, float]
    """Phases that are known as wholes: what they reach of the ceiling that holds them up."""
    classes: dict[str, KernelClass]
    """Kernels by family, for readers of the facts; no rule uses them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFacts:
    rank: int
    wall_ms: float
    has_device: bool
    shares: dict[str, float]
    """Shares by cause; they add up to 1."""
    kernels: int
    short: float
    """Share of the kernels under `SHORT_US`."""
    record: RecordFacts
    host: HostFacts
    talk: TalkFacts
    work: WorkFacts | None
    """Facts on its work; only for ranks of the mesh."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    ranks: tuple[RankFacts, ...]
    front: int | None
    same_clock: bool
    matched: int
    unmatched: int
    """Collectives that all ranks saw, and that some did."""
    straggler: int | None
    comes_last: float
    """Share of the matched collectives to which the straggler came last."""

    @property
    def mesh(self) -> tuple[RankFacts, ...]:
        return tuple(rank for rank in self.ranks if rank.rank != self.front)

    @property
    def even(self) -> tuple[RankFacts, ...]:
        """Without the slow rank: what makes it slow is what the others wait for, and counts once, as
        waiting."""
        return tuple(rank for rank in self.mesh if rank.rank != self.straggler)


def mean(ranks: Sequence[RankFacts], measure: Callable[[RankFacts], float]) -> float:
    return fmean(measure(rank) for rank in ranks)
