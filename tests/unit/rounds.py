"""The next chunk of several sessions in the same model calls, through the pipeline that serves people."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.engine.engine import Engine
from millstream.engine.flights import Planned
from millstream.engine.pipeline import ChunkPipeline, raise_failure
from millstream.generation.generator import kinship
from millstream.session.chunk import Chunk
from millstream.session.session import Session


def make_together(engine: Engine, sessions: Sequence[Session], *, alike: bool = True) -> list[Chunk]:
    """One chunk of each; `alike` where they must be able to share their calls."""
    chunks, decisions = list[Chunk](), [session.decide() for session in sessions]
    assert not alike or len({kinship(decision.envelope) for decision in decisions if decision is not None}) == 1
    pipeline = ChunkPipeline(
        engine.transport.post,
        engine.depths,
        engine.parts.stopwatch,
        shown=lambda landing, chunk: chunks.append(chunk),
        failed=raise_failure,
    )
    pipeline.turn([Planned(*each) for each in zip(sessions, decisions, strict=True) if each[1] is not None])
    pipeline.show()
    assert len(chunks) == len(sessions)
    return chunks
