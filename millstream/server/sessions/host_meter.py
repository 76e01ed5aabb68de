"""What chunks take of the host once they are made, as admission is told it. Knows no sessions and no clock."""

from __future__ import annotations

from millstream.serving.hand_over import HandOver

ENOUGH = 16
"""Chunks between two readings that say something: fewer are no burden, and whatever else the host did would look like one."""


class HostMeter:
    """Of all sessions together. Used on the event loop."""

    def __init__(self, num_threads: int) -> None:
        """So many encode."""
        assert num_threads >= 1, f"{num_threads} threads encode"
        self._num_threads = num_threads
        self._num_chunks, self._encode_s, self._loop_s = 0, 0.0, 0.0
        self._last = HandOver()

    def passed_on(self, encode_s: float) -> None:
        """One more chunk, and how long threads were at work on it."""
        self._num_chunks += 1
        self._encode_s += encode_s

    def read(self, loop_s: float) -> HandOver:
        """Of the chunks since it was last read, or what it was then where few came. `loop_s` is how long the event loop's
        thread was at work, ever: whatever it did counts as theirs."""
        if self._num_chunks >= ENOUGH:
            sent_s, encode_s = loop_s - self._loop_s, self._encode_s / self._num_threads
            self._last = HandOver(send_s=sent_s / self._num_chunks, encode_s=encode_s / self._num_chunks)
        self._num_chunks, self._encode_s, self._loop_s = 0, 0.0, loop_s
        return self._last
