"""The clean latents of a session's window: what a recompute, an anchor or a recovery is built from.

Holds the sink's frames and the newest ones, as many as the window, never more, each with the conditions that
it was made under: a rebuilt frame gets them again. Knows frames by their number within the epoch. With
decoded anchors each frame also keeps the last pixel frame it was decoded to.
Shapes: C latent channels, Y and X latent rows and columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from millstream.core.conditions import FrameConditions
from millstream.core.envelope import Envelope
from millstream.models.carry import VAE

Conditions = tuple[FrameConditions, ...]
UNKNOWN = FrameConditions()
"""Conditions of a frame that was made under none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryState:
    """All that a history holds. The tensors are never written to again."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """By name: `latents.12`, `pixels.12`."""
    conditions: Mapping[int, FrameConditions] = field(default_factory=dict)
    """By frame; empty where the model takes none."""


class History:
    def __init__(self) -> None:
        self._latents: dict[int, Tensor] = {}
        self._pixels: dict[int, Tensor] = {}
        self._conditions: dict[int, FrameConditions] = {}

    def clear(self) -> None:
        self._latents.clear()
        self._pixels.clear()
        self._conditions.clear()

    def move(self, device: torch.device) -> None:
        for held in (self._latents, self._pixels):
            held.update({frame: tensor.to(device) for frame, tensor in held.items()})

    def state(self) -> HistoryState:
        latents = {f"latents.{frame}": tensor for frame, tensor in self._latents.items()}
        pixels = {f"pixels.{frame}": tensor for frame, tensor in self._pixels.items()}
        return HistoryState(tensors=latents | pixels, conditions=dict(self._conditions))

    @classmethod
    def from_state(cls, state: HistoryState) -> History:
        history = cls()
        for name, tensor in state.tensors.items():
            kind, _, frame = name.partition(".")
            held = history._latents if kind == "latents" else history._pixels
            held[int(frame)] = tensor
        history._conditions.update(state.conditions)
        return history

    def __contains__(self, frame: int) -> bool:
        return frame in self._latents

    def __len__(self) -> int:
        return len(self._latents)

    def push(
        self,
        start_frame: int,
        latents_BFCYX: Tensor,
        *,
        window: int,
        sink: int,
        conditions: Conditions = (),
    ) -> None:
        """Add a finished chunk and let go of what left the window."""
        for offset, latents in enumerate(latents_BFCYX.unbind(1)):
            self._latents[start_frame + offset] = latents
        self._conditions.update(enumerate(conditions, start_frame))
        held = sorted(self._latents)
        newest = window - sink
        for frame in held[sink : max(sink, len(held) - newest)]:
            del self._latents[frame]
            self._pixels.pop(frame, None)
            self._conditions.pop(frame, None)
        assert len(self._latents) <= window, f"{len(self._latents)} frames are held of a window of {window}"

    def keep_pixels(self, frame: int, pixels_B3YX: Tensor) -> None:
        """Remember what a frame was decoded to, for as long as its latents are held."""
        if frame in self._latents:
            self._pixels[frame] = pixels_B3YX

    def context_indices(self, *, window: int, sink: int, frames_per_chunk: int) -> tuple[int, ...]:
        """Frames that the next chunk's window holds before it: the sink's and the newest."""
        held = sorted(self._latents)
        newest = window - sink - frames_per_chunk
        rest = held[sink:]
        return tuple(held[:sink] + rest[max(0, len(rest) - newest) :])

    def context_after(self, envelope: Envelope) -> tuple[int, ...]:
        """Return the frames that the next chunk of such a window sees."""
        return self.context_indices(
            window=envelope.window, sink=envelope.sink, frames_per_chunk=envelope.frames
        )

    def context(self, indices: tuple[int, ...]) -> Tensor:
        """[B, context, C, Y, X]"""
        return torch.stack([self._latents[index] for index in indices], dim=1)

    def conditions(self, indices: tuple[int, ...]) -> Conditions:
        """Conditions of these frames; none where the model takes none."""
        if not self._conditions:
            return ()
        return tuple(self._conditions.get(index, UNKNOWN) for index in indices)

    def anchored(self, indices: tuple[int, ...], vae: VAE) -> Tensor:
        """Return `context` with its first frame encoded afresh from its last picture."""
        context = self.context(indices)
        anchor, _ = vae.encode(self._pixels[indices[0]][:, None])
        return torch.cat([anchor.to(context.dtype), context[:, 1:]], dim=1)

    def anchor_frames(self, envelope: Envelope) -> int:
        """Count the latent frames of a chunk that must be decoded before the next chunk's anchor is there."""
        first, *_ = self.context_after(envelope)
        return max(0, first - envelope.shown_from + 1) if has_anchor(first) else 0

    def newest_run(self) -> Tensor:
        """[B, frames, C, Y, X] of the newest frames without a gap."""
        held = sorted(self._latents)
        assert held, "no frame is held"
        first = next((at for at in range(len(held) - 1, 0, -1) if held[at] != held[at - 1] + 1), 0)
        return self.context(tuple(held[first:]))


def has_anchor(first_frame: int) -> bool:
    """Frame 0 of an epoch was a single picture to begin with, so it is its own anchor."""
    return first_frame > 0
