"""Frames between two processes, over a line or a group of ranks: header, then metadata, then tensors in manifest order.

A failure after the header leaves the connection unusable: the caller leaves it, it does not repair it. Frames travel through
host memory, and arrive in memory of their own, pinned where there is a device to go on to: torch gives that out again only
when copies from it are over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from millstream.core.errors import WireError
from millstream.wire.framing import (
    DTYPES,
    HEADER_BYTES,
    Frame,
    Message,
    TensorEntry,
    check_tensor,
    memory_of,
    read_header,
    read_meta,
)


class Channel(Protocol):
    """To one peer, or to all of them. Both wait until it is done."""

    def send(self, data: bytes | memoryview, *, what: str, more: bool = False) -> None:
        """`more`: the rest of a message follows at once, and it may leave with that."""

    def receive(self, into: memoryview, *, what: str) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """A message that arrived whole."""

    message: Message
    tensors: dict[str, Tensor]


class Wire:
    """Both directions between this process and one peer. One thread sends and one receives, the same or another."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def send(self, frame: Frame) -> None:
        """Everything that can be refused has been by now. Returns when it has left."""
        assert len(frame.header) == HEADER_BYTES, f"a header of {len(frame.header)} bytes"
        tensors = [memory_of(tensor) for tensor in frame.tensors if tensor.numel()]
        self._channel.send(frame.header, what="header", more=True)
        self._channel.send(frame.meta, what="metadata", more=bool(tensors))
        for number, data in enumerate(tensors, start=1):
            self._channel.send(data, what="tensor", more=number < len(tensors))

    def receive(self) -> Received:
        """Waits for a message. What is not believable ends the connection: its sizes cannot be trusted either."""
        header = read_header(self._receive(HEADER_BYTES, "header"))
        message, manifest = read_meta(header, self._receive(header.meta_bytes, "metadata"))
        return Received(message=message, tensors={entry.name: self._receive_tensor(entry) for entry in manifest})

    def _receive(self, count: int, what: str) -> bytearray:
        if count == 0:
            raise WireError("a message without metadata")
        raw = bytearray(count)
        self._channel.receive(memoryview(raw), what=what)
        return raw

    def _receive_tensor(self, entry: TensorEntry) -> Tensor:
        tensor = torch.empty(entry.shape, dtype=DTYPES[entry.dtype], pin_memory=torch.cuda.is_available())
        if tensor.numel():
            self._channel.receive(memory_of(tensor), what="tensor")
        return check_tensor(entry, tensor)
