"""Gives chunks the model calls they ask for, counted and timed: one after the other, or in turn where the
model is a pipeline.

In turn means that while one chunk's call travels through the stages, another's begins. Every rank of a mesh
has the same chunks in the same order, hence makes the same calls in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from millstream.core.envelope import Envelope
from millstream.generation.brake import Brake
from millstream.generation.stopwatch import Stopwatch
from millstream.models.dit import CausalDiT
from millstream.models.sampler import Asking, Call
from millstream.parallel.collectives import PendingCollective
from millstream.parallel.layers import StagedDiT
from millstream.parallel.mesh_dit import MeshDiT

T = TypeVar("T")


@dataclass(slots=True)
class CallCount:
    """Calls that were asked for."""

    calls: int = 0

    def count(self, asking: Asking[T]) -> Asking[T]:
        """Do the same work, and count its calls."""
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
class CallWork(Generic[T]):
    """Work that asks for calls, and the envelope of its chunk."""

    envelope: Envelope
    asking: Asking[T]
    begun: PendingCollective | None = None
    """The answer it waits for; None before the first call, and for one that only leaves keys and values."""
    result: T | None = None
    """There when it has ended."""
    start: float = 0.0
    """Time when it was begun, by `time.perf_counter`, where its calls come among others'."""
    turns_left: int = 0
    """Turns left, where its calls come among others': one for each call, and one to take the last answer."""


@dataclass(frozen=True, slots=True)
class CallDriver:
    """A model, the clock its calls are timed by, and what may cut them off."""

    dit: CausalDiT | MeshDiT
    stopwatch: Stopwatch
    brake: Brake

    @property
    def takes_turns(self) -> bool:
        """True if several chunks are best given their calls in turn; otherwise they may as well share
        them."""
        return isinstance(self.dit, StagedDiT)

    def answer(self, works: Sequence[CallWork[T]]) -> list[T]:
        """Answer the calls of all works and return their results."""
        waiting = deque(works)
        while waiting:
            work = waiting.popleft()
            if len(works) > 1:
                self.stopwatch.attend_to(work.envelope)
            if self.proceed(work):
                waiting.append(work)
        self.drain()
        return [_ended(work) for work in works]

    def proceed(self, work: CallWork[T]) -> bool:
        """Take the answer to the last call and begin the next; False if there is none, and the work has
        ended."""
        assert work.result is None, f"a chunk of {work.envelope.session_id} has ended already"
        with self.stopwatch.span("step") if work.begun is not None else nullcontext():
            given = None if work.begun is None else work.begun.wait()
        try:
            call = work.asking.send(given)
        except StopIteration as done:
            work.result = done.value
            return False
        self.brake.check()
        with self.stopwatch.span(call.phase):
            work.begun = self._begun(call)
        return True

    def drain(self) -> None:
        """End all calls, so that none is under way any more."""
        if isinstance(self.dit, StagedDiT):
            self.dit.drain()

    def _begun(self, call: Call) -> PendingCollective | None:
        if isinstance(self.dit, StagedDiT):
            return self.dit.begin(call)
        flow = call.answered_by(self.dit)
        return None if flow is None else PendingCollective(flow)


def _ended(work: CallWork[T]) -> T:
    assert work.result is not None, f"a chunk of {work.envelope.session_id} has not ended"
    return work.result
