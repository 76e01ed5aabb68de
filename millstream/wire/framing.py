"""Encoding of a message and its tensors as bytes: a fixed header, metadata by msgspec, tensors in the order
of a manifest.

    header   32 bytes: magic, version, kind, sizes, checksums of the metadata and of itself
    meta     the message and the manifest (name, dtype, shape and checksum of each tensor)
    tensors  one after the other, as they lie in memory

`pack` does everything that can fail, before the first byte leaves. What is read is believed only after its
header, its sizes and its checksums agree; nothing is allocated that the limits do not allow. Knows neither
sockets nor ranks.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import torch
from torch import Tensor

from millstream.core.envelope import Envelope, Result
from millstream.core.errors import WireError

VERSION = 1
MAGIC = b"MLST"
MAX_META_BYTES = 2**20
MAX_TENSORS = 96
"""Thirty-two chunks that run together, with three tensors each."""
MAX_DIMS = 8
MAX_SIDE = 2**40
MAX_PAYLOAD_BYTES = 2**34

_HEADER = struct.Struct("<4sHHIIQII")
HEADER_BYTES = _HEADER.size
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
    "uint8": torch.uint8,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ITEM_BYTES = {name: dtype.itemsize for name, dtype in DTYPES.items()}


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """From the front: chunks that may share their model calls, or one instruction."""

    sequence: int
    """Counts everything a front sends to one mesh, from 1; the leader takes nothing out of order."""
    envelopes: tuple[Envelope, ...]


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """From the leader: one result for each chunk, in the order they were asked for."""

    sequence: int
    """Number of the orders they answer."""
    results: tuple[Result, ...]
    fatal: str = ""
    """Why the mesh cannot go on, where it cannot."""
    held_bytes: int = 0
    """Keys, values and prompts that sessions hold on the leader."""
    phases_ms: dict[str, float] = {}
    """Where the leader's time went."""


Message = Orders | Answers
_KINDS: dict[int, type[Orders] | type[Answers]] = {1: Orders, 2: Answers}
_NUMBERS: dict[type, int] = {kind: number for number, kind in _KINDS.items()}


class TensorEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a manifest."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    checksum: int | None = None
    """None until the tensor is in host memory, through which everything travels."""

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]


class FrameHeader(NamedTuple):
    kind: int
    meta_bytes: int
    num_tensors: int
    payload_bytes: int
    checksum: int


class Frame(NamedTuple):
    """Ready to be sent: nothing about it can fail any more."""

    message: Message
    manifest: tuple[TensorEntry, ...]
    tensors: tuple[Tensor, ...]
    header: bytes
    meta: bytes
    memory: tuple[memoryview, ...]
    """The tensors' bytes; none until all of them are in host memory."""


_Told = TypeVar("_Told")


class _Meta(msgspec.Struct, Generic[_Told], frozen=True, kw_only=True):
    message: _Told
    tensors: tuple[TensorEntry, ...]


_ENCODER = msgspec.msgpack.Encoder()
_DECODERS: dict[int, Any] = {
    1: msgspec.msgpack.Decoder(_Meta[Orders]),
    2: msgspec.msgpack.Decoder(_Meta[Answers]),
}


def pack(message: Message, tensors: Mapping[str, Tensor]) -> Frame:
    """Refuses what the wire does not carry; afterwards only the connection can fail."""
    contiguous = tuple(
        [tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in tensors.values()]
    )
    here = all(tensor.is_cpu for tensor in contiguous)
    memory = tuple(map(memory_of, contiguous)) if here else ()
    checksums = map(zlib.crc32, memory) if here else itertools.repeat(None)
    manifest = tuple(map(_entry, tensors, contiguous, checksums))
    payload_bytes = _payload_bytes(manifest)
    try:
        meta = _ENCODER.encode(_Meta(message=message, tensors=manifest))
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise WireError(f"{type(message).__name__} cannot be serialised: {error}") from None
    if len(meta) > MAX_META_BYTES:
        raise WireError(f"metadata of {len(meta)} bytes; the wire carries {MAX_META_BYTES}")
    header = _header(_NUMBERS[type(message)], meta, len(manifest), payload_bytes)
    return Frame(message, manifest, contiguous, header, meta, memory)


def on_host(frame: Frame, tensors: Sequence[Tensor]) -> Frame:
    """As it travels: with its tensors as they came to host memory, each with its checksum."""
    assert all(tensor.is_cpu for tensor in tensors), "what travels is in host memory"
    return pack(
        frame.message, {entry.name: tensor for entry, tensor in zip(frame.manifest, tensors, strict=True)}
    )


