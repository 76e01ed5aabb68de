"""What a chunk takes of the host once it is made: it is encoded and sent. Measured by whoever does that; plain arithmetic here.

At a few chunks a second nobody notices. A small model on a large GPU makes more than a host passes on, and a promise that
counts the device alone is not kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.engine.flights import Landing


@dataclass(frozen=True, kw_only=True, slots=True)
class HandOver:
    """Of one chunk, on average."""

    send_s: float = 0.0
    """Of the thread that sends. It and the engine's thread both run Python, and Python runs one of them at a time."""
    encode_s: float = 0.0
    """Until it is encoded, by as many threads as there are for that."""

    def __post_init__(self) -> None:
        assert min(self.send_s, self.encode_s) >= 0, f"a chunk is sent in {self.send_s} s and encoded in {self.encode_s} s"

    def slowest_s(self, landing: Landing, chunk_s: float) -> float:
        """What one more such chunk takes of a server that does nothing else, from its plan to its viewers: things happen beside
        each other, and the slowest counts. `chunk_s` is what it takes until its pictures are there."""
        return max(chunk_s, landing.thread_s + self.send_s, self.encode_s)
