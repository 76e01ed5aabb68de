"""What was measured of a run, for rules to judge by: numbers and words of our own, no events and hardly a name.

`measure.py` fills it from traces; msgspec writes and reads it, so that a run can be judged again without its traces
(`benchmarks/strangers.py`). Shares are of the rank's wall where nothing else is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

SHORT_US = 10.0
"""A kernel that takes less ends before the host can launch the next."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordFacts:
    """How the trace was taken: whether it can be believed."""

    events: int
    broken: int
    left_out: int
    unclosed: bool
    foreign: tuple[str, ...]
    """Categories of devices whose events are not known by name."""
    calls_device: bool
    """A device is named, or calls to one are in the trace."""
    launches: int
    """That say what they launch."""
    launches_lost: float
    """Of these, with nothing on the device."""
    graphs: int
    kernels_per_graph: float
    captures: bool
    """Graphs are captured in the trace."""
    doubled: float
    """Of the kernels' time, in which two of one stream overlap."""
    early: float
    """Of the kernels, those that start before they are launched."""
    profiler: float
    """The profiler's own time."""
    slower: float
    """Times as long under the profiler as without, where that is known; else 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostFacts:
    """What the host did."""

    waiting: float
    """It stands still until the device has caught up."""
    blocked: float
    """The same, with operators that do little else."""
    waits: int
    """Calls that make it wait."""
    allocations: int
    """Calls to the driver for memory."""
    calls_per_ms: float
    """Launches; operators where there is no device."""
    idle: float
    """Of the device, whatever the host did meanwhile."""
    idle_long: float
    """Of that, in gaps that no launch would fill."""
    input_from: str
    """workers, process or stacks; empty where nobody loads."""
    prepares: str = ""
    """What prepares input, where stacks say so."""
    reserves: float = 0.0
    """Memory that is reserved, times what is allocated; 0 where neither is known."""
    retries: int = 0
    """Allocations that had to be tried again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TalkFacts:
    """Between ranks."""

    total: float
    waited: float
    """In collectives, for others to come."""
    sent: float
    """In exchanges, had nobody waited."""
    decoding: float
    """Latents becoming pictures."""
    working: float
    """Of that, with the device busy."""
    stands: float
    """It waits for a message, or idles."""
    stands_for_front: float
    """Of that, while the front decodes; 0 where clocks differ or there is no front."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelClass:
    """Kernels of one family; rates are of those whose shapes are known."""

    kernels: int
    ms: float
    tflops: float
    gb_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkFacts:
    """What the device worked on, in milliseconds of its kernels."""

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
    """For whoever reads the facts; no rule does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFacts:
    rank: int
    wall_ms: float
    has_device: bool
    shares: dict[str, float]
    """By cause; they add up to 1."""
    kernels: int
    short: float
    """Of the kernels, those under `SHORT_US`."""
    record: RecordFacts
    host: HostFacts
    talk: TalkFacts
    work: WorkFacts | None
    """Of the mesh's ranks."""


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
    """Of the matched, those to which the straggler came last."""

    @property
    def mesh(self) -> tuple[RankFacts, ...]:
        return tuple(rank for rank in self.ranks if rank.rank != self.front)

    @property
    def even(self) -> tuple[RankFacts, ...]:
        """Without the slow rank: what makes it slow is what the others wait for, and counts once, as waiting."""
        return tuple(rank for rank in self.mesh if rank.rank != self.straggler)


def mean(ranks: Sequence[RankFacts], measure: Callable[[RankFacts], float]) -> float:
    return fmean(measure(rank) for rank in ranks)
