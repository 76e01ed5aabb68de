"""Choice of how many sessions' chunks run together: decided by what was measured, never by what is hoped.

A key names work that can share a batch (same phase, same shape); the caller makes it up. For each key the
seconds of each batch size are remembered. A size is chosen when its measured throughput beats running one by
one; a size that is not known, or was last seen long ago, is tried once in a while, as long as the next
smaller one pays. Sizes are powers of two and the largest allowed: each has kernels and graphs of its own, and
is learnt by turns that other sessions wait for. What a server streams by default is learnt before the first
client connects (`serving/chunk_time_probe.py`). No tensors, no clock: time is counted in turns.

Nothing grows: a key keeps `SAMPLES` times per size, and the key used longest ago makes room for a new one.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from millstream.core.errors import ConfigError

SAMPLES = 5
"""Times remembered per size. Their median counts, so that one slow warm-up does not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPolicy:
    max_size: int = 4
    """Most sessions in one batch; 1 never batches."""
    gain: float = 1.05
    """How many times the throughput of single runs a batch must reach: below that, latency is worth more."""
    trials: int = 3
    """Measurements of a size before it may be chosen."""
    explore_every: int = 32
    """At most one turn in so many of a key is spent on learning a size."""
    refresh_every: int = 4096
    """After so many turns of a key without a measurement, a size is tried again: devices and neighbours
    change."""
    max_keys: int = 64

    def __post_init__(self) -> None:
        if self.max_size < 1 or self.max_keys < 1 or not 1 <= self.trials <= SAMPLES:
            raise ConfigError(
                f"need max_size and max_keys of at least 1 and 1 to {SAMPLES} trials, "
                f"got {self.max_size}, {self.max_keys} and {self.trials}"
            )
        if self.gain < 1 or not 1 <= self.explore_every <= self.refresh_every:
            raise ConfigError(
                f"need gain >= 1 and 1 <= explore_every <= refresh_every, "
                f"got {self.gain}, {self.explore_every} and {self.refresh_every}"
            )


@dataclass(slots=True)
class _Measured:
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    count: int = 0
    last_turn: int = 0


@dataclass(slots=True)
class _Key:
    sizes: dict[int, _Measured] = field(default_factory=dict)
    turn: int = 0
    explored_at: int = 0


class BatchTimes:
    """Measured seconds by key and batch size."""

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self._keys: OrderedDict[Hashable, _Key] = OrderedDict()
        self.one_off_s = 0.0
        """Most seconds that a size took beyond its usual time when it was new."""

    def add(self, key: Hashable, size: int, seconds: float) -> None:
        assert 1 <= size <= self.policy.max_size, (
            f"a batch of {size}, at most {self.policy.max_size} were handed out"
        )
        assert seconds > 0, f"a batch of {size} took {seconds} s"
        known = self._touch(key)
        measured = known.sizes.setdefault(size, _Measured())
        measured.seconds.append(seconds)
        measured.count += 1
        measured.last_turn = known.turn

    def seconds(self, key: Hashable, size: int) -> float | None:
        """The median of the last measurements."""
        known = self._keys.get(key)
        measured = known.sizes.get(size) if known else None
        return statistics.median(measured.seconds) if measured else None

    def choose(self, key: Hashable, available: int, affordable: Callable[[int, float], bool]) -> int:
        """Return how many of the `available` sessions run together now. `affordable(size, seconds)` may
        forbid a size."""
        known = self._touch(key)
        assert available >= 1, f"a batch of {available} sessions"
        known.turn += 1
        single = self.seconds(key, 1)
        most = min(available, self.policy.max_size)
        if single is None or most == 1:
            return 1
        trial = self._trial(key, known, most)
        if trial is not None and affordable(trial, self._at_worst(key, trial, single) + self.one_off_s):
            known.explored_at = known.turn
            return trial
        return self._best(key, known, most, single, affordable)

    def _best(
        self, key: Hashable, known: _Key, most: int, single: float, affordable: Callable[[int, float], bool]
    ) -> int:
        best = 1
        best_throughput = self.policy.gain / single
        for size in self.sizes(most):
            seconds = self.seconds(key, size)
            if seconds is None or known.sizes[size].count < self.policy.trials:
                continue
            if size / seconds > best_throughput and affordable(size, seconds):
                best = size
                best_throughput = size / seconds
        return best

    def _at_worst(self, key: Hashable, size: int, single: float) -> float:
        """Estimate the seconds of a size that is not known, as if what it adds to the next smaller one saved
        nothing."""
        known = next((smaller for smaller in range(size, 0, -1) if self.seconds(key, smaller) is not None), 0)
        return (self.seconds(key, known) or 0.0) + (size - known) * single

    def _trial(self, key: Hashable, known: _Key, most: int) -> int | None:
        """The smallest size that wants measuring, if this key may spend a turn on that."""
        if known.turn - known.explored_at < self.policy.explore_every:
            return None
        for size in self.sizes(most):
            measured = known.sizes.get(size)
            if measured is None or measured.count < self.policy.trials:
                return size
            if known.turn - measured.last_turn > self.policy.refresh_every:
                return size
            if not self.pays(key, size):
                return None
        return None

    def pays(self, key: Hashable, size: int) -> bool:
        """Return whether this size makes more in a second than the next smaller one. If not, larger sizes are
        not tried."""
        smaller = max(
            (each for each in self.sizes(size - 1) if self.seconds(key, each) is not None), default=0
        )
        seconds = self.seconds(key, size)
        less = self.seconds(key, smaller)
        return seconds is not None and (less is None or size / seconds > smaller / less)

    def sizes(self, most: int) -> list[int]:
        """Return the sizes up to `most` that are ever run, ascending, from one on."""
        powers = (2**exponent for exponent in range(self.policy.max_size.bit_length()))
        return [size for size in sorted({*powers, self.policy.max_size}) if size <= most]

    def _touch(self, key: Hashable) -> _Key:
        known = self._keys.setdefault(key, _Key())
        self._keys.move_to_end(key)
        if len(self._keys) > self.policy.max_keys:
            self._keys.popitem(last=False)
        return known
