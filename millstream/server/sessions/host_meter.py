"""Meter of the host time that chunks take once they are made, for admission. Knows no sessions and no
clock."""

from __future__ import annotations

from millstream.serving.delivery_cost import DeliveryCost

ENOUGH = 16
"""Chunks between two readings that say something: fewer are no burden, and whatever else the host did would
look like one."""


class HostMeter:
    """Host time of all sessions together. Used on the event loop."""

    def __init__(self, num_threads: int) -> None:
        """Take the number of threads that encode."""
        assert num_threads >= 1, f"{num_threads} threads encode"
        self._num_threads = num_threads
        self._num_chunks = 0
        self._encode_s = 0.0
        self._loop_s = 0.0
        self._last = DeliveryCost()

    def passed_on(self, encode_s: float) -> None:
        """Count one more chunk, and the seconds that threads were at work on it."""
        self._num_chunks += 1
        self._encode_s += encode_s

    def read(self, loop_s: float) -> DeliveryCost:
        """Return the cost of a chunk since the last reading, or the last result where few came. `loop_s` is
        how long the event loop's thread was at work, ever: whatever it did counts as theirs."""
        if self._num_chunks >= ENOUGH:
            sent_s = loop_s - self._loop_s
            encode_s = self._encode_s / self._num_threads
            self._last = DeliveryCost(send_s=sent_s / self._num_chunks, encode_s=encode_s / self._num_chunks)
        self._num_chunks = 0
        self._encode_s = 0.0
        self._loop_s = loop_s
        return self._last
