"""Memory of one GPU that the other ranks of a group read and write in their own kernels: NVLink, and no communicator.

A buffer is there on every rank, in the same shape; each sees all of them. `meet` is a barrier on the device: nobody goes on
before all are there, and what they wrote before is seen after. So what one wrote is read after one meeting; and it may be
written again after another one, whatever that was for, since whoever arrives there has read. Hence no two meetings in a row are
for the same buffer: those of a block take turns. That holds from call to call and in recordings, which may follow each other in
any order, because every walk over the blocks begins with rows and ends with sums or norms.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import _symmetric_memory as symmetric

from millstream.parallel.collectives import RankGroup


@dataclass(frozen=True, slots=True)
class PeerBuffer:
    """The same tensor on every rank, in the order of places."""

    each: Sequence[Tensor]
    meet: Callable[[], None]
    held: object = None
    """What must live as long as they are used."""

    def rows(self, first: int, count: int) -> list[Tensor]:
        return [whole.narrow(0, first, count) for whole in self.each]


class MakeBuffer(Protocol):
    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> PeerBuffer: ...


class PeerMemory:
    """A group's buffers, each made when it is first asked for, by all ranks at once, and kept: recordings name them."""

    def __init__(self, make: MakeBuffer) -> None:
        self._make = make
        self._buffers: dict[tuple[str, tuple[int, ...], torch.dtype], PeerBuffer] = {}
        self._last: PeerBuffer | None = None

    def buffer(self, what: str, shape: tuple[int, ...], dtype: torch.dtype) -> PeerBuffer:
        """Zeros, until somebody writes."""
        key = what, shape, dtype
        if key not in self._buffers:
            self._buffers[key] = self._make(shape, dtype)
        return self._buffers[key]

    def meeting(self, buffer: PeerBuffer) -> Callable[[], None]:
        """To be held when one's own is written and before others' are read."""
        assert buffer is not self._last, "a buffer is written again while others may still read it"
        self._last = buffer
        return buffer.meet


def symmetric_memory(group: RankGroup, device: torch.device) -> MakeBuffer:
    """Buffers in torch's symmetric memory."""
    assert group.handle is not None, f"group {group.name} has nobody to share memory with"
    handle = group.handle

    def make(shape: tuple[int, ...], dtype: torch.dtype) -> PeerBuffer:
        assert not torch.cuda.is_current_stream_capturing(), f"a recording cannot be the first to use a buffer of {shape}"
        own = symmetric.empty(*shape, dtype=dtype, device=device)
        own.view(torch.uint8).zero_()
        torch.cuda.synchronize(device)  # nobody else writes before all have come to the rendezvous
        shared = symmetric.rendezvous(own, handle)
        each = [shared.get_buffer(place, shape, dtype) for place in range(group.size)]
        return PeerBuffer(each, shared.barrier, (own, shared))

    return make


def find_peer_memory(group: RankGroup, device: torch.device) -> PeerMemory | str:
    """The group's, or why it has none: the same on all of its ranks, which all ask."""
    if group.handle is None or group.through_host or device.type != "cuda":
        return "it needs several ranks that speak NCCL"
    if len(set(group.gather(socket.gethostname(), "peer memory"))) > 1:
        return "its ranks are on several machines"
    memory, failed = PeerMemory(symmetric_memory(group, device)), ""
    try:
        memory.buffer("trial", (1,), torch.float32)
    except RuntimeError as error:
        failed = str(error).splitlines()[0]
    return next((reason for reason in group.gather(failed, "peer memory") if reason), "") or memory
