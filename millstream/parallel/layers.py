"""A pipeline of layers: every stage has some of the blocks, and activations travel from one to the next.

Every rank runs the same sampler, so each stage knows the latents, levels and entries of a call and embeds them itself;
what travels is activations forwards and flows from the last stage back to all others, of `SENDS` calls at a
time. A call has two halves: `begin` does this stage's part and hands it on, and what it returns is waited
for. Between them other sessions' calls may begin, which is what keeps the stages busy. All ranks must begin
the same calls in the same order.
Shapes: B batch, F frames, T tokens a frame, D width, C latent channels, Y and X latent rows and columns.
"""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from millstream.models.dit import BlockStack, CausalDiT, CrossKV, Embedded
from millstream.models.entries import NO_ENTRIES, Entries
from millstream.models.fast.recorded import RecordedStack
from millstream.models.kv import Memory
from millstream.models.sampler import Call
from millstream.parallel.balance import Bounds
from millstream.parallel.busy import BusyTime
from millstream.parallel.collectives import PendingCollective, RankGroup
from millstream.parallel.groups import Groups
from millstream.parallel.mesh_dit import MeshDiT

SENDS = 2
"""Calls of which a stage's output may be under way; one more waits for the oldest to arrive."""


class StagedDiT(MeshDiT):
    """A DiT that has this stage's blocks only, called as the whole one is."""

    def __init__(self, dit: CausalDiT, groups: Groups, bounds: Bounds) -> None:
        super().__init__(dit, groups.stage)
        self.mesh = groups.mesh
        self.lane = groups.lane
        self.back = groups.back
        self.bounds = bounds
        assert len(bounds) == self.lane.size + 1, f"bounds {bounds} for {self.lane.size} stages"
        layers = bounds[self.lane.place + 1] - bounds[self.lane.place]
        assert len(dit.blocks) == layers, f"{len(dit.blocks)} blocks on stage {self.lane.place} of {bounds}"
        self.busy = BusyTime(dit.patch_in.weight.device)
        """Time that the device is busy with this stage's blocks, whatever it waited for."""
        self.may_move = True
        """True if blocks may change stages; compiled ones do not."""
        self._sent: deque[PendingCollective] = deque()

    @property
    def is_first(self) -> bool:
        return self.lane.place == 0

    @property
    def is_last(self) -> bool:
        return self.lane.place == self.lane.size - 1

    def forward(
        self,
        latents_BFCYX: Tensor,
        level_BF: Tensor,
        memory: Memory,
        cross: CrossKV,
        entries: Entries = NO_ENTRIES,
    ) -> Tensor:
        begun = self.begin(Call("step", latents_BFCYX, level_BF, memory, cross, entries))
        assert begun is not None, "a step has a flow"
        return begun.wait()

    def commit(
        self,
        latents_BFCYX: Tensor,
        level_BF: Tensor,
        memory: Memory,
        cross: CrossKV,
        entries: Entries = NO_ENTRIES,
    ) -> None:
        self.begin(Call("commit", latents_BFCYX, level_BF, memory, cross, entries))

    def begin(self, call: Call) -> PendingCollective | None:
        """Do this stage's part of a call. Returns its flow, which every stage gets; None of one that predicts
        nothing."""
        embedded = self.dit.embed(call.latents_BFCYX, call.level_BF, call.entries)
        x_BFTD = embedded.x_BFTD if self.is_first else self._received(embedded.x_BFTD)
        if self.is_last:
            return self._end(call, embedded, x_BFTD)
        with self.stage.inside_blocks(), self.busy.measured():
            x_BFTD = self.dit.blocks(x_BFTD, embedded.levels_BF6D, call.memory, call.cross)
        if isinstance(self.dit.blocks, RecordedStack):
            x_BFTD = x_BFTD.clone()  # where it lies, the next call writes, before this may have left
        self._send(self.lane, x_BFTD, self.lane.place + 1, "activations")
        if not call.predicts:
            return None
        # Posted before any rank can want to send: the last stage never waits for a receiver.
        return self.back.receive(
            torch.empty_like(call.latents_BFCYX), source=self.back.ranks[-1], what="flow"
        )

    def drain(self) -> None:
        """Wait until all that was sent has been received. A stage that stops calling must do so, or the next
        stage waits for ever."""
        while self._sent:
            self._sent.popleft().wait()

    def _end(self, call: Call, embedded: Embedded, x_BFTD: Tensor) -> PendingCollective | None:
        """Do the last stage's part: its blocks, the head, and the flow, sent to all other stages."""
        with self.stage.inside_blocks(), self.busy.measured():
            if not call.predicts:
                self.dit.blocks.remember(x_BFTD, embedded.levels_BF6D, call.memory, call.cross)
                return None
            x_BFTD = self.dit.blocks(x_BFTD, embedded.levels_BF6D, call.memory, call.cross)
            flow = self.dit.head(x_BFTD, embedded.time_BFD, embedded.grid).contiguous()
        for place in range(self.back.place):
            self._send(self.back, flow, place, "flow")
        return PendingCollective(flow)

    def _received(self, like_BFTD: Tensor) -> Tensor:
        source = self.lane.ranks[self.lane.place - 1]
        return self.lane.receive(torch.empty_like(like_BFTD), source=source, what="activations").wait()

    def _send(self, group: RankGroup, x: Tensor, place: int, what: str) -> None:
        self._sent.append(group.send(x.contiguous(), to=group.ranks[place], what=what))
        receivers = self.back.place if self.is_last else 1
        while len(self._sent) > SENDS * receivers:
            self._sent.popleft().wait()


def stage_blocks(blocks: BlockStack, bounds: Bounds, stage: int) -> BlockStack:
    """Return the blocks of one stage."""
    assert bounds[-1] == len(blocks), f"bounds {bounds} for {len(blocks)} layers"
    return BlockStack(list(blocks)[bounds[stage] : bounds[stage + 1]])
