"""Sum tensor parallel's matmuls in memory that all ranks of a group read and write in their own kernels,
over NVLink.

A matmul leaves its part where the others see it, and the kernel that adds to the residual and norms it sums
all parts of its rows as it reads them, and writes what it makes of them to every rank.

A buffer is there on every rank, in the same shape; each sees all of them. `meet` is a barrier on the device:
no rank goes on before all are there, and what they wrote before is seen after. So what one wrote is read
after one meeting; and it may be written again after another one, whatever that was for, since a rank that
arrives there has read. Hence no two meetings in a row are for the same buffer: those of a block take turns.
That holds from call to call and in recordings, which may follow each other in any order, because every walk
over the blocks begins with rows and ends with sums or norms.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import _symmetric_memory as symmetric

from millstream.models.fast.linear import Dense
from millstream.ops.fp8 import E4M3, Rows8
from millstream.ops.frame_rows import Addend
from millstream.ops.rows import add_norm
from millstream.parallel.collectives import RankGroup
from millstream.parallel.fast_tensor import TensorSpread


@dataclass(frozen=True, slots=True)
class PeerBuffer:
    """A tensor that every rank has in the same shape, in the order of places."""

    each: Sequence[Tensor]
    meet: Callable[[], None]
    held: object = None
    """Object that must live as long as the tensors are used."""

    def rows(self, first: int, count: int) -> list[Tensor]:
        return [whole.narrow(0, first, count) for whole in self.each]


class MakeBuffer(Protocol):
    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> PeerBuffer: ...


class PeerMemory:
    """A group's buffers, each made when it is first asked for, by all ranks at once, and kept: recordings
    name them."""

    def __init__(self, make: MakeBuffer) -> None:
        self._make = make
        self._buffers: dict[tuple[str, tuple[int, ...], torch.dtype], PeerBuffer] = {}
        self._last: PeerBuffer | None = None

    def buffer(self, what: str, shape: tuple[int, ...], dtype: torch.dtype) -> PeerBuffer:
        """Return a buffer of zeros that is yet to be written."""
        key = what, shape, dtype
        if key not in self._buffers:
            self._buffers[key] = self._make(shape, dtype)
        return self._buffers[key]

    def meeting(self, buffer: PeerBuffer) -> Callable[[], None]:
        """Return the barrier to call when a rank's own part is written and before others' are read."""
        assert buffer is not self._last, "a buffer is written again while others may still read it"
        self._last = buffer
        return buffer.meet


class PeerTensorSpread(TensorSpread):
    """Tensor parallel whose ranks sum and collect in each other's memory, wherever a call's rows are shared
    out."""

    def __init__(self, group: RankGroup, peers: PeerMemory) -> None:
        super().__init__(group)
        self.peers = peers

    def normed(
        self,
        x_LD: Tensor,
        y: Addend | None,
        gate_FD: Tensor | None,
        scale_FD: Tensor,
        shift_FD: Tensor,
        *,
        eps: float,
        fp8: bool,
        what: str,
    ) -> Tensor | Rows8:
        if not self.share:
            return super().normed(x_LD, y, gate_FD, scale_FD, shift_FD, eps=eps, fp8=fp8, what=what)
        values = self._buffer("rows", x_LD.shape[1], E4M3 if fp8 else x_LD.dtype)
        scales = self._buffer("scales", 1, torch.float32) if fp8 else None
        outs = self._mine(values, scales)
        add_norm(x_LD, y, gate_FD, scale_FD, shift_FD, eps=eps, fp8=fp8, rows=self.rows, outs=outs)
        self.group.meet("collect", what, values.rows(0, self.share)[0], self.peers.meeting(values))
        whole = values.each[self.group.place][: self.count]
        return whole if scales is None else Rows8(whole, scales.each[self.group.place][: self.count])

    def summed_product(self, product: Dense, x: Tensor | Rows8, what: str) -> Addend:
        """Return all ranks' parts of this rank's rows, which are still to be summed."""
        if not self.share:
            return super().summed_product(product, x, what)
        outputs, _ = product.weight.shape
        sums = self._buffer("sums", outputs, product.bias.dtype)
        own = sums.each[self.group.place]
        product.product(x, own[: self.count])
        self.group.meet("scatter", what, own, self.peers.meeting(sums))
        return self._rows(sums)

    def sum_means(self, means_2L: Tensor) -> Tensor:
        if not self.share:
            return super().sum_means(means_2L)
        means = self.peers.buffer("norms", tuple(means_2L.shape), means_2L.dtype)
        own = means.each[self.group.place].copy_(means_2L)
        self.group.meet("sum", "norms", own, self.peers.meeting(means))
        return torch.stack(list(means.each)).sum(0)

    def _buffer(self, name: str, width: int, dtype: torch.dtype) -> PeerBuffer:
        return self.peers.buffer(name, (self.share * self.group.size, width), dtype)

    def _rows(self, buffer: PeerBuffer) -> list[Tensor]:
        """Return this rank's rows in every rank's memory."""
        assert self.rows is not None, "rows are shared out"
        return buffer.rows(self.rows.first, self.share)

    def _mine(self, values: PeerBuffer, scales: PeerBuffer | None) -> list[Tensor | Rows8]:
        if scales is None:
            return [*self._rows(values)]
        return [Rows8(*each) for each in zip(self._rows(values), self._rows(scales), strict=True)]


def symmetric_memory(group: RankGroup, device: torch.device) -> MakeBuffer:
    """Return what makes buffers in torch's symmetric memory."""
    assert group.handle is not None, f"group {group.name} has no peer to share memory with"
    handle = group.handle

    def make(shape: tuple[int, ...], dtype: torch.dtype) -> PeerBuffer:
        assert not torch.cuda.is_current_stream_capturing(), (
            f"a recording cannot be the first to use a buffer of {shape}"
        )
        own = symmetric.empty(*shape, dtype=dtype, device=device)
        own.view(torch.uint8).zero_()
        torch.cuda.synchronize(device)  # no peer writes before all have come to the rendezvous
        shared = symmetric.rendezvous(own, handle)
        each = [shared.get_buffer(place, shape, dtype) for place in range(group.size)]
        return PeerBuffer(each, shared.barrier, (own, shared))

    return make


def find_peer_memory(group: RankGroup, device: torch.device) -> PeerMemory | str:
    """Return the group's memory, or why it has none: the same on all of its ranks, which all ask."""
    if group.handle is None or group.through_host or device.type != "cuda":
        return "it needs several ranks that speak NCCL"
    if len(set(group.gather(socket.gethostname(), "peer memory"))) > 1:
        return "its ranks are on several machines"
    memory = PeerMemory(symmetric_memory(group, device))
    failed = ""
    try:
        memory.buffer("trial", (1,), torch.float32)
    except RuntimeError as error:
        failed = str(error).splitlines()[0]
    return next((reason for reason in group.gather(failed, "peer memory") if reason), "") or memory
