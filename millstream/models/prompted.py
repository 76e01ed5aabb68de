"""A DiT, the text it reads and the sequence it attends in as one module: from noisy latents to their flow,
for training.

Shapes: B batch, F frames, C latent channels, Y and X latent rows and columns, S text tokens, E text width, A
numbers of an action.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from millstream.models.conditions.injectors import Injectors
from millstream.models.dit import CrossKV
from millstream.models.entries import NO_ENTRIES, Entries
from millstream.models.kv import Memory


class ReadsPrompts(Protocol):
    """A whole DiT, or a rank's share of one."""

    def read_prompt(self, text_BSE: Tensor) -> CrossKV: ...

    def __call__(
        self,
        latents_BFCYX: Tensor,
        level_BF: Tensor,
        memory: Memory,
        cross: CrossKV,
        entries: Entries = NO_ENTRIES,
    ) -> Tensor: ...


class PromptedDiT(nn.Module):
    dit: ReadsPrompts

    def __init__(self, dit: ReadsPrompts, sequence: Memory, injectors: Injectors | None = None) -> None:
        """`injectors` learn with it."""
        super().__init__()
        self.dit = dit
        self.injectors = injectors
        self.sequence = sequence

    def forward(
        self,
        latents_BFCYX: Tensor,
        level_BF: Tensor,
        text_BSE: Tensor,
        memory: Memory | None = None,
        entries: Entries = NO_ENTRIES,
        actions_BFA: Tensor | None = None,
    ) -> Tensor:
        """Attends in `memory` where one is given: what another sequence shows, or a stream's ring."""
        if actions_BFA is not None:
            assert self.injectors is not None, "actions for a model that takes none"
            entries = self.injectors(actions_BFA)
        cross = self.dit.read_prompt(text_BSE)
        return self.dit(latents_BFCYX, level_BF, memory or self.sequence, cross, entries)


def reads_prompt(name: str) -> bool:
    """Return whether a parameter of a block is used before the blocks run, when the prompt is read."""
    return any(part in name for part in ("cross_attn.k.", "cross_attn.v.", "cross_attn.norm_k."))
