"""Gives chunks the model calls they ask for, counted and timed: one after the other, or in turn where the model is a pipeline.

In turn means that while one chunk's call travels through the stages, another's begins. Every rank of a mesh has the same
chunks in the same order, hence makes the same calls in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from millstream.core.envelope import Envelope
from millstream.models.dit import CausalDiT
from millstream.models.sampler import Asking, Call, answer
from millstream.parallel.collectives import Pending
from millstream.parallel.layers import StagedDiT
from millstream.parallel.mesh_dit import MeshDiT
from millstream.runtime.stopwatch import Stopwatch

T = TypeVar("T")


@dataclass(slots=True)
class Tally:
    """Calls that were asked for."""

    calls: int = 0

    def count(self, asking: Asking[T]) -> Asking[T]:
        """The same work, its calls counted."""
        given: Tensor | None = None
        while True:
            try:
                call = asking.send(given)
            except StopIteration as done:
                result: T = done.value
                return result
            self.calls += 1
            given = yield call


@dataclass(slots=True)
class Work(Generic[T]):
    """What asks for calls, and whose it is."""

    envelope: Envelope
    asking: Asking[T]
    call: Call | None = None
    """The one it waits for."""
    begun: Pending | None = None


@dataclass(frozen=True, slots=True)
class Answering:
    """A model and the clock its calls are timed by."""

    dit: CausalDiT | MeshDiT
    stopwatch: Stopwatch

    @property
    def takes_turns(self) -> bool:
        """Whether several chunks are best given apart; otherwise they may as well share their calls."""
        return isinstance(self.dit, StagedDiT)

    def answer(self, works: Sequence[Work[T]]) -> list[T]:
        """The results of all."""
        if isinstance(self.dit, StagedDiT):
            return self._in_turn(self.dit, works)
        return [answer(work.asking, self._at_once) for work in works]

    def _at_once(self, call: Call) -> Tensor | None:
        with self.stopwatch.span(call.phase):
            return call.answered_by(self.dit)

    def _in_turn(self, dit: StagedDiT, works: Sequence[Work[T]]) -> list[T]:
        results: dict[int, T] = {}
        waiting = deque(enumerate(works))
        while waiting:
            place, work = waiting.popleft()
            self.stopwatch.attend_to(work.envelope)
            try:
                work.call = work.asking.send(self._finished(dit, work))
            except StopIteration as done:
                results[place] = done.value
                continue
            with self.stopwatch.span(work.call.phase):
                work.begun = dit.begin(work.call)
            waiting.append((place, work))
        dit.drain()
        return [results[place] for place in range(len(works))]

    def _finished(self, dit: StagedDiT, work: Work[T]) -> Tensor | None:
        if work.call is None:
            return None
        with self.stopwatch.span(work.call.phase):
            return dit.finish(work.begun)