def read_header(data: bytes | bytearray) -> FrameHeader:
    """Refuses anything that is not a header of this version and within the limits."""
    if len(data) != HEADER_BYTES:
        raise WireError(f"a header has {HEADER_BYTES} bytes, got {len(data)}")
    magic, version, kind, meta_bytes, num_tensors, payload_bytes, checksum, own = _HEADER.unpack(data)
    if magic != MAGIC:
        raise WireError(f"this is not a message of ours: it begins with {magic!r}")
    if version != VERSION:
        raise WireError(f"wire version {version} is not spoken here; this side speaks {VERSION}")
    if own != zlib.crc32(data[:-4]):
        raise WireError("a header was damaged on its way")
    if kind not in _KINDS:
        raise WireError(f"message kind {kind} is not known here; known: {', '.join(map(str, _KINDS))}")
    if meta_bytes > MAX_META_BYTES or num_tensors > MAX_TENSORS or payload_bytes > MAX_PAYLOAD_BYTES:
        raise WireError(
            f"a message of {meta_bytes} and {payload_bytes} bytes in {num_tensors} tensors is past the limits"
        )
    return FrameHeader(kind, meta_bytes, num_tensors, payload_bytes, checksum)


def read_meta(header: FrameHeader, data: bytes | bytearray) -> tuple[Message, tuple[TensorEntry, ...]]:
    """The message and the manifest, if they are what the header announced."""
    if len(data) != header.meta_bytes or zlib.crc32(data) != header.checksum:
        raise WireError("metadata was damaged on its way")
    try:
        meta = _DECODERS[header.kind].decode(data)
    except (msgspec.MsgspecError, ValueError) as error:  # ValueError: text that is no text
        raise WireError(f"metadata cannot be read: {error}") from None
    if _payload_bytes(meta.tensors) != header.payload_bytes or len(meta.tensors) != header.num_tensors:
        raise WireError("the manifest does not match its header")
    return meta.message, meta.tensors


def check_memory(entry: TensorEntry, memory: memoryview) -> None:
    """Refuse a tensor's bytes that are not as they were sent."""
    if zlib.crc32(memory) != entry.checksum:
        raise WireError(f"tensor {entry.name} was damaged on its way")


def checksum_of(tensor: Tensor) -> int:
    """Return the checksum of a contiguous tensor in host memory."""
    return zlib.crc32(memory_of(tensor))


def memory_of(tensor: Tensor) -> memoryview:
    """A contiguous tensor's bytes in host memory, not copied; they hold it. Without views by torch and numpy,
    which take thrice as long."""
    assert tensor.is_cpu, f"bytes are read in host memory, not on {tensor.device}"
    assert tensor.is_contiguous(), (
        f"{tuple(tensor.shape)} is not one run of memory: strides {tensor.stride()}"
    )
    memory: Any = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    memory.owner = tensor
    return memoryview(memory).cast("B")


def _entry(name: str, tensor: Tensor, checksum: int | None) -> TensorEntry:
    dtype = _NAMES.get(tensor.dtype)
    if dtype is None:
        raise WireError(f"tensor {name} is {tensor.dtype}; the wire carries {', '.join(DTYPES)}")
    return TensorEntry(name=name, dtype=dtype, shape=tuple(tensor.shape), checksum=checksum)


def _payload_bytes(manifest: tuple[TensorEntry, ...]) -> int:
    """Count the bytes of all tensors; raise for a tensor that the wire does not carry."""
    if len(manifest) > MAX_TENSORS or len({entry.name for entry in manifest}) != len(manifest):
        raise WireError(f"a message carries at most {MAX_TENSORS} tensors, each with its own name")
    return sum(map(_checked_bytes, manifest))


def _checked_bytes(entry: TensorEntry) -> int:
    shape = entry.shape
    if entry.dtype not in DTYPES:
        raise WireError(f"tensor {entry.name} is {entry.dtype}; the wire carries {', '.join(DTYPES)}")
    if len(shape) > MAX_DIMS or (shape and not 0 <= min(shape) <= max(shape) < MAX_SIDE):
        raise WireError(f"tensor {entry.name} has the shape {shape}")
    num_bytes = entry.num_bytes
    if num_bytes > MAX_PAYLOAD_BYTES:
        raise WireError(f"tensor {entry.name} has {num_bytes} bytes; the wire carries {MAX_PAYLOAD_BYTES}")
    return num_bytes


def _header(kind: int, meta: bytes, num_tensors: int, payload_bytes: int) -> bytes:
    if payload_bytes > MAX_PAYLOAD_BYTES:
        raise WireError(f"{payload_bytes} bytes of tensors; the wire carries {MAX_PAYLOAD_BYTES}")
    head = _HEADER.pack(MAGIC, VERSION, kind, len(meta), num_tensors, payload_bytes, zlib.crc32(meta), 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(head))
