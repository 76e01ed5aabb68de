"""Frames between two processes, over a group of ranks: header, then metadata, then tensors in manifest order.

One thread of a process calls this, and nobody else touches the group. A failure after the header leaves the group unusable:
the caller leaves it, it does not repair it. Frames travel through host memory: tensors of a device are copied there first,
and arrive in pinned memory where there is a device to go on to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from millstream.core.errors import WireError
from millstream.wire.buffers import Buffers
from millstream.wire.framing import (
    HEADER_BYTES,
    Frame,
    Message,
    TensorEntry,
    as_bytes,
    check_tensor,
    on_host,
    read_header,
    read_meta,
)


class ComingTensor(Protocol):
    def wait(self) -> Tensor: ...


class Channel(Protocol):
    """Point to point between ranks, each numbered as in the world."""

    def send(self, x: Tensor, *, to: int, what: str) -> ComingTensor: ...

    def receive(self, x: Tensor, *, source: int, what: str) -> ComingTensor: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """A message that arrived whole."""

    frame: Frame
    message: Message
    tensors: dict[str, Tensor]
    """In memory that the next but one message uses again."""


class Wire:
    """Both directions between this process and one peer."""

    def __init__(self, channel: Channel, peer: int) -> None:
        self._channel, self._peer = channel, peer
        self._buffers = Buffers(pinned=torch.cuda.is_available())

    def begin(self, frame: Frame) -> list[ComingTensor]:
        """Everything that can be refused has been by now. What is sent must not change before each part has been waited for."""
        frame = on_host(frame)
        assert len(frame.header) == HEADER_BYTES, f"a header of {len(frame.header)} bytes"
        parts = [(_as_tensor(frame.header), "header"), (_as_tensor(frame.meta), "metadata")]
        parts += [(as_bytes(tensor), "tensor") for tensor in frame.tensors if tensor.numel()]
        return [self._channel.send(raw, to=self._peer, what=what) for raw, what in parts]

    def send(self, frame: Frame) -> None:
        """The same, and it has left."""
        for part in self.begin(frame):
            part.wait()

    def receive(self) -> Received:
        """Waits for a message. What is not believable ends the connection: its sizes cannot be trusted either."""
        head = self._receive(HEADER_BYTES, "header")
        header = read_header(head)
        meta = self._receive(header.meta_bytes, "metadata")
        message, manifest = read_meta(header, meta)
        tensors = {entry.name: self._receive_tensor(entry) for entry in manifest}
        return Received(frame=Frame(head, meta, tuple(tensors.values())), message=message, tensors=tensors)

    def _receive(self, count: int, what: str) -> bytes:
        if count == 0:
            raise WireError("a message without metadata")
        raw = torch.empty(count, dtype=torch.uint8)
        self._channel.receive(raw, source=self._peer, what=what).wait()
        return raw.numpy().tobytes()

    def _receive_tensor(self, entry: TensorEntry) -> Tensor:
        buffer = self._buffers.take(entry)
        if buffer.numel():
            self._channel.receive(as_bytes(buffer), source=self._peer, what="tensor").wait()
        return check_tensor(entry, buffer)


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
