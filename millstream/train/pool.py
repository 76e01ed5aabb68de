"""Pools of clips that were rendered once and are trained on many times, held on the device and drawn from at
random.

Shapes: K clips, W wordings, B batch, F latent frames, T pixel frames, C channels, Y and X rows and columns, S
tokens, A numbers of an action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from millstream.ops.pixels import from_bytes
from millstream.train.share import ALONE, BatchShare


@dataclass(frozen=True, kw_only=True, slots=True)
class PixelPool:
    """Short clips as bytes, with or without their attributes."""

    pixels_KTCYX: Tensor
    labels: dict[str, Tensor]

    def draw(
        self, batch: int, generator: torch.Generator, share: BatchShare = ALONE
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Draw pixels [B, T, 3, Y, X] in [-1, 1] and the id of each attribute [B]."""
        clip = share.integers(len(self.pixels_KTCYX), batch, generator)
        return from_bytes(self.pixels_KTCYX[clip]), {name: ids[clip] for name, ids in self.labels.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentPool:
    """Clips as the DiT sees them, each with several captions."""

    latents_KFCYX: Tensor
    ids_KWS: Tensor
    """Token ids of each clip's captions."""
    true_from_K: Tensor
    """First frame that a clip's captions are true of: 0, except where the picture turns from one scene into
    another."""
    actions_KFA: Tensor | None = None
    """Keys and looks of each latent frame (`data/frame_actions.py`), of a model that takes any."""
    walks_K: Tensor | None = None
    """True for clips in which one walks, by keys or not; in the others nothing is ever held."""
    things_KFYX: Tensor | None = None
    """Share of each latent cell that is a thing, of 255, where a loss may ask for it; 0 if it is not known."""

    def draw(self, batch: int, generator: torch.Generator, share: BatchShare = ALONE) -> Drawn:
        clip = share.integers(len(self.latents_KFCYX), batch, generator)
        wording = share.integers(self.ids_KWS.shape[1], batch, generator)
        return Drawn(
            self.latents_KFCYX[clip].float(),
            self.ids_KWS[clip, wording],
            self.true_from_K[clip],
            None if self.actions_KFA is None else self.actions_KFA[clip].float(),
            None if self.things_KFYX is None else self.things_KFYX[clip].float() / 255,
        )

    def favouring(self, words: Sequence[int], by: float) -> Tensor:
        """Return weights [K, W] to draw captions by: those with one of these words count `by` times as much
        as the others."""
        said = torch.tensor(words, dtype=torch.long, device=self.ids_KWS.device)
        return 1.0 + (by - 1.0) * torch.isin(self.ids_KWS, said).any(dim=-1)


class Drawn(NamedTuple):
    """Batch of clips: latents in float32, token ids of one caption each, the first frame it is true of, what
    was held in each frame, and the share of each cell that is a thing."""

    latents_BFCYX: Tensor
    ids_BS: Tensor
    true_from_B: Tensor
    actions_BFA: Tensor | None = None
    things_BFYX: Tensor | None = None
