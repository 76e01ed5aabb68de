"""The next chunk of several sessions in the same model calls, through the pipeline that serves people."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.engine.engine import Engine
from millstream.engine.pipeline import ChunkPipeline, raise_failure
from millstream.generation.generator import envelope_batch_key
from millstream.session.chunk import Chunk, PendingChunk
from millstream.session.session import Session


def make_together(engine: Engine, sessions: Sequence[Session], *, alike: bool = True) -> list[Chunk]:
    """One chunk of each; `alike` where they must be able to share their calls."""
    chunks = list[Chunk]()
    decisions = [session.decide() for session in sessions]
    assert (
        not alike
        or len({envelope_batch_key(decision.envelope) for decision in decisions if decision is not None}) == 1
    )
    pipeline = ChunkPipeline(
        engine.transport.post,
        engine.depths,
        engine.parts.stopwatch,
        shown=lambda pending, chunk: chunks.append(chunk),
        failed=raise_failure,
    )
    planned = zip(sessions, decisions, strict=True)
    pipeline.turn([PendingChunk(session, plan) for session, plan in planned if plan is not None])
    pipeline.show()
    assert len(chunks) == len(sessions)
    return chunks
