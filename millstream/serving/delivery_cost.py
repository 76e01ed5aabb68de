"""Host time that a chunk takes once it is made: it is encoded and sent. Measured by the code that does so;
plain arithmetic here.

At a few chunks a second this does not matter. A small model on a large GPU makes more chunks than a host
passes on, and a promise that counts the device alone is then not kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.session.chunk import PendingChunk


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryCost:
    """Host seconds to deliver one chunk, on average."""

    send_s: float = 0.0
    """Seconds of the thread that sends. It and the engine's thread both run Python, and Python runs one of
    them at a time."""
    encode_s: float = 0.0
    """Seconds until it is encoded, by as many threads as there are for that."""

    def __post_init__(self) -> None:
        assert min(self.send_s, self.encode_s) >= 0, (
            f"a chunk is sent in {self.send_s} s and encoded in {self.encode_s} s"
        )

    def slowest_s(self, chunk: PendingChunk, chunk_s: float) -> float:
        """Return the seconds that one more such chunk takes of a server that does nothing else, from its plan
        to its viewers: the stages overlap, and the slowest counts. `chunk_s` is the time until its frames
        are there."""
        return max(chunk_s, chunk.thread_s + self.send_s, self.encode_s)
