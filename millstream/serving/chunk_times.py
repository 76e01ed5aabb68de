"""Time that a chunk of a given geometry takes here: an upper quantile of what was measured lately, or scaled
from what was.

The quantile is meant for promises, so it errs to the slow side, by as much as times were seen to spread. It
follows a device that slows down within three chunks, and forgets: what was measured more than `FRESH_S` ago
counts only while nothing newer is known of any geometry. A geometry's first chunk pays for kernels that are
built: it counts only until there is another. A geometry that was not measured, or not lately, is scaled by
the operations of a chunk, as the planner counts them. An estimate says whether it comes of a chunk that
a viewer was sent lately.

Nothing here knows sessions, and nothing grows: a geometry keeps its last `KEPT` times, and the geometry
measured longest ago makes room for a new one.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from millstream.core.chunk_work import chunk_flops
from millstream.core.config import ModelSpec, StreamConfig

KEPT = 128
MAX_GEOMETRIES = 64
QUANTILE = 0.95
FRESH_S = 60.0
HALF_LIFE_S = 15.0
"""Seconds after which a measurement counts half as much."""
ESTIMATE_S = 0.5
"""Seconds for which an estimate is reused while nothing is measured."""
LATEST = 3
"""Chunks whose middle one is believed at once when it is slow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """Properties that the time of a chunk depends on, as declared before anything is allocated."""

    model: str
    tokens: int
    """Tokens of one chunk."""
    calls: int
    """Model calls a chunk: steps and commit."""
    window: int
    """Latent frames a chunk may attend to."""
    flops: float
    """Operations of a whole chunk with its window full, frames included."""

    @staticmethod
    def of(spec: ModelSpec, config: StreamConfig) -> Geometry:
        rows, columns = (side // spec.dit.patch for side in config.latent_size)
        return Geometry(
            model=spec.name,
            tokens=config.frames_per_chunk * rows * columns,
            calls=len(config.steps) + 1,
            window=config.window,
            flops=chunk_flops(spec, config),
        )

    @staticmethod
    def of_first(spec: ModelSpec, config: StreamConfig) -> Geometry | None:
        """Return the geometry of an epoch's first chunk, its window counted as full; None where it has as
        many steps as all others."""
        if len(config.opening_steps) == len(config.steps):
            return None
        return Geometry.of(spec, replace(config, steps=config.opening_steps))

    def __str__(self) -> str:
        return f"{self.tokens} tokens x {self.calls} calls"


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    seconds: float
    slowest_s: float
    """Longest time seen lately, the one that `seconds` leaves out included."""
    scaled_from: Geometry | None = None
    """The geometry that was measured, where this one was not."""
    proven: bool = False
    """True if chunks of this geometry were sent to a viewer lately: encoding and viewers may use the same
    device."""

    def __post_init__(self) -> None:
        assert 0 < self.seconds <= self.slowest_s, (
            f"{self.seconds} s is counted on, {self.slowest_s} s is the slowest"
        )


class _Sample(NamedTuple):
    at: float
    seconds: float
    is_first: bool = False
    """True for the first sample of its geometry."""
    is_trial: bool = False
    """True if it was not sent to a viewer."""


class ChunkTimes:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._measured: OrderedDict[Geometry, deque[_Sample]] = OrderedDict()
        self._estimates: dict[Geometry, tuple[float, Estimate | None]] = {}
        """Estimates made since the last measurement, and when: they are asked for of every session, and age
        slowly."""

    def add(self, geometry: Geometry, seconds: float, *, is_trial: bool = False) -> None:
        """Add the device seconds of one chunk; of a batch, its share. A trial's says less than that of a
        stream."""
        assert 0 < seconds < math.inf, f"a chunk took {seconds} s"
        samples = self._measured.setdefault(geometry, deque(maxlen=KEPT))
        samples.append(_Sample(self._clock(), seconds, is_first=not samples, is_trial=is_trial))
        if samples[0].is_first and len(samples) > 1:
            samples.popleft()
        self._measured.move_to_end(geometry)
        self._estimates.clear()
        if len(self._measured) > MAX_GEOMETRIES:
            self._measured.popitem(last=False)

    def estimate(self, geometry: Geometry) -> Estimate | None:
        """Return the estimate for a geometry; None when no geometry of this model was measured."""
        now = self._clock()
        at, found = self._estimates.get(geometry, (-math.inf, None))
        if now - at > ESTIMATE_S:
            if len(self._estimates) >= MAX_GEOMETRIES:
                self._estimates.clear()
            found = self._estimate(geometry, now)
            self._estimates[geometry] = now, found
        return found

    def _estimate(self, geometry: Geometry, now: float) -> Estimate | None:
        own = self._measured.get(geometry)
        if own is not None and now - own[-1].at <= FRESH_S:
            fresh = _fresh(own, now)
            return replace(_measured(fresh, now), proven=not all(sample.is_trial for sample in fresh))
        kin = {each: samples for each, samples in self._measured.items() if each.model == geometry.model}
        lately = {each: fresh for each, samples in kin.items() if (fresh := _fresh(samples, now))}
        if geometry in kin and not lately:
            middle = statistics.median(sample.seconds for sample in kin[geometry])
            return Estimate(seconds=middle, slowest_s=middle)
        return _scaled(geometry, lately or kin, now) if kin else None

    def estimates(self) -> dict[Geometry, float]:
        """Return the expected seconds of a chunk for every geometry that was measured."""
        found = {geometry: self.estimate(geometry) for geometry in self._measured}
        return {geometry: each.seconds for geometry, each in found.items() if each is not None}

    def age_s(self, geometry: Geometry) -> float:
        """Return how many seconds ago this very geometry was measured last."""
        return self._clock() - self._measured[geometry][-1].at if geometry in self._measured else math.inf


def _fresh(samples: Sequence[_Sample], now: float) -> list[_Sample]:
    return [sample for sample in samples if now - sample.at <= FRESH_S]


def _measured(samples: Sequence[_Sample], now: float) -> Estimate:
    return Estimate(seconds=_upper(samples, now), slowest_s=max(sample.seconds for sample in samples))


def _scaled(geometry: Geometry, measured: Mapping[Geometry, Sequence[_Sample]], now: float) -> Estimate:
    """Scale the estimate of the nearest geometry in proportion to its operations."""
    nearest = min(measured, key=lambda other: abs(math.log(geometry.flops / other.flops)))
    found = _measured(measured[nearest], now)
    growth = geometry.flops / nearest.flops
    return Estimate(seconds=growth * found.seconds, slowest_s=growth * found.slowest_s, scaled_from=nearest)


def _upper(samples: Sequence[_Sample], now: float) -> float:
    """Return the smallest time that covers QUANTILE of the weight, and no less than the middle of the latest.
    The slowest of several is left out: one chunk alone may have waited for anything."""
    assert samples, "no measurement, no estimate"
    latest = sorted(sample.seconds for sample in list(samples)[-LATEST:])
    weighted = sorted((sample.seconds, 0.5 ** ((now - sample.at) / HALF_LIFE_S)) for sample in samples)
    weighted = weighted[:-1] if len(weighted) > LATEST else weighted
    target = QUANTILE * sum(weight for _, weight in weighted)
    covered = 0.0
    for seconds, weight in weighted:
        covered += weight
        if covered >= target:
            return max(seconds, latest[len(latest) // 2])
    return weighted[-1][0]
