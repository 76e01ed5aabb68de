"""Streams that go on from one training step to the next: the last frames each has painted, and its prompt.

A student is then taught on streams of any age at the price of a few chunks. Of a fixed size; a stream that begins takes
the place of another, so the older one is, the rarer.
Shapes: K streams, B batch, F frames, C latent channels, Y and X latent rows and columns, S text tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from millstream.ops.precision import working_dtype


class Reservoir:
    def __init__(self, streams: int, window: tuple[int, ...], tokens: int, device: torch.device) -> None:
        """`window` is the shape [F, C, Y, X] of what is kept of each."""
        self.state = {
            "windows": torch.zeros(streams, *window, dtype=working_dtype(device), device=device),
            "ids": torch.zeros(streams, tokens, dtype=torch.long, device=device),
            "begun": torch.zeros(streams, dtype=torch.bool, device=device),
        }
        """All there is of it, by name; saved with checkpoints."""

    @property
    def frames(self) -> int:
        """That are kept of a stream."""
        return self.state["windows"].shape[1]

    def draw(self, batch: int, generator: torch.Generator) -> Tensor:
        """Different rows at random [B]."""
        begun = self.state["begun"]
        return torch.randperm(len(begun), generator=generator, device=begun.device)[:batch]

    def all_begun(self, rows: Tensor) -> bool:
        return bool(self.state["begun"][rows].all())

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Their windows and their prompts' tokens."""
        return self.state["windows"][rows], self.state["ids"][rows]

    def put(self, rows: Tensor, stream_BFCYX: Tensor, ids_BS: Tensor) -> None:
        """Go on from the end of these streams next time."""
        windows = self.state["windows"]
        counts = len(rows), len(stream_BFCYX), len(ids_BS)
        assert len(set(counts)) == 1, f"rows, streams and prompts are {counts}"
        assert stream_BFCYX.shape[1] >= windows.shape[1], f"{stream_BFCYX.shape[1]} frames for windows of {windows.shape[1]}"
        windows[rows] = stream_BFCYX[:, -windows.shape[1] :].to(windows.dtype)
        self.state["ids"][rows] = ids_BS
        self.state["begun"][rows] = True
