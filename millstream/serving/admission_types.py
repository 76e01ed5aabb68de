"""Requests to admission, its answers and its counts. Plain data; `serving/admission.py` decides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from millstream.core.errors import ConfigError
from millstream.serving.chunk_times import Geometry
from millstream.serving.rates import RateWish
from millstream.session.pacing import Pace, RateKind


@dataclass(frozen=True, kw_only=True, slots=True)
class AdmissionConfig:
    memory_bytes: int
    """For all sessions together: what the device has beside weights and working memory."""
    share: float = 0.98
    """How much of the device may be promised, by chunk times that cover what was seen of their spread."""
    max_waiting: int = 16
    """Places in line; 0 refuses at once."""
    longest_chunk_s: float = 30.0
    """Most seconds that one chunk may take, since all other sessions wait for it."""
    margin: float = 1.0
    """Factor on the measured time of a chunk for a session that is alone, until it is measured with a viewer
    and after it was late: above 1 where encoding, viewers and other programs use the device, too."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"share must be above 0 and at most 1, got {self.share}")
        if self.memory_bytes <= 0 or self.max_waiting < 0:
            raise ConfigError(
                f"need memory and 0 or more places in line, got {self.memory_bytes} B and {self.max_waiting}"
            )
        if not 1 <= self.margin < math.inf:
            raise ConfigError(f"the margin must be 1 or more, got {self.margin:g}")
        if not 0 < self.longest_chunk_s < math.inf:
            raise ConfigError(f"the longest chunk must take more than 0 s, got {self.longest_chunk_s:g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    session_id: str
    geometry: Geometry
    first_geometry: Geometry | None = None
    """Geometry of an epoch's first chunk, where that has steps of its own."""
    pace: Pace
    """At the frame rate it asks for, or would have at most."""
    memory_bytes: int
    """Device memory it will hold; `planner/memory.py` knows the formulas."""
    rate: RateKind = "asked"
    weight: float = 1.0
    max_life_s: float | None = None
    may_wait: bool = True
    tree: str = ""
    """Name of the first session of a family: of a branch and those that it was forked from. They share what
    one of them was promised."""
    yields: bool = False
    """True if it came back after its server's death and has not yet had its own rate for a while: other
    sessions keep theirs before it does."""

    @property
    def family(self) -> str:
        return self.tree or self.session_id

    def wish(self, branches: int = 1) -> RateWish:
        """Return its wish as one of so many branches that have a place."""
        return RateWish.of(self.rate, self.pace.fps, branches=branches, yields=self.yields)


@dataclass(frozen=True, kw_only=True, slots=True)
class Admitted:
    """Its share and its bytes are reserved until it leaves."""

    session_id: str
    share: float | None
    """Share of the device; None while nothing is measured for its model."""
    fps: float
    """Frames a second it plays at for now."""
    note: str
    """Explanation of that rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Queued:
    session_id: str
    position: int
    """1 is next."""
    expected_wait_s: float | None
    """From life limits and from how long sessions stayed so far; None while neither is known."""
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    session_id: str
    reason: str
    fps: float | None = None
    """A frame rate that would be admitted now."""
    can_wait: bool = False
    """True if it would be given a place in line."""
    never: bool = False
    """Refused on an idle device too: trying again changes nothing."""


Answer = Admitted | Queued | Refused


@dataclass(frozen=True, kw_only=True, slots=True)
class AdmissionMetrics:
    admitted: int
    waiting: int
    promised: float | None
    """Share of the device; None while a session runs that nothing is measured for."""
    memory_bytes: int
    refused: int
    """Since the start."""


class Obstacle(NamedTuple):
    """Why a session cannot run, in one line with the way out, and a frame rate at which it could."""

    reason: str
    fps: float | None = None
