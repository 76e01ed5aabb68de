"""The commit of a chunk in one call with the first step of the next: one pass less over the weights and
through a pipeline.

Block-causal over both, hence exact: in every layer the finished chunk leaves its keys and values and attends
to its own window; then the next chunk takes its slots and attends to what is there, the fresh keys among
them. The finished chunk never sees the next one's.
Shapes: B batch, F frames, L tokens of one chunk, N heads, H head width, C channels, Y and X latent rows and
columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from millstream.models.dit import CrossKV
from millstream.models.entries import NO_ENTRIES, Entries, join_frames
from millstream.models.kv import KVRing
from millstream.models.sampler import Asking, Call, T, per_frame
from millstream.ops.rope import Phases


class PairedMemory:
    """One ring as two chunks see it: `first` as it was placed for the finished one, `second` for the next."""

    def __init__(self, first: KVRing, second: KVRing) -> None:
        self.rings = (first, second)
        self._length = first.phases.cos.shape[0]
        one = first.phases
        two = second.phases
        self._phases = Phases(torch.cat([one.cos, two.cos]), torch.cat([one.sin, two.sin]))

    @property
    def phases(self) -> Phases:
        return self._phases

    def write(self, layer: int, k_BLNH: Tensor, v_BLNH: Tensor) -> None:
        for ring, k, v in zip(self.rings, self._halves(k_BLNH), self._halves(v_BLNH), strict=True):
            ring.write(layer, k, v)

    def attend(self, layer: int, q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor) -> Tensor:
        halves = zip(self.rings, *map(self._halves, (q_BLNH, k_BLNH, v_BLNH)), strict=True)
        return torch.cat([ring.attend(layer, q, k, v) for ring, q, k, v in halves], dim=1)

    def _halves(self, x_BLNH: Tensor) -> tuple[Tensor, Tensor]:
        return x_BLNH[:, : self._length], x_BLNH[:, self._length :]


@dataclass(frozen=True, slots=True)
class DeferredCommit:
    """A finished chunk whose keys and values are not in the window yet."""

    settled_BFCYX: Tensor
    level: float
    placed: KVRing
    """The session's ring as it was placed for this chunk; its tensors are the session's own."""
    entries: Entries = NO_ENTRIES
    """This chunk's own, whatever the next one's are."""

    @classmethod
    def to_carry(
        cls, settled_BFCYX: Tensor, level: float, ring: KVRing, entries: Entries = NO_ENTRIES
    ) -> DeferredCommit:
        """One that is still owed when the ring has been placed for the next chunk."""
        return cls(settled_BFCYX, level, ring.as_placed(), entries)

    @property
    def can_be_carried(self) -> bool:
        """A sink that is turned for the next chunk is not the one this chunk must see."""
        return self.placed.sink is None

    def own_call(self, cross: CrossKV) -> Call:
        """The commit as a call of its own, to be made at once: until then no branch may use the window."""
        self.placed.come_back()
        level_BF = per_frame(self.level, self.settled_BFCYX)
        return Call("commit", self.settled_BFCYX, level_BF, self.placed, cross, self.entries)

    def carried_by(self, call: Call) -> Call:
        """Both in one call; the flow of the finished chunk's frames comes first and means nothing."""
        assert isinstance(call.memory, KVRing), (
            f"a commit is carried by one session's chunk, not by {type(call.memory)}"
        )
        assert call.predicts, f"a commit is carried by a step, not by a {call.phase}"
        levels = torch.cat([per_frame(self.level, self.settled_BFCYX), call.level_BF], dim=1)
        latents = torch.cat([self.settled_BFCYX, call.latents_BFCYX], dim=1)
        frames = self.settled_BFCYX.shape[1], call.latents_BFCYX.shape[1]
        entries = join_frames([self.entries, call.entries], frames)
        return Call(call.phase, latents, levels, PairedMemory(self.placed, call.memory), call.cross, entries)


def carrying(owed: DeferredCommit, asking: Asking[T]) -> Asking[T]:
    """Do the work of `asking`, with a commit carried by its first call."""
    flow = yield owed.carried_by(next(asking))
    given = flow[:, owed.settled_BFCYX.shape[1] :]
    while True:
        try:
            call = asking.send(given)
        except StopIteration as done:
            return done.value
        given = yield call
