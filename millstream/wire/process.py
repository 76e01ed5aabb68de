"""Frames between two processes, over a line or a group of ranks: header, then metadata, then tensors in
manifest order.

A failure after the header leaves the connection unusable: the caller leaves it, it does not repair it. Frames
travel through host memory, and arrive in memory of their own, pinned where there is a device to go on to:
torch gives that out again only when copies from it are over.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from millstream.core.errors import WireError
from millstream.wire.framing import (
    DTYPES,
    HEADER_BYTES,
    Frame,
    Message,
    TensorEntry,
    check_memory,
    memory_of,
    read_header,
    read_meta,
)


class Channel(Protocol):
    """To one peer, or to all of them. Both wait until it is done."""

    def send(self, header: bytes, meta: bytes, /, *tensors: memoryview) -> None:
        """One message."""

    def receive(self, into: memoryview, *, what: str) -> None: ...


class Received(NamedTuple):
    """A message that arrived whole."""

    message: Message
    tensors: dict[str, Tensor]


class Wire:
    """Both directions between this process and one peer. One thread sends and one receives, the same or
    another."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._header = bytearray(HEADER_BYTES)
        """Read again and again."""
        self._pinned = torch.cuda.is_available()

    def send(self, frame: Frame) -> None:
        """Everything that can be refused has been by now. Returns when it has left."""
        assert len(frame.header) == HEADER_BYTES, f"a header of {len(frame.header)} bytes"
        assert len(frame.memory) == len(frame.tensors), "what travels is in host memory"
        self._channel.send(frame.header, frame.meta, *[memory for memory in frame.memory if memory])

    def receive(self) -> Received:
        """Waits for a message. What is not believable ends the connection: its sizes cannot be trusted
        either."""
        self._channel.receive(memoryview(self._header), what="header")
        header = read_header(self._header)
        if header.meta_bytes == 0:
            raise WireError("a message without metadata")
        meta = bytearray(header.meta_bytes)
        self._channel.receive(memoryview(meta), what="metadata")
        message, manifest = read_meta(header, meta)
        return Received(
            message=message, tensors={entry.name: self._receive_tensor(entry) for entry in manifest}
        )

    def _receive_tensor(self, entry: TensorEntry) -> Tensor:
        sides = entry.shape or ((),)  # torch reads them faster than a tuple of them; a number has none
        tensor = torch.empty(*sides, dtype=DTYPES[entry.dtype], pin_memory=self._pinned)
        memory = memory_of(tensor)
        if memory:
            self._channel.receive(memory, what="tensor")
        check_memory(entry, memory)
        return tensor
