"""A session as one file: taken between two chunks, read back here or elsewhere, and it goes on to the same
bits.

The file is safetensors, so reading one runs no code; what is not a tensor is JSON in its metadata. A file is
only taken up by the very weights it was made with, in the same dtype, and only if what it holds has the
names, shapes and types that this model gives (`engine/snapshot_parts.py`): that is known from its table of
contents, before any of it is read.

What a mesh holds of a session stays there. One that is saved from a mesh, or goes on on one, has its window
rebuilt from its clean latents, as after a rank was lost (`mesh/recovery.py`): to the same bits while the
window holds all of the epoch under one prompt, later as a recompute would leave it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from millstream.core.conditions import FrameConditions
from millstream.core.config import StreamConfig
from millstream.core.errors import MillstreamError, NotKept, SnapshotError
from millstream.core.files import Staging
from millstream.engine.engine import Engine
from millstream.engine.snapshot_parts import Look, check_parts
from millstream.generation.generator import SessionCache
from millstream.models.carry import VAEState
from millstream.models.dit import CrossKV
from millstream.models.kv import KVRing
from millstream.models.ring_shape import RingShape
from millstream.session.feed import LiveFeed
from millstream.session.history import HistoryState
from millstream.session.kept import KeptAs
from millstream.session.ports import ChunkLog
from millstream.session.session import Session
from millstream.session.state import SessionState
from millstream.session.timeline import TimelineState, shaped_by

VERSION = 1
KEY = "millstream"
"""Name of our header in the file's metadata."""
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}
"""Data types, by their names in the file."""
GONE = "this snapshot cannot be read; the oldest are removed when there are too many"
MAX_HEADER_BYTES = 32 * 2**20
"""Most bytes of a file's table of contents: of a session with as many pictures waiting as may, in base64."""


class RingState(msgspec.Struct, frozen=True, kw_only=True):
    """Which frame each slot of the window holds, and how many were ever written."""

    frames: tuple[int, ...]
    written: int


class SnapshotHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is not a tensor."""

    version: int = VERSION
    model: str
    fingerprint: str
    dtype: str
    config: StreamConfig
    timeline: TimelineState
    ring: RingState | None
    """None where nothing was generated yet, and where a mesh holds it."""
    motion: float | None
    conditions: Mapping[int, FrameConditions] = msgspec.field(default_factory=dict)
    """Conditions of the window's frames; older files have none."""
    kept: KeptAs | None = None
    """Whose state it is, where a server keeps it to bring the session back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    header: SnapshotHeader
    tensors: Mapping[str, Tensor]
    """On the host: `ring.k`, `cross.v.3`, `history.latents.12`, `decoder.0`, …"""


def capture(engine: Engine, session: Session, fingerprint: str, kept: KeptAs | None = None) -> Snapshot:
    """A copy of all that a session is. On the thread that owns it; `fingerprint` is the engine's model's.
    Raises while its tensors are behind its timeline."""
    if session.again:
        raise SnapshotError(
            f"{len(session.again)} chunks that lead to where it went back to are made again; save it after them"
        )
    state = session.state()
    cache = _cache_of(engine, session)
    timeline = _timeline_for(engine, state.timeline)
    header = SnapshotHeader(
        model=engine.spec.name,
        fingerprint=fingerprint,
        dtype=str(engine.dtype),
        config=shaped_by(session.config, timeline),
        timeline=timeline,
        ring=None
        if cache is None
        else RingState(frames=tuple(cache.ring.slots.frames), written=cache.ring.slots.written),
        motion=state.motion,
        conditions=state.history.conditions,
        kept=kept,
    )
    held = dict(_session_tensors(state)) | dict(_cache_tensors(cache))
    return Snapshot(
        header=header, tensors={name: tensor.to("cpu", copy=True) for name, tensor in held.items()}
    )


def write(snapshot: Snapshot, path: Path) -> None:
    """The file appears whole or not at all."""
    text = msgspec.json.encode(snapshot.header).decode()
    tensors = {name: tensor.contiguous() for name, tensor in snapshot.tensors.items()}
    try:
        with Staging(path.parent) as staging:
            save_file(tensors, staging.path(path.name), metadata={KEY: text})
    except (OSError, SafetensorError) as error:
        raise NotKept(f"cannot write {path}: {error}; free some space") from None


def read(path: Path, engine: Engine, fingerprint: str) -> Snapshot:
    """A file's session, if this engine can go on with it."""
    header = check(path, engine, fingerprint)
    try:
        with safe_open(str(path), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except SafetensorError as error:
        raise SnapshotError(f"this is not a whole snapshot: {error}") from None
    except OSError:
        raise SnapshotError(GONE) from None
    return Snapshot(header=header, tensors=tensors)


def check(path: Path, engine: Engine, fingerprint: str) -> SnapshotHeader:
    """Check that this engine can go on with a file's session, without loading a tensor of it. Return its
    header."""
    header = read_header(path)
    _check_model(header, engine, fingerprint)
    try:
        header.timeline.check(header.config)
        _check_conditions(header)
        _check_ring(header)
        check_parts(_looks(path), header.config, header.timeline, engine, has_ring=header.ring is not None)
    except (SafetensorError, MillstreamError) as error:
        raise SnapshotError(f"this is not a whole snapshot: {error}") from None
    except OSError:
        raise SnapshotError(GONE) from None
    return header


_HEADER = msgspec.json.Decoder(SnapshotHeader)
"""Made here: two threads that are the first to decode a type crash the process, and sessions come back side
by side."""


def read_header(path: Path) -> SnapshotHeader:
    """Read a file's header, without loading a tensor."""
    try:
        with path.open("rb") as file:
            metadata = _metadata(file)
        header = _HEADER.decode(metadata)
    except (
        OSError,
        msgspec.MsgspecError,
        MillstreamError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise SnapshotError(f"this is not a snapshot: {str(error)[:200]}") from None
    if header.version != VERSION:
        raise SnapshotError(
            f"this is a snapshot of version {header.version}; this program reads version {VERSION}"
        )
    return header


def revive(
    snapshot: Snapshot,
    engine: Engine,
    session_id: str,
    *,
    feed: LiveFeed | None = None,
    journal: ChunkLog | None = None,
) -> Session:
    """A new session that goes on where the saved one was."""
    header = snapshot.header
    tensors = snapshot.tensors
    session = engine.session(
        header.timeline.prompts, config=header.config, frames=feed, journal=journal, session_id=session_id
    )
    host = {name: tensor.to(engine.device, copy=True) for name, tensor in tensors.items()}
    last = tensors.get("motion.last")
    state = SessionState(
        timeline=_timeline_for(engine, header.timeline),
        history=HistoryState(tensors=_under("history.", host), conditions=header.conditions),
        decoder=_numbered("decoder.", host),
        encoder=_numbered("encoder.", host),
        last_input=None if last is None else last.clone().numpy(),
        motion=header.motion,
    )
    session.resume(state)
    if header.ring is not None and engine.mesh is None:
        shape = RingShape.of(engine.spec.dit, header.config)
        pool = engine.generator.pages
        ring = KVRing(shape, device=engine.device, dtype=engine.dtype, pool=pool)
        ring.resume(_under("ring.", host), header.ring.frames, header.ring.written)
        cross = CrossKV(_numbered("cross.k.", host), _numbered("cross.v.", host))
        engine.generator.caches[session_id] = SessionCache(ring, cross)
    return session


def _cache_of(engine: Engine, session: Session) -> SessionCache | None:
    if engine.mesh is not None:
        return None
    engine.generator.run_commit(session.id)  # one that is owed is not in the ring yet
    return engine.generator.caches.get(session.id)


def _timeline_for(engine: Engine, timeline: TimelineState) -> TimelineState:
    """Without the window, the next chunk rebuilds it."""
    return timeline if engine.mesh is None else timeline.rebuilding()


def _session_tensors(state: SessionState) -> Iterator[tuple[str, Tensor]]:
    yield from ((f"history.{name}", tensor) for name, tensor in state.history.tensors.items())
    yield from ((f"decoder.{number}", tensor) for number, tensor in enumerate(state.decoder))
    yield from ((f"encoder.{number}", tensor) for number, tensor in enumerate(state.encoder))
    if state.last_input is not None:
        yield "motion.last", torch.from_numpy(state.last_input)


def _cache_tensors(cache: SessionCache | None) -> Iterator[tuple[str, Tensor]]:
    if cache is None:
        return
    assert cache.cross is not None, "a session that has run has read a prompt"
    yield from ((f"ring.{name}", tensor) for name, tensor in cache.ring.state().items())
    yield from ((f"cross.k.{number}", tensor) for number, tensor in enumerate(cache.cross.k))
    yield from ((f"cross.v.{number}", tensor) for number, tensor in enumerate(cache.cross.v))


def _check_model(header: SnapshotHeader, engine: Engine, fingerprint: str) -> None:
    if header.model != engine.spec.name:
        raise SnapshotError(f"this session was saved with {header.model}; serve that model to go on with it")
    if header.dtype != str(engine.dtype):
        raise SnapshotError(
            f"this session was saved in {header.dtype}, not {engine.dtype}; serve with that --dtype"
        )
    if header.fingerprint != fingerprint:
        raise SnapshotError(
            f"this session was saved with other weights of {header.model}; serve those to go on with it"
        )


def _check_conditions(header: SnapshotHeader) -> None:
    """Each is sound and of a frame that was made; which frames are held, their latents say."""
    if len(header.conditions) > header.config.window:
        raise SnapshotError(f"it has conditions of {len(header.conditions)} frames")
    for frame, conditions in header.conditions.items():
        if not 0 <= frame < header.timeline.start_frame:
            raise SnapshotError(f"it has conditions of frame {frame}, which was not made")
        conditions.check()


def _check_ring(header: SnapshotHeader) -> None:
    """The next chunk goes on from the ring, unless it is to build the ring anew."""
    ring = header.ring
    timeline = header.timeline
    window = header.config.window
    if ring is None:
        if not timeline.pending.init_cache:
            raise SnapshotError("its window is missing, and its next chunk does not build one")
        return
    if len(ring.frames) != window or ring.written < 0 or min(ring.frames) < -1:
        raise SnapshotError(
            f"its window has {len(ring.frames)} slots, not {window} with a frame or none in each"
        )
    pending = timeline.pending
    is_built_anew = (
        pending.init_cache or pending.reset_kv or pending.recompute or header.config.anchor != "off"
    )
    if not is_built_anew and max(ring.frames) + 1 != timeline.start_frame:
        raise SnapshotError(
            f"its window ends at frame {max(ring.frames)}, its next chunk begins at {timeline.start_frame}"
        )


def _looks(path: Path) -> dict[str, Look]:
    """Return the shape and type of each tensor, from the table of contents."""
    with safe_open(str(path), framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        return {
            name: Look(tuple(each.get_shape()), _dtype(name, each.get_dtype()))
            for name, each in slices.items()
        }


def _dtype(name: str, spelled: str) -> torch.dtype:
    if spelled not in DTYPES:
        raise SnapshotError(f"{name[:60]} is of type {spelled}; sessions hold {', '.join(DTYPES)}")
    return DTYPES[spelled]


def _metadata(file: IO[bytes]) -> str:
    """Our header, out of the table of contents that opens a safetensors file."""
    beginning = file.read(8)
    if len(beginning) < 8:
        raise SnapshotError(f"it has {len(beginning)} bytes in all")
    size = int.from_bytes(beginning, "little")
    if size > MAX_HEADER_BYTES:
        raise SnapshotError(f"its table of contents would have {size} bytes")
    text = json.loads(file.read(size))["__metadata__"][KEY]
    if not isinstance(text, str):
        raise SnapshotError("its header is not text")
    return text


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _numbered(prefix: str, tensors: Mapping[str, Tensor]) -> VAEState:
    """In the order of their numbers."""
    held = _under(prefix, tensors)
    try:
        return tuple(held[str(number)] for number in range(len(held)))
    except KeyError:
        raise SnapshotError(f"{prefix}* is not numbered from 0") from None
