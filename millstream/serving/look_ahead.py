"""The chunk that will most likely be asked for next, made while the device is idle, and handed out if it is
asked for.

A session's next chunk is known before its turn where a control waits for it, and guessed where its owner is
typing one: the draft. On a hidden branch that chunk is made in full. When the session's turn comes, its own
plan is compared with the branch's envelope: an equal one gives equal bits, so latents, frames and the
generator's cache are taken over; any other is made as always, and the branch is dropped.

No session waits for a guess: it begins only if nothing is due before it has surely ended, by the slowest of
its kind lately, or scaled from the slowest chunk. Bounded: one branch of a session, `MAX_HELD` in all, in
memory that no session was promised.

    idle ─► next_guess ─► hidden branch ─► held ─► take ─► Chunk
                                            └────► drop

Runs on the engine's thread; `next_guess` and `prune` under the lock of `serving/service.py`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from millstream.core.chunk_work import chunk_parts
from millstream.core.config import ModelSpec
from millstream.core.controls import AnyControl, Cut, SetImage, SetPrompt, SetWindow
from millstream.core.envelope import recompute_calls
from millstream.core.errors import MeshGivenUp
from millstream.core.undo import undone_by
from millstream.engine.engine import Engine
from millstream.engine.pipeline import ChunkPipeline, raise_failure
from millstream.serving.chunk_times import FRESH_S, ChunkTimes, Geometry
from millstream.serving.session_entry import SessionEntry, geometry
from millstream.serving.session_table import SessionTable
from millstream.session.chunk import Chunk, CommitCost, PendingChunk
from millstream.session.forks import restart_at
from millstream.session.session import Session
from millstream.session.timeline import shaped_by

log = logging.getLogger(__name__)

MAX_HELD = 4


@dataclass(frozen=True, slots=True)
class Guess:
    """Expected next chunk of a session, as far as it is known."""

    chunk_index: int
    controls: tuple[AnyControl, ...]
    """Without their names, which no picture depends on."""

    @property
    def rebuilds(self) -> bool:
        """True if the window will most likely be rebuilt."""
        return any(
            isinstance(control, SetWindow | SetImage)
            or (isinstance(control, SetPrompt) and control.mode == "recompute")
            for control in self.controls
        )

    @property
    def cuts(self) -> bool:
        """True if it opens an epoch."""
        return any(
            isinstance(control, Cut) or (isinstance(control, SetPrompt | SetImage) and control.mode == "cut")
            for control in self.controls
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldBranch:
    """A hidden branch that has made one chunk, and what that took."""

    guess: Guess
    branch: Session
    made: PendingChunk
    cost: CommitCost
    """Cost of making it, its commit included."""
    one_offs: int
    """Engine's `one_offs` when it began."""
    memory_bytes: int


@dataclass(slots=True)
class LookAheadMetrics:
    made: int = 0
    taken: int = 0


