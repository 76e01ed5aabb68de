"""The sizes that a session's keys and values depend on."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.core.config import DiTConfig, Positions, StreamConfig
from millstream.core.envelope import Envelope


@dataclass(frozen=True, kw_only=True, slots=True)
class RingShape:
    """All that a ring's size depends on, and nothing else."""

    layers: int
    heads: int
    head_width: int
    grid: tuple[int, int]
    """Tokens of one frame, height x width."""
    window: int
    sink: int
    positions: Positions = "absolute"
    batch: int = 1

    @staticmethod
    def of(
        dit: DiTConfig,
        stream: Envelope | StreamConfig,
        *,
        layers: int | None = None,
        heads: int | None = None,
        batch: int = 1,
    ) -> RingShape:
        """Return the shape of the ring that a chunk or a whole stream needs: for all the model's layers and
        heads, unless a rank holds fewer."""
        cell = stream.stride * dit.patch
        return RingShape(
            layers=dit.layers if layers is None else layers,
            heads=dit.heads if heads is None else heads,
            head_width=dit.head_width,
            grid=(stream.height // cell, stream.width // cell),
            window=stream.window,
            sink=stream.sink,
            positions=stream.positions,
            batch=batch,
        )

    @property
    def tokens_per_frame(self) -> int:
        return self.grid[0] * self.grid[1]
