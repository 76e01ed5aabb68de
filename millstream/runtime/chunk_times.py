"""How long a chunk of a given geometry takes: a decayed upper quantile of what was measured, or scaled from the nearest.

The quantile is meant for promises, so it errs to the slow side. Nothing here knows sessions, and nothing grows: a
geometry keeps its last `KEPT` times, and the geometry measured longest ago makes room for a new one.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field

KEPT = 128
MAX_GEOMETRIES = 64
QUANTILE = 0.9
DECAY = 0.98
"""Weight of a measurement against the next newer one: half of what counts is in the last 35."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """What the time of a chunk depends on, as declared before anything is allocated."""

    model: str
    tokens: int
    """Of one chunk."""
    calls: int
    """Model calls a chunk: steps and commit."""
    window: int
    """Latent frames a chunk may attend to."""

    def __str__(self) -> str:
        return f"{self.tokens} tokens x {self.calls} calls"


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    seconds: float
    scaled_from: Geometry | None = None
    """The geometry that was measured, where this one was not."""


@dataclass(slots=True)
class _Measured:
    times: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    upper: float = 0.0


class ChunkTimes:
    def __init__(self) -> None:
        self._measured: OrderedDict[Geometry, _Measured] = OrderedDict()

    def add(self, geometry: Geometry, seconds: float) -> None:
        """Device seconds of one chunk; of a batch, its share."""
        assert 0 < seconds < math.inf, f"a chunk took {seconds} s"
        measured = self._measured.setdefault(geometry, _Measured())
        measured.times.append(seconds)
        measured.upper = _upper_quantile(measured.times)
        self._measured.move_to_end(geometry)
        if len(self._measured) > MAX_GEOMETRIES:
            self._measured.popitem(last=False)

    def estimate(self, geometry: Geometry) -> Estimate | None:
        """None when no geometry of this model was measured."""
        measured = self._measured.get(geometry)
        if measured is not None:
            return Estimate(seconds=measured.upper)
        kin = [other for other in self._measured if other.model == geometry.model]
        if not kin:
            return None
        nearest = min(kin, key=lambda other: abs(math.log(_work(geometry) / _work(other))))
        return Estimate(seconds=self._measured[nearest].upper * _growth(nearest, geometry), scaled_from=nearest)


def _work(geometry: Geometry) -> int:
    return geometry.tokens * geometry.calls


def _growth(measured: Geometry, asked: Geometry) -> float:
    """How many times longer, at worst: attention may grow with the square of the tokens, fixed costs do not shrink."""
    tokens = asked.tokens / measured.tokens
    return asked.calls / measured.calls * (tokens**2 if tokens > 1 else tokens)


def _upper_quantile(times: deque[float]) -> float:
    """The smallest time that covers QUANTILE of the weight."""
    newest = len(times) - 1
    weighted = sorted((seconds, DECAY ** (newest - index)) for index, seconds in enumerate(times))
    target, covered = QUANTILE * sum(weight for _, weight in weighted), 0.0
    for seconds, weight in weighted:
        covered += weight
        if covered >= target:
            return seconds
    return weighted[-1][0]
