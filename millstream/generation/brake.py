"""Cuts a chunk off between two model calls: when it has taken too long, or when everything is to stop.

A session whose chunk was cut cannot go on, for its keys and values are half written. A GPU's calls are only
queued here, so with one it is the host's time that counts.
"""

from __future__ import annotations

import math
import time

from millstream.core.errors import ChunkCut


class Brake:
    def __init__(self) -> None:
        self.limit_s = math.inf
        """Most seconds that one chunk may take."""
        self._pulled = False
        self._since = 0.0

    def pull(self) -> None:
        """Stop everything. May be called from any thread."""
        self._pulled = True

    def release(self) -> None:
        """Return to the initial state: nothing is cut."""
        self._pulled = False
        self.limit_s = math.inf

    def begin(self) -> None:
        """Note that a chunk begins now."""
        self._since = time.monotonic()

    def check(self) -> None:
        """Raise `ChunkCut` if the chunk is to be cut off. Called before each model call."""
        if self._pulled:
            raise ChunkCut("the server is shutting down")
        took_s = time.monotonic() - self._since
        if took_s > self.limit_s:
            raise ChunkCut(
                f"its chunk was cut off after {took_s:.0f} s, and {self.limit_s:.0f} s is the longest here: "
                "choose a smaller size or fewer steps"
            )
