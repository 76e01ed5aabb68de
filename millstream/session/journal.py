"""The journal: a header and one line per chunk, JSON, appended as the stream goes.

It is meant to be read after a crash, so it grows in place; a last line cut short is survived and reported. A
chunk that had an input which is in no file, as a camera's, or that begins from a picture, has the latents of
that in its line.
Shapes: B batch, F latent frames, C latent channels, Y and X rows and columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import torch
from torch import Tensor

from millstream.core.config import StreamConfig
from millstream.core.controls import Receipt
from millstream.core.envelope import Envelope
from millstream.core.errors import JournalError
from millstream.core.speed import Speed
from millstream.wire.framing import DTYPES, memory_of

VERSION = 1


class InputVideo(msgspec.Struct, frozen=True, kw_only=True):
    """The video a session restyled: where it was, and what was in it."""

    path: str
    digest: str


class SavedStart(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot that a session went on from: where it lies, seen from the journal's folder, and what was
    in it."""

    path: str
    digest: str


class ParentJournal(msgspec.Struct, frozen=True, kw_only=True):
    """The journal of the session that this one was forked from."""

    session_id: str
    path: str
    """Where it lies, seen from this journal's folder."""
    chunk: int
    """The first chunk of the branch's own."""
    lines: int
    """How many it had after its header when the branch began: it may have gone back since."""


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="header", tag_field="kind"):
    """All that a replay needs to set up the same stream."""

    version: int = VERSION
    model: str
    weights: tuple[str, ...]
    """Paths, or `random:SEED`."""
    loras: tuple[tuple[str, float], ...] = ()
    fingerprint: str
    config: StreamConfig
    session_id: str
    device: str
    dtype: str
    threads: int
    torch: str
    millstream: str
    topology: str = "local"
    exchange_groups: int = msgspec.field(default=1, name="head_groups")
    """Groups that heads travelled in between ranks. Journals have it under its first name."""
    vae_strips: int = 1
    """Devices that shared each picture: with decoded anchors, latents depend on that in rounding."""
    stream_batch: int = 1
    """Chunks that were under way at a time. Above 1 they are other chunks, not the same to rounding."""
    speed: Speed = msgspec.field(default_factory=Speed)
    """Which speed-ups were on: bits depend on them. A journal that says nothing of them was made without."""
    compile: str = "off"
    """Backend that compiled the blocks: bits depend on it."""
    input: InputVideo | None = None
    start: SavedStart | None = None
    parent: ParentJournal | None = None
    """Journal that a branch was forked from; the branch's path begins there (`session/journal_path.py`)."""
    num_frames: int | None = None
    """How many pixel frames were to be shown, where the run had an end: the last chunk may hold more."""


class InputLatents(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk's share of a live input, or the picture it begins from: clean latents as the VAE encoded them."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    num_frames: int
    """Pixel frames that the chunk showed: the last one of an input may hold more."""

    @classmethod
    def of(cls, latents_BFCYX: Tensor, num_frames: int) -> InputLatents:
        """Waits for a GPU."""
        dtype = str(latents_BFCYX.dtype).removeprefix("torch.")
        data = memory_of(latents_BFCYX.cpu().contiguous())
        return cls(dtype=dtype, shape=tuple(latents_BFCYX.shape), data=bytes(data), num_frames=num_frames)

    def latents(self) -> Tensor:
        """[B, F, C, Y, X] in host memory."""
        dtype = DTYPES.get(self.dtype)
        if dtype is None or math.prod(self.shape) * dtype.itemsize != len(self.data) or not self.data:
            raise JournalError(
                f"{len(self.data)} bytes of input are not {self.dtype} of the shape {self.shape}"
            )
        return torch.frombuffer(bytearray(self.data), dtype=dtype).view(self.shape)


class ChunkLine(msgspec.Struct, frozen=True, kw_only=True, tag="chunk", tag_field="kind"):
    envelope: Envelope
    digest: str
    receipts: tuple[Receipt, ...] = ()
    input: InputLatents | None = None


class RewindLine(msgspec.Struct, frozen=True, kw_only=True, tag="rewind", tag_field="kind"):
    """The session went back: of what stands above, this chunk and all after it did not happen."""

    chunk: int


AnyLine = ChunkLine | RewindLine


@dataclass(frozen=True, kw_only=True, slots=True)
class Journal:
    header: Header
    chunks: tuple[ChunkLine, ...]
    """Chunks of the path that the session took in the end."""
    cut_short: bool
    """True if the last line was incomplete, as after a crash."""


class JournalWriter:
    """Appends a line per chunk at once, so that a crash loses at most the chunk it interrupts. A line that
    does not fit on the disk is taken back: what is there before it stays whole."""

    def __init__(self, path: Path, header: Header, *, overwrite: bool = False) -> None:
        self._path = path
        self._has_video = header.input is not None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open(
                "wb" if overwrite else "xb", buffering=0
            )  # nothing is left to write when it is closed
        except FileExistsError:
            raise _exists(path) from None
        except OSError as error:
            raise JournalError(f"cannot write {path}: {error.strerror}; choose another --journal") from None
        self.num_bytes = 0
        try:
            self._append(header)
        except JournalError:
            self.close()
            path.unlink(missing_ok=True)
            raise

    def write(
        self,
        envelope: Envelope,
        digest: str,
        receipts: tuple[Receipt, ...],
        given: InputLatents | None = None,
    ) -> None:
        """`given` is written where the header names no video that has it."""
        given = None if self._has_video else given
        self._append(ChunkLine(envelope=envelope, digest=digest, receipts=receipts, input=given))

    def rewind(self, chunk_index: int) -> None:
        self._append(RewindLine(chunk=chunk_index))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, line: Header | AnyLine) -> None:
        rest = msgspec.json.encode(line) + b"\n"
        whole = self.num_bytes + len(rest)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            self.num_bytes = whole
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self.num_bytes)
            raise JournalError(
                f"cannot write {self._path}: {error.strerror}; free some space or choose another --journal"
            ) from None


def refuse_existing(path: Path) -> None:
    """For those who want to know before they have anything to write."""
    if path.exists():
        raise _exists(path)


def _exists(path: Path) -> JournalError:
    return JournalError(f"{path} exists already; pass --overwrite or choose another --journal")


def read_journal(path: Path, *, lines: int | None = None) -> Journal:
    """Read what was written; `lines` stops after so many, as it was then."""
    try:
        whole = path.read_bytes().split(b"\n")
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from None
    *whole, rest = whole
    if not whole:
        raise JournalError(f"{path} holds no complete line; it is not a journal or was cut off at once")
    header = _parse(whole[0], Header, path, 1)
    if header.version != VERSION:
        raise JournalError(
            f"{path} is a journal of version {header.version}; this program reads version {VERSION}"
        )
    parsed = [_parse(line, AnyLine, path, number) for number, line in enumerate(whole[1:], start=2)]
    return Journal(header=header, chunks=_path_of(parsed[:lines]), cut_short=bool(rest))


def _path_of(lines: Sequence[AnyLine]) -> tuple[ChunkLine, ...]:
    """Without what did not happen."""
    path: list[ChunkLine] = []
    for line in lines:
        if isinstance(line, RewindLine):
            path = [kept for kept in path if kept.envelope.chunk_index < line.chunk]
        else:
            path.append(line)
    return tuple(path)


def _parse(line: bytes, kind: Any, path: Path, number: int) -> Any:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise JournalError(f"{path}, line {number} is not part of a journal: {error}") from None
