"""An engine without a model: sessions with real timelines whose chunks are empty and take as long as a clock
on paper says."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from millstream.core.config import StreamConfig, pixel_frames
from millstream.core.controls import AnyControl, Receipt, WeightedPrompt
from millstream.core.presets import find_model
from millstream.core.speed import Speed
from millstream.core.trace import ChunkTiming
from millstream.engine.depths import ONE_AT_A_TIME, Depths
from millstream.generation.brake import Brake
from millstream.session.chunk import Chunk, ChunkPlan, PendingChunk
from millstream.session.timeline import Timeline


@dataclass
class PaperClock:
    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class PaperPosted:
    parcels: Sequence[Any]

    def done(self) -> bool:
        return True

    def result(self) -> list[Any]:
        return list(self.parcels)


class PaperSession:
    def __init__(
        self, engine: PaperEngine, session_id: str, prompts: tuple[WeightedPrompt, ...], config: StreamConfig
    ) -> None:
        self.id = session_id
        self.config = config
        self.ended = False
        self.timeline = Timeline(session_id, config, prompts)
        self._engine = engine

    def control(self, control: AnyControl, *, at_chunk: int | None = None) -> Receipt:
        return self.timeline.queue(control, at_chunk=at_chunk)

    def decide(self) -> ChunkPlan | None:
        if self.ended or not self.timeline.absorb():
            return None
        first = self.timeline.start_frame
        return ChunkPlan(
            envelope=self.timeline.plan(call_id=next(self._engine.calls), context_indices=()),
            receipts=self.timeline.take_receipts(),
            real_frames=pixel_frames(first, self.config.frames_per_chunk),
            start=0.0,
        )

    def prepare(self, plan: ChunkPlan) -> Any:
        if self._engine.fails:
            self._engine.fails = False
            raise RuntimeError(f"{self.id} failed")
        self._engine.clock.now += self._engine.chunk_s
        return SimpleNamespace(envelope=plan.envelope, result=SimpleNamespace(call_id=plan.envelope.call_id))

    def receive(self, chunk: PendingChunk, delivery: Any) -> None:
        chunk.delivery = delivery

    def decode_anchor(self, chunk: PendingChunk) -> None:
        pass

    def finish(self, chunk: PendingChunk) -> Chunk:
        plan = chunk.plan
        return Chunk(
            index=plan.envelope.chunk_index,
            epoch=plan.envelope.cache_epoch,
            frames=np.zeros((plan.real_frames, 1, 1, 3), np.uint8),
            num_frames=plan.real_frames,
            prompts=plan.envelope.prompts,
            receipts=plan.receipts,
            timing=ChunkTiming(total_ms=1.0, phases_ms={}),
            digest="",
            fps=self.config.fps,
        )

    def stream(self, chunks: int) -> Iterator[Chunk]:
        for _ in range(chunks):
            plan = self.decide()
            assert plan is not None
            self.prepare(plan)
            yield self.finish(PendingChunk(self, plan))  # type: ignore[arg-type]

    def __enter__(self) -> PaperSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.ended = True
        self._engine.open_sessions.discard(self.id)


@dataclass
class PaperEngine:
    clock: PaperClock
    chunk_s: float = 0.1
    fails: bool = False
    """The next chunk that is prepared."""
    spec: Any = field(default_factory=lambda: find_model("wan-tiny"))
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    mesh: None = None
    speed: Speed = field(default_factory=lambda: Speed(paired_commits=True))
    """With which no session shares chunks of another: on paper there are none to share."""
    one_offs: int = 0
    brake: Brake = field(default_factory=Brake)
    open_sessions: set[str] = field(default_factory=set)
    """With state anywhere."""
    parts: Any = field(
        default_factory=lambda: SimpleNamespace(stopwatch=SimpleNamespace(lap=lambda *_: Counter()))
    )
    calls: Any = field(default_factory=lambda: itertools.count(1))

    @property
    def depths(self) -> Depths:
        return ONE_AT_A_TIME

    @property
    def transport(self) -> Any:
        return SimpleNamespace(post=PaperPosted)

    def session(
        self,
        prompts: str | tuple[WeightedPrompt, ...],
        *,
        config: StreamConfig,
        session_id: str = "",
        **_: Any,
    ) -> PaperSession:
        session_id = session_id or f"warm-up {len(self.open_sessions)}"
        self.open_sessions.add(session_id)
        mix = (WeightedPrompt(prompts),) if isinstance(prompts, str) else prompts
        return PaperSession(self, session_id, mix, config)

    def warm_up(self, session: PaperSession) -> None:
        pass

    def chunks_until_recorded(self, config: StreamConfig) -> int:
        return 1

    def recorded_places(self, config: StreamConfig) -> int:
        return 0

    def run_commit(self, session_id: str) -> None:
        pass

    def offload(self, session: PaperSession) -> None:
        pass

    def bring_back(self, session: PaperSession) -> None:
        pass

    def held_bytes(self) -> int:
        return len(self.open_sessions)
