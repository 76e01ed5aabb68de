"""A rank's share of a DiT, called as the whole one is: the generator and the sampler do not notice.

This is also all that tensor parallel needs, since there every rank has all tokens and all layers.
"""

from __future__ import annotations

from torch import Tensor, nn

from millstream.core.config import DiTConfig
from millstream.models.dit import CausalDiT, CrossKV, PatchEmbedding
from millstream.models.entries import NO_ENTRIES, Entries
from millstream.models.kv import Memory
from millstream.parallel.collectives import RankGroup


class MeshDiT(nn.Module):
    def __init__(self, dit: CausalDiT, stage: RankGroup) -> None:
        super().__init__()
        self.dit = dit
        self.stage = stage

    @property
    def config(self) -> DiTConfig:
        """Config of the whole model."""
        return self.dit.config

    @property
    def patch_in(self) -> PatchEmbedding:
        return self.dit.patch_in

    @property
    def cached_layers(self) -> int:
        return self.dit.cached_layers

    @property
    def cached_heads(self) -> int:
        return self.dit.cached_heads

    def forward(
        self,
        latents_BFCYX: Tensor,
        level_BF: Tensor,
        memory: Memory,
        cross: CrossKV,
        entries: Entries = NO_ENTRIES,
    ) -> Tensor:
        with self.stage.inside_blocks():
            return self.dit(latents_BFCYX, level_BF, memory, cross, entries)

    def commit(
        self,
        latents_BFCYX: Tensor,
        level_BF: Tensor,
        memory: Memory,
        cross: CrossKV,
        entries: Entries = NO_ENTRIES,
    ) -> None:
        with self.stage.inside_blocks():
            self.dit.commit(latents_BFCYX, level_BF, memory, cross, entries)

    def read_prompt(self, text_BSE: Tensor) -> CrossKV:
        """Keys and values of a prompt for this rank's layers."""
        return self.dit.read_prompt(text_BSE)
