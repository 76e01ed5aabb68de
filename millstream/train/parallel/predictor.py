"""Predictions of a model that does not learn from them, however ranks hold it: a teacher's flows, a critic's,
and a student's own.

All ranks that share the model's weights call it together, as they do when they learn.
Shapes: B rows, F frames, C latent channels, Y and X latent rows and columns, S text tokens, E text width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from millstream.models.dit import CausalDiT
from millstream.models.entries import NO_ENTRIES, Entries
from millstream.models.kv import Memory
from millstream.models.prompted import PromptedDiT
from millstream.models.weights.unread import bring
from millstream.ops.forward_mode import forward_mode
from millstream.parallel.mesh_dit import MeshDiT
from millstream.train.parallel.blocks import share_blocks
from millstream.train.parallel.fully_sharded import shard_fully
from millstream.train.parallel.groups import TrainingGroups
from millstream.train.parallel.plan import ParallelPlan
from millstream.train.parallel.precision import Precision, in_precision


class Predictor:
    def __init__(self, model: PromptedDiT, precision: Precision, parts: int = 1) -> None:
        """Rows are computed in this many parts, one after the other."""
        self._model = model
        self._precision = precision
        self._parts = parts

    @property
    def dit(self) -> CausalDiT | MeshDiT:
        """The whole DiT, or this rank's share of it: a ring must have room for its heads."""
        dit = self._model.dit
        assert isinstance(dit, CausalDiT | MeshDiT), f"predictions come from a {type(dit)}"
        return dit

    @torch.no_grad()
    def flow(
        self,
        latents_BFCYX: Tensor,
        level_BF: Tensor,
        text_BSE: Tensor,
        memory: Memory,
        entries: Entries = NO_ENTRIES,
    ) -> Tensor:
        """Return the flow in float32. A memory that keeps what it is shown, as a ring does, is shown all rows
        at once."""
        with in_precision(self._precision, latents_BFCYX.device):
            found: Tensor = self._model(latents_BFCYX, level_BF, text_BSE, memory, entries)
        return found.float()

    def flows(
        self,
        latents_BFCYX: Tensor,
        level_BF: Tensor,
        text_BSE: Tensor,
        memory: Memory,
        entries: Entries = NO_ENTRIES,
    ) -> Tensor:
        """Return the flow, computed in parts, in a memory that keeps nothing."""
        tensors = (latents_BFCYX, level_BF, text_BSE)
        given = zip(
            *(tensor.chunk(self._parts) for tensor in tensors), entries.split(self._parts), strict=True
        )
        found = [self.flow(latents, level, text, memory, entered) for latents, level, text, entered in given]
        return torch.cat(found)

    def changing_flows(
        self,
        latents_BFCYX: Tensor,
        level_BF: Tensor,
        text_BSE: Tensor,
        memory: Memory,
        along: tuple[Tensor, Tensor],
        entries: Entries = NO_ENTRIES,
    ) -> tuple[Tensor, Tensor]:
        """Return the flow and its derivative as latents and levels move `along` these directions:
        forward-mode derivatives, in one pass."""
        given = zip(
            *(tensor.chunk(self._parts) for tensor in (latents_BFCYX, level_BF, text_BSE, *along)),
            entries.split(self._parts),
            strict=True,
        )
        found = list[tuple[Tensor, Tensor]]()
        for latents, level, text, moves, levels_move, entered in given:
            with forward_mode():
                dual = forward_ad.make_dual(latents, moves), forward_ad.make_dual(level, levels_move)
                flow, change = forward_ad.unpack_dual(self.flow(*dual, text, memory, entered))
                assert change is not None, "a flow depends on what it is the flow of"
                found.append((flow, change))
        flows, changes = (torch.cat(each) for each in zip(*found, strict=True))
        return flows, changes


def frozen_predictor(
    dit: CausalDiT, sequence: Memory, plan: ParallelPlan, groups: TrainingGroups, precision: Precision
) -> Predictor:
    """Make the predictor of a model that never learns; `dit` is whole and is shared out as the plan says. Our
    own ZeRO shards only what learns: with it every rank has all of this model."""
    model = PromptedDiT(share_blocks(dit.requires_grad_(requires_grad=False), groups), sequence)
    if plan.data in ("fsdp", "hsdp") and groups.mesh is not None:
        shard_fully(model, dit, groups.mesh[("replicate", "shard") if plan.data == "hsdp" else ("shard",)])
    bring(model.parameters())
    return Predictor(model, precision, plan.micro_batches)
