"""One session with front and mesh at work at the same time: while pictures of chunk k are made, chunk k+1 is with the mesh.

    wait for chunk k ─► keep its latents ─► [its anchor] ─► plan and send what may be sent ─► make its pictures

At most `d_in` chunks are with the mesh, and at most `d_out` are back and not looked at: then nothing new is sent. A chunk that
depends on the one before, because a control is due or the window is rebuilt from it, is not planned before that is here; with
decoded anchors it waits for the one picture it is built on, not for the whole chunk.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from millstream.core.envelope import Result
from millstream.core.errors import ConfigError
from millstream.core.overlap import ChunkPace
from millstream.core.topology import Topology
from millstream.runtime.decoding import Arrived
from millstream.runtime.ports import Posted, Transport
from millstream.runtime.session import Chunk, Session

KEPT_PACES = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Depths:
    d_in: int = 2
    d_out: int = 2
    send_first: bool = True
    """Whether the next chunk leaves before this one's pictures are here: with decoded anchors, when its anchor is there."""
    shares_device: bool = False
    """Whether pictures are made by the device that generates: they are queued behind their chunk, and the next one after."""

    def __post_init__(self) -> None:
        if self.d_in < 1 or self.d_out < 1:
            raise ConfigError(f"queues hold 1 chunk or more, got d_in {self.d_in} and d_out {self.d_out}")


ONE_AT_A_TIME = Depths(d_in=1, d_out=1, send_first=False)
"""For a generator in this process that works while it is called: there is nothing to overlap with."""
QUEUED = Depths(d_in=1, d_out=1, shares_device=True)
"""For a GPU of this process: the next chunk is queued before this one's pictures are waited for, so the GPU never is idle."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Where one chunk was, in seconds by `time.perf_counter`: for the plot of a run."""

    chunk_index: int
    planned_s: float
    back_s: float
    mesh_ms: float
    decode_begun_s: float
    shown_s: float


def depths_for(topology: Topology, device: torch.device) -> Depths:
    """What suits a generator there."""
    if not topology.is_local:
        return Depths()
    return QUEUED if device.type == "cuda" else ONE_AT_A_TIME


class OverlappedStream:
    def __init__(
        self,
        session: Session,
        transport: Transport,
        depths: Depths | None = None,
        *,
        before_plan: Callable[[], None] = lambda: None,
    ) -> None:
        """`before_plan` is called before a chunk is planned: the time to hand in controls for it."""
        self.paces: deque[ChunkPace] = deque(maxlen=KEPT_PACES)
        self.stretches: deque[Stretch] = deque(maxlen=KEPT_PACES)
        self.most_flying = 0
        """Chunks that were on their way or back and not looked at, at most."""
        self._session, self._transport, self._before_plan = session, transport, before_plan
        self._depths = depths or Depths()
        self._flying: deque[tuple[Posted, float]] = deque()
        self._shown_s: float | None = None
        self._left: int | None = None

    def stream(self, chunks: int | None = None) -> Iterator[Chunk]:
        """Chunks until the session ends or is paused, or `chunks` of them."""
        self._left, self._shown_s = chunks, None
        resumed_s = time.perf_counter()
        while True:
            self._send(nothing_undecoded=True)
            if not self._flying:
                return
            flight, planned_s = self._flying[0]
            asked_s = time.perf_counter()
            (delivery,) = flight.result()
            back_s = time.perf_counter()
            self._flying.popleft()
            arrived = self._session.receive(delivery)
            if arrived is None:
                continue
            chunk, decode_s = self._show(arrived)
            shown_s = time.perf_counter()
            self._stretch(chunk, delivery.result, planned_s, back_s, decode_s, shown_s)
            busy_ms = 1e3 * ((asked_s - resumed_s) + (shown_s - back_s))
            self._pace(delivery.result, busy_ms, 1e3 * (shown_s - planned_s), shown_s)
            resumed_s = shown_s
            yield chunk

    def _show(self, arrived: Arrived) -> tuple[Chunk, float]:
        """Send what can be sent, then make the pictures; the chunk, and when its pictures were begun."""
        begun_s = time.perf_counter()
        if self._depths.shares_device:
            self._session.decode_all(arrived)
        if self._depths.send_first:
            self._session.decode_anchor(arrived)
            self._send(nothing_undecoded=False)
        self._waiting = self._unanswered(), len(self._flying) - self._unanswered()
        return self._session.finish(arrived), begun_s

    def _send(self, *, nothing_undecoded: bool) -> None:
        """Plan and post as many chunks as may be on their way."""
        while (self._left is None or self._left > 0) and self._may_send(nothing_undecoded=nothing_undecoded):
            planned_s = time.perf_counter()
            parcel = self._session.plan_chunk()
            if parcel is None:
                return
            posted = self._transport.post([parcel])
            self._flying.append((posted, planned_s))
            if self._depths.shares_device:
                for latents in posted.ahead():
                    self._session.decode_ahead(latents)
            self.most_flying = max(self.most_flying, len(self._flying))
            if self._left is not None:
                self._left -= 1

    def _may_send(self, *, nothing_undecoded: bool) -> bool:
        self._before_plan()
        session, unanswered = self._session, self._unanswered()
        if not session.timeline.undisturbed:
            return not self._flying and nothing_undecoded
        if session.config.anchor != "off":
            return not self._flying
        return unanswered < self._depths.d_in and len(self._flying) - unanswered < self._depths.d_out

    def _unanswered(self) -> int:
        return sum(not flight.done() for flight, _ in self._flying)

    def _pace(self, result: Result, busy_ms: float, latency_ms: float, shown_s: float) -> None:
        before, self._shown_s = self._shown_s, shown_s
        if before is None:
            return
        waiting_in, waiting_out = self._waiting
        self.paces.append(
            ChunkPace(
                stage0_ms=busy_ms,
                stage1_ms=result.stage1_ms,
                period_ms=1e3 * (shown_s - before),
                idle_ms=result.mesh_idle_ms,
                latency_ms=latency_ms,
                waiting_in=waiting_in,
                waiting_out=waiting_out,
            )
        )

    def _stretch(self, chunk: Chunk, result: Result, planned_s: float, back_s: float, decode_s: float, shown_s: float) -> None:
        self.stretches.append(
            Stretch(
                chunk_index=chunk.index,
                planned_s=planned_s,
                back_s=back_s,
                mesh_ms=result.stage1_ms,
                decode_begun_s=decode_s,
                shown_s=shown_s,
            )
        )
