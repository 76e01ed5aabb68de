"""Stream batch: one session's chunks at staggered noise levels, so that a single stream keeps a pipeline
busy.

Approximate: a chunk begins while the one before it is still noisy, and attends to it as it is.
`benchmarks/stream_batch.py` shows by how much that changes a trained model's pictures. A depth of 1 is the
exact stream. Chunks come out `depth` - 1 later than they go in; whatever changes the session's cache (a cut,
another prompt) first ends those under way.
"""

from __future__ import annotations

import time
from collections import deque

import torch

from millstream.core.envelope import check_under_way, recompute_calls
from millstream.generation.answers import fingerprint, refused, whole
from millstream.generation.calls import CallDriver, CallWork
from millstream.generation.generator import Generator
from millstream.wire.parcel import Delivery, Parcel


class StreamBatch:
    """The chunks of one session, `depth` of them under way at a time. On a mesh, every rank has the same."""

    def __init__(self, generator: Generator, *, depth: int) -> None:
        assert depth >= 1, f"a stream batch has a depth of 1 or more, got {depth}"
        self.depth = depth
        self._generator = generator
        self._answering = CallDriver(generator.dit, generator.stopwatch, generator.brake)
        self._open: deque[CallWork[list[Delivery]]] = deque()

    def push(self, parcel: Parcel) -> list[Delivery]:
        """Begin a chunk and bring those under way a step further; returns those that are done, oldest
        first."""
        envelope = parcel.envelope
        check_under_way(self.depth, window=envelope.window, sink=envelope.sink, frames=envelope.frames)
        changes = envelope.init_cache or envelope.reset_kv or envelope.reset_cross or envelope.recompute
        done = self.flush() if changes else []
        error = self._generator.refusal(parcel)
        if error:
            return [*done, refused(envelope, error)]
        turns = envelope.expected_calls + 1
        while (
            self._open and self._open[-1].turns_left > turns
        ):  # a shorter chunk must not end before one that is older
            done += self._round()
        work = self._generator.staggered(parcel)
        work.start = time.perf_counter()
        work.turns_left = turns
        self._open.append(work)
        self._generator.num_staggered += 1
        rebuilding = recompute_calls(
            len(envelope.context_indices), envelope.frames
        )  # a chunk has its place after these
        staggered = envelope.expected_calls - rebuilding
        for _ in range(rebuilding + -(-staggered // self.depth)):
            done += self._round()
        return done + self._until(self.depth - 1)

    def flush(self) -> list[Delivery]:
        """End all chunks under way."""
        return self._until(0)

    def _until(self, left: int) -> list[Delivery]:
        done: list[Delivery] = []
        while len(self._open) > left:
            done += self._round()
        self._answering.drain()
        return done

    @torch.inference_mode()
    def _round(self) -> list[Delivery]:
        """One call for each chunk under way, the oldest first, so that the others see its newest keys."""
        ended = [work for work in list(self._open) if not self._answering.proceed(work)]
        for work in self._open:
            work.turns_left -= 1
        for work in ended:
            assert self._open[0] is work, "an older chunk ends first"
            self._open.popleft()
            assert self._generator.num_staggered > 0, "a staggered chunk ended that was not counted"
            self._generator.num_staggered -= 1
        return [_delivery(work) for work in ended]


def _delivery(work: CallWork[list[Delivery]]) -> Delivery:
    assert work.result is not None, "a chunk that ended has its latents"
    (delivery,) = work.result
    found = fingerprint(delivery)
    return whole(delivery, found, stage1_ms=1000.0 * (time.perf_counter() - work.start), idle_ms=0.0)
