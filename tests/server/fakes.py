"""A service that makes pictures at once and holds no model, and a hub on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from millstream.core.controls import AnyControl, Receipt, SetPrompt, Stop
from millstream.core.errors import ControlError, Overloaded, UnknownSession
from millstream.core.presets import find_model
from millstream.core.reading import PromptReading
from millstream.core.trace import ChunkTiming
from millstream.server.sessions.hub import HubLimits, SessionHub
from millstream.server.sessions.model_card import ModelCard
from millstream.serving.admission_types import AdmissionMetrics
from millstream.serving.delivery_cost import DeliveryCost
from millstream.serving.notices import Applied, Ended, Live, Notice
from millstream.serving.previews import Previewed
from millstream.serving.service_metrics import ServiceMetrics
from millstream.serving.session_entry import OpenRequest
from millstream.serving.turns import SchedulerMetrics, SessionMetrics
from millstream.session.chunk import Chunk

TINY = find_model("wan-tiny").stream
CARD = ModelCard(
    name="fake",
    stream=TINY,
    read=lambda text: PromptReading(
        text,
        tuple(w for w in text.split() if w.startswith("x")),
        tuple((w, w[:-1]) for w in text.split() if w.endswith("s")),
    ),
    examples=("a sea",),
)
PATIENCE_S = 30.0


class FakeSession:
    def __init__(self, request: OpenRequest, tell: Callable[[Notice], None]) -> None:
        self.request = request
        self.tell = tell
        self.viewers = 0
        self.chunks = 0
        self.waiting: list[Receipt] = []
        self.draft: SetPrompt | None = None


class FakeService:
    """Answers as `Service` does; `picture` stands for a chunk that has come."""

    def __init__(self, *, places: int = 1000) -> None:
        self.ready = threading.Event()
        self.ready.set()
        self.places = places
        self.sessions: dict[str, FakeSession] = {}
        self.closed = False
        self.hand_over = DeliveryCost()

    def open(self, request: OpenRequest, tell: Callable[[Notice], None]) -> None:
        assert request.terms is not None
        if len(self.sessions) >= self.places:
            raise Overloaded("needs 0.50 of the device and 0.10 is free: wait")
        self.sessions[request.session_id] = FakeSession(request, tell)
        tell(Live(note="at once", fps=request.config.fps))

    def control(self, session_id: str, control: AnyControl, *, at_chunk: int | None = None) -> Receipt:
        session = self._find(session_id)
        control.check()
        chunk = session.chunks if at_chunk is None else at_chunk
        if chunk < session.chunks or len(session.waiting) >= 256:
            raise ControlError(f"chunk {chunk} is in the past")
        receipt = Receipt(
            control_id=control.id or f"c{len(session.waiting)}", state="queued", chunk_index=chunk
        )
        session.waiting.append(receipt)
        if isinstance(control, Stop):
            session.tell(Applied(receipts=self._applied(session)))
            self.end(session_id, "stopped")
        return receipt

    def draft(self, session_id: str, control: SetPrompt | None) -> None:
        self._find(session_id).draft = control

    def catch_up(self, session_id: str, seen: int) -> None:
        self._find(session_id)

    def preview(self, session_id: str, controls: Sequence[SetPrompt]) -> Future[Previewed]:
        self._find(session_id)
        future: Future[Previewed] = Future()
        pictures = tuple(np.full((4, 6, 3), number, np.uint8) for number in range(len(controls) - 1))
        future.set_result(Previewed(pictures=(*pictures, None), note="1 was not made"))
        return future

    def watch(self, session_id: str) -> None:
        self._find(session_id).viewers += 1

    def unwatch(self, session_id: str) -> None:
        if session_id in self.sessions:
            self.sessions[session_id].viewers -= 1
            assert self.sessions[session_id].viewers >= 0

    def timeline(self, session_id: str) -> None:
        return None

    def hand_over_takes(self, hand_over: DeliveryCost) -> None:
        self.hand_over = hand_over

    def fed(self, session_id: str) -> None:
        return

    def end(self, session_id: str, reason: str = "closed by its owner") -> None:
        session = self.sessions.pop(session_id, None)
        if session is not None:
            session.tell(Ended(cause="closed", reason=reason))

    def on_engine(self, session_id: str, job: Callable[[Any], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(UnknownSession("this one has no model"))
        return future

    def close(self, timeout_s: float = 0.0) -> None:
        self.closed = True
        for session_id in list(self.sessions):
            self.end(session_id, "the server is shutting down")

    def metrics(self) -> ServiceMetrics:
        sessions = tuple(
            SessionMetrics(
                session_id=name, chunks=each.chunks, misses=0, played_s=1.0, stalled_s=0.0, continuity=1.0, ahead_s=0.5,
                first_chunk_s=0.1, load=0.1, halted=False, resident=True,
            )
            for name, each in self.sessions.items()
        )  # fmt: skip
        return ServiceMetrics(
            scheduler=SchedulerMetrics(sessions=sessions, utilisation=0.1, busy_s=1.0, ready=0),
            admission=AdmissionMetrics(
                admitted=len(sessions), waiting=0, promised=0.1, memory_bytes=0, refused=0
            ),
            session_bytes=0,
            device_bytes=0,
        )

    def picture(self, session_id: str, *, fill: int = 0, late_s: float = 0.0) -> None:
        """A chunk has come."""
        session = self._find(session_id)
        config = session.request.config
        frames = np.full((4, config.height, config.width, 3), fill, np.uint8)
        chunk = Chunk(
            index=session.chunks,
            epoch=0,
            frames=frames,
            num_frames=len(frames),
            prompts=session.request.prompts,
            receipts=self._applied(session),
            timing=ChunkTiming(total_ms=5.0, phases_ms={"step": 4.0}),
            digest="",
            media_s=0.25 * session.chunks,
            fps=config.fps,
            late_s=late_s,
        )
        session.chunks += 1
        session.tell(chunk)

    def _applied(self, session: FakeSession) -> tuple[Receipt, ...]:
        due = session.waiting
        session.waiting = []
        return tuple(
            Receipt(control_id=r.control_id, state="applied", chunk_index=session.chunks) for r in due
        )

    def _find(self, session_id: str) -> FakeSession:
        if session_id not in self.sessions:
            raise UnknownSession(f"there is no session {session_id}; it may have ended")
        return self.sessions[session_id]


def fake_hub(service: FakeService | None = None, **limits: float) -> SessionHub:
    return SessionHub(service or FakeService(), CARD, limits=HubLimits(**limits))  # type: ignore[arg-type]


async def until(holds: Callable[[], bool]) -> None:
    """Let everybody else go on until something is so."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, f"waited {PATIENCE_S:g} s in vain"
        await asyncio.sleep(0.002)