class LookAhead:
    def __init__(self, engine: Engine, table: SessionTable, *, is_on: bool) -> None:
        self.metrics = LookAheadMetrics()
        self.is_on = is_on
        self._engine = engine
        self._table = table
        self._held: dict[str, HeldBranch] = {}
        """By session."""
        self._tried: dict[str, Guess] = {}
        """Last guess of each session: one that failed is not tried again."""
        self._times = ChunkTimes()
        """Times of guesses alone: no promise is based on them."""

    def next_guess(self, now: float, until: float | None) -> Callable[[], None] | None:
        """Return a job that makes a chunk while nothing is due before `until`; None if there is nothing to
        guess, or no room for it."""
        if not self.is_on or until is None:
            return None
        for entry in self._table.entries.values():
            guess = self._guess(entry, now)
            if guess is None or self._tried.get(entry.session_id) == guess:
                continue
            shape = shape_of(self._engine.spec, entry, guess)
            if now + most_s(shape, self._times, self._table.admission.times) <= until and self._has_memory(
                entry
            ):
                self._drop(entry.session_id)
                self._tried[entry.session_id] = guess
                return partial(self._make, entry, guess, shape)
        return None

    def prune(self) -> None:
        """Let go of what cannot be taken any more, and of all that is in the way of a session's memory."""
        for name in self._tried.keys() - self._table.entries.keys():
            del self._tried[name]
        for name, held in list(self._held.items()):
            entry = self._table.entries.get(name)
            if entry is None or not self._is_current(entry, held.guess):
                self._drop(name)
        while self._held and self.held_bytes > self._table.admission.free_bytes:
            self._drop(next(iter(self._held)))

    def close(self) -> None:
        for name in list(self._held):
            self._drop(name)

    def take_guessed(self, pending: PendingChunk, entry: SessionEntry) -> Chunk | None:
        """Return a session's planned chunk, if it is what was guessed. Whatever was held of this session is
        gone afterwards."""
        start_s = time.monotonic()
        session = entry.session
        held = self._held.pop(entry.session_id, None)
        assert session is not None, f"{entry.label} planned a chunk before it was let in"
        if held is None:
            return None
        with held.branch:
            if pending.envelope.what_it_says != held.made.envelope.what_it_says:
                return None
            if not session.take_over(pending, held.branch, held.made):
                return None
        pending.commit_cost = pending.commit_cost.plus(held.cost)
        entry.one_offs = held.one_offs
        chunk = session.finish(pending)
        self.metrics.taken += 1
        pending.made_before(start_s, shares_device=self._engine.depths.shares_device)
        return chunk

    def _guess(self, entry: SessionEntry, now: float) -> Guess | None:
        session = entry.session
        if session is None or entry.closing is not None or session.has_input or session.again:
            return None
        timeline = session.timeline
        draft = entry.draft
        if timeline.chunk_index == 0 or not self._table.scheduler.is_between_chunks(entry.session_id):
            return None
        typed = (draft.control,) if draft is not None and now < draft.until else ()
        controls = tuple(msgspec.structs.replace(control, id="") for control in timeline.due or typed)
        return Guess(timeline.chunk_index, controls) if controls else None

    def _is_current(self, entry: SessionEntry, guess: Guess) -> bool:
        session = entry.session
        return (
            session is not None
            and session.timeline.chunk_index == guess.chunk_index
            and self._table.scheduler.is_between_chunks(entry.session_id)
        )

    def _has_memory(self, entry: SessionEntry) -> bool:
        others = [held.memory_bytes for name, held in self._held.items() if name != entry.session_id]
        return (
            len(others) < MAX_HELD
            and sum(others) + entry.asked.memory_bytes <= self._table.admission.free_bytes
        )

    def _make(self, entry: SessionEntry, guess: Guess, shape: Geometry) -> None:
        """Make a guess, without the lock. A failure here is met again, and reported, if the chunk is asked
        for."""
        begun = time.monotonic()
        try:
            held = self._on_a_branch(entry, guess)
        except MeshGivenUp:
            raise
        except Exception as error:
            log.info(
                "nothing was made ahead: %s",
                error,
                extra={"session": entry.label, "chunk": guess.chunk_index},
            )
            return
        if held is not None:
            self._times.add(shape, time.monotonic() - begun)
            self.metrics.made += 1
            self._held[entry.session_id] = held

    def _on_a_branch(self, entry: SessionEntry, guess: Guess) -> HeldBranch | None:
        assert entry.session is not None, f"{entry.label} was never let in"
        begun = time.monotonic()
        one_offs = self._engine.one_offs
        shown = list[tuple[PendingChunk, Chunk]]()
        branch = entry.session.branch(restart_at(entry.session), keeps_past=False)
        with undone_by(branch.close):
            for control in () if branch.timeline.due else guess.controls:
                branch.control(control)
            plan = branch.decide()
            if plan is None:  # it would pause, or end
                branch.close()
                return None
            transport = self._engine.transport
            stopwatch = self._engine.parts.stopwatch
            pipeline = ChunkPipeline(
                transport.post,
                self._engine.depths,
                stopwatch,
                shown=lambda *made: shown.append(made),
                failed=raise_failure,
            )
            pipeline.turn([PendingChunk(branch, plan)])
            pipeline.show()
            self._engine.run_commit(branch.id)
        ((made, chunk),) = shown
        cost = CommitCost(time.monotonic() - begun, chunk.timing.phases_ms)
        return HeldBranch(
            guess=guess,
            branch=branch,
            made=made,
            cost=cost,
            one_offs=one_offs,
            memory_bytes=entry.asked.memory_bytes,
        )

    def _drop(self, session_id: str) -> None:
        held = self._held.pop(session_id, None)
        if held is not None:
            held.branch.close()

    @property
    def held_bytes(self) -> int:
        """Bytes that hidden branches may come to need."""
        return sum(held.memory_bytes for held in self._held.values())


def shape_of(
    spec: ModelSpec, entry: SessionEntry, guess: Guess, *, steps: tuple[float, ...] | None = None
) -> Geometry:
    """Return the geometry of a guess: that of a chunk, with other steps where given, and one more commit for
    each part of the window that is rebuilt."""
    assert entry.session is not None, f"{entry.label} has no chunks"
    timeline = entry.session.timeline
    config = shaped_by(entry.request.config, timeline)
    opens = guess.cuts or timeline.start_frame == 0
    config = replace(config, steps=steps or (config.opening_steps if opens else config.steps))
    shape = geometry(spec, config)
    rebuilt = recompute_calls(shape.window, config.frames_per_chunk) if guess.rebuilds else 0
    commit_flops = sum(part.flops for part in chunk_parts(spec, config, value_bytes=4)["commit"])
    return replace(shape, calls=shape.calls + rebuilt, flops=shape.flops + rebuilt * commit_flops)


def most_s(shape: Geometry, own: ChunkTimes, chunks: ChunkTimes) -> float:
    """Return the most seconds that such a guess may take, by guesses like it, or by chunks where there were
    none lately."""
    estimate = (own if own.age_s(shape) < FRESH_S else chunks).estimate(shape)
    return math.inf if estimate is None else estimate.slowest_s
