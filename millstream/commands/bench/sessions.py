"""`millstream bench stream --sessions`: several streams on one device, what they make in all, and what a
further one holds.

They take turns chunk by chunk, or share their model calls. Every window is full and every call warm before
anything counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from millstream.commands.engine_from_options import load_engine
from millstream.commands.memory import session_bytes
from millstream.core.config import StreamConfig
from millstream.core.engine_config import EngineConfig
from millstream.core.examples import DEFAULT_PROMPT
from millstream.engine.engine import Engine
from millstream.engine.pipeline import ChunkPipeline, raise_failure
from millstream.ops.memory import bytes_in_use
from millstream.session.chunk import Chunk, PendingChunk
from millstream.session.session import Session

SETTLE = 3
"""Chunks after the window is full before anything counts."""
MAX_SESSIONS = 64
MIB = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedChunk:
    """One session's chunk, and the seconds that went into it."""

    number: int
    frames: int
    seconds: float


def settling_chunks(engine: Engine, config: StreamConfig) -> int:
    """Until a stream is as it will be."""
    return max(config.chunks_to_fill + SETTLE, engine.chunks_until_warm(config))


def measure_sessions(
    on: EngineConfig, config: StreamConfig, *, count: int, together: bool, chunks: int
) -> dict[str, Any]:
    """`count` streams of `chunks` chunks each."""
    engine = load_engine(on, config)
    sessions = []
    in_use = [bytes_in_use(engine.device)]
    for seed in range(count):
        sessions.append(engine.session(DEFAULT_PROMPT, config=replace(config, seed=seed)))
        for _ in sessions[-1].stream(settling_chunks(engine, config)):
            pass
        in_use.append(bytes_in_use(engine.device))
    people = Rounds(engine, sessions, together=together)
    for _ in range(engine.chunks_until_warm(config)):  # calls that are shared have shapes of their own
        people.make()
    people.turns.clear()
    begun = time.perf_counter()
    rounds = list[float]()
    for _ in range(chunks):
        before = time.perf_counter()
        people.make()
        rounds.append(1e3 * (time.perf_counter() - before))
    wall_s = time.perf_counter() - begun
    held = engine.held_bytes()
    turns = list(people.turns)
    people.finish()
    for session in sessions:
        session.close()
    return {
        "speed": engine.speed.names,
        "fp8": engine.speed.fp8,
        "dtype": str(engine.dtype).removeprefix("torch."),
        "sessions": count,
        "together": together,
        "fps": sum(turn.frames for turn in turns) / wall_s,
        "each": [_each(turns, number, wall_s) for number in range(count)],
        "round_ms": statistics.median(rounds),
        "memory_mib": {
            "first": (in_use[1] - in_use[0]) / MIB,
            "further": (in_use[-1] - in_use[1]) / max(1, count - 1) / MIB,
            "declared": session_bytes(engine.spec, config, engine.dtype, engine.speed) / MIB,
            "keys_and_values": held / count / MIB,
            "all": in_use[-1] / MIB,
        },
    }


class Rounds:
    """A chunk of each session, one after the other or in the same model calls, through the pipeline that
    serves people."""

    def __init__(self, engine: Engine, sessions: Sequence[Session], *, together: bool) -> None:
        self.turns: list[TimedChunk] = []
        self._sessions = sessions
        self._together = together
        self._pipeline = ChunkPipeline(
            engine.transport.post,
            engine.depths,
            engine.parts.stopwatch,
            shown=self._shown,
            failed=raise_failure,
        )

    def make(self) -> None:
        """One round. On a device that works ahead its last frames are those of the next."""
        chunks = [_planned(session) for session in self._sessions]
        for group in [chunks] if self._together else [[chunk] for chunk in chunks]:
            self._pipeline.turn(group)

    def finish(self) -> None:
        self._pipeline.show()

    def _shown(self, pending: PendingChunk, chunk: Chunk) -> None:
        number = next(number for number, session in enumerate(self._sessions) if session is pending.session)
        self.turns.append(TimedChunk(number=number, frames=len(chunk.frames), seconds=pending.chunk_s))


def _planned(session: Session) -> PendingChunk:
    plan = session.decide()
    assert plan is not None, "nothing cuts or stops these streams"
    return PendingChunk(session, plan)


def _each(turns: Sequence[TimedChunk], number: int, wall_s: float) -> dict[str, float]:
    """Frames a second of one session, and how much of the time was spent on it."""
    mine = [turn for turn in turns if turn.number == number]
    return {
        "fps": sum(turn.frames for turn in mine) / wall_s,
        "share": sum(turn.seconds for turn in mine) / wall_s,
    }


def show_sessions(measured: dict[str, Any], console: Console) -> None:
    memory = measured["memory_mib"]
    each = measured["each"]
    how = "in shared calls" if measured["together"] else "in turns"
    console.print(
        f"{measured['fps']:.2f} frames a second in all, {measured['sessions']} sessions {how}",
        highlight=False,
    )
    shares = ", ".join(f"{one['fps']:.2f} ({one['share']:.1%})" for one in each)
    console.print(f"each, and its share of the time: {shares}", highlight=False)
    console.print(f"a chunk of all: {measured['round_ms']:.1f} ms", highlight=False)
    sizes = ", ".join(f"{name.replace('_', ' ')} {size:.1f}" for name, size in memory.items())
    console.print(f"memory MiB: {sizes}", highlight=False, soft_wrap=True)
