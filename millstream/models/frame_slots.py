"""Table of the frame of an epoch that each slot of a ring holds, and of the slot that is overwritten next.
Plain integers: knows no tensors.

The first frames may be a sink that never leaves; once all slots are taken, the oldest frame outside the sink
is overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.models.ring_shape import RingShape


class FrameSlots:
    def __init__(self, shape: RingShape) -> None:
        self.frames: list[int] = [-1] * shape.window
        """Frame of the epoch in each slot, -1 for none."""
        self.written = 0
        """Number of frames that were ever given a slot."""
        self._shape = shape

    def copy(self) -> FrameSlots:
        slots = FrameSlots(self._shape)
        slots.resume(self.frames, self.written)
        return slots

    def resume(self, frames: Sequence[int], written: int) -> None:
        """Go on from what other slots of this shape held."""
        assert len(frames) == self._shape.window, f"{len(frames)} slots for a window of {self._shape.window}"
        assert written >= 0, f"{written} frames were ever written"
        self.frames = list(frames)
        self.written = written

    @property
    def newest(self) -> int:
        """The last frame placed, -1 for none."""
        return max(self.frames)

    @property
    def num_tokens(self) -> int:
        """Tokens in the slots that hold a frame."""
        return min(self.written, self._shape.window) * self._shape.tokens_per_frame

    def place(self, frame: int) -> int:
        """Return the frame's slot: the one that it has, or the next one that is free or holds the oldest
        frame."""
        if frame in self.frames:
            return self.frames.index(frame)
        sink = self._shape.sink
        ring = self._shape.window - self._shape.sink
        slot = self.written if self.written < self._shape.window else sink + (self.written - sink) % ring
        self.frames[slot] = frame
        self.written += 1
        return slot

    def position(self, frame: int, slot: int, end_frame: int) -> int:
        """Return the frame number whose phase a frame carries: its own, or never further back than the window
        is long."""
        if self._shape.positions == "absolute" or slot >= self._shape.sink:
            return frame
        return max(frame, end_frame - self._shape.window + slot)

    def sink_offsets(self, end_frame: int) -> list[int]:
        """Return by how many frames the sink's positions differ from their own, for a window that ends at
        `end_frame`."""
        return [
            self.position(frame, slot, end_frame) - frame
            for slot, frame in enumerate(self.frames[: self._shape.sink])
            if frame >= 0
        ]
