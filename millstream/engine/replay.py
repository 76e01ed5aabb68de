"""A journal run again: the same envelopes through the same code, each chunk's latents compared with what was
written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from millstream.core.errors import JournalError
from millstream.engine.depths import ONE_AT_A_TIME
from millstream.engine.engine import Engine
from millstream.engine.snapshot import Snapshot, revive
from millstream.engine.staggered import staggered_stream
from millstream.session.chunk import Chunk
from millstream.session.feed import Frames
from millstream.session.journal import Header, Journal
from millstream.session.session import Session


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayedChunk:
    chunk: Chunk
    recorded: str
    """The digest in the journal."""

    @property
    def identical(self) -> bool:
        return self.chunk.digest == self.recorded


def replay(
    engine: Engine, journal: Journal, frames: Iterable[Frames] | None = None, start: Snapshot | None = None
) -> Iterator[ReplayedChunk]:
    """Every chunk of the journal, generated again. `frames` are those of the input video, where there was
    one; `start` is the snapshot that the session went on from, where it was one that was saved."""
    header = journal.header
    check_weights(engine, header)
    if (header.input is not None) != (frames is not None):
        raise JournalError(
            "this journal needs its input video" if header.input else "this journal had no input video"
        )
    if (header.start is not None) != (start is not None):
        raise JournalError(
            "this journal needs its snapshot" if header.start else "this journal began with no snapshot"
        )
    if not journal.chunks:
        return
    if start is not None:
        session = revive(start, engine, header.session_id)
    else:
        prompts = journal.chunks[0].envelope.prompts
        session = engine.session(prompts, config=header.config, frames=frames, session_id=header.session_id)
    recorded = {line.envelope.chunk_index: line.digest for line in journal.chunks}
    for chunk in _followed(engine, session, journal):
        yield ReplayedChunk(chunk=chunk, recorded=recorded[chunk.index])
    session.close()


def _followed(engine: Engine, session: Session, journal: Journal) -> Iterator[Chunk]:
    """Its chunks one by one, or as many under way at a time as when it was made."""
    depth = journal.header.stream_batch
    stream = (
        staggered_stream(engine, session, depth=depth)
        if depth > 1
        else engine.stream(session, depths=ONE_AT_A_TIME)
    )
    return stream.replay(journal.chunks)


def check_weights(engine: Engine, header: Header) -> None:
    found = engine.fingerprint()
    if found != header.fingerprint:
        raise JournalError(
            f"the journal was made with weights {header.fingerprint}, these are {found}; "
            "give the same --weights, --lora, --device and --dtype"
        )


def differences(engine: Engine, header: Header) -> list[str]:
    """Return what is not as it was, and may therefore change bits."""
    pairs = [(name, getattr(header, name), now) for name, now in engine.surroundings().items()]
    return [f"{name}: {then} then, {now} now" for name, then, now in pairs if then != now]
