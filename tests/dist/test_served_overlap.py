"""Served sessions over a real mesh whose stages sleep to a set length: front and mesh work at the same time.

The same service without overlap is one whose transport answers before `post` returns.
"""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from torch import Tensor

from millstream.core.config import StreamConfig
from millstream.core.controls import WeightedPrompt
from millstream.engine.engine import Engine
from millstream.mesh.paced import PacedVAE, run_paced_rank
from millstream.mesh.recovery import MeshTransport
from millstream.serving.admission_types import AdmissionConfig
from millstream.serving.notices import Ended, Notice
from millstream.serving.service import Service
from millstream.serving.session_entry import OpenRequest, geometry
from millstream.session.chunk import Chunk
from millstream.session.ports import Transport
from millstream.wire.parcel import Delivery, Parcel
from tests.dist.meshes import SMALL, mesh_engine, pids_of
from tests.unit.serving.test_service import Owner

FRONT_MS = 100.0
MESH_MS = 140.0
ANCHOR_MS = FRONT_MS / 3 + 10.0
"""Decoding the first of a chunk's latents, and encoding its picture."""
CHUNKS = 10
LEFT_OUT = 3
SLACK_MS = 50.0
"""What a busy machine may add to a chunk: half of what overlap saves."""


@dataclass(frozen=True)
class Landed:
    """Chunks that were done as soon as they were posted."""

    deliveries: list[Delivery]

    def done(self) -> bool:
        return True

    def ahead(self) -> list[Tensor]:
        return []

    def result(self) -> list[Delivery]:
        return self.deliveries


class Waits:
    """A transport whose chunks are back when they are posted."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def post(self, parcels: Sequence[Parcel]) -> Landed:
        return Landed(self._transport.post(parcels).result())


class Clock(Owner):
    """Notes when it is shown something."""

    def __init__(self, shown_at: list[float]) -> None:
        super().__init__()
        self.indices: list[int] = []
        self.digests_seen: list[str] = []
        self._shown_at = shown_at

    def __call__(self, notice: Notice) -> None:
        if isinstance(notice, Chunk):
            self._shown_at.append(time.monotonic())
            self.indices.append(notice.index)
            self.digests_seen.append(notice.digest)
        super().__call__(notice)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with mesh_engine("front+1", run=partial(run_paced_rank, stage1_ms=MESH_MS)) as engine:
        vae = PacedVAE(engine.spec.dit.channels, 3, FRONT_MS, ANCHOR_MS - FRONT_MS / 3)
        engine._parts = replace(engine.parts, vae=vae)
        yield engine


def stream(engine: Engine, **changes: Any) -> StreamConfig:
    return engine.stream_config(**(SMALL | dict(fps=240.0) | changes))


@contextmanager
def serving(engine: Engine) -> Iterator[Service]:
    service = Service(engine, admission=AdmissionConfig(memory_bytes=10), session_bytes=lambda config: 1)
    service.table.admission.times.add(geometry(engine.spec, stream(engine)), 1e-6)  # all may come in
    service.start()
    try:
        yield service
    finally:
        service.close()
        assert service.failure is None


def join(service: Service, owner: Clock, name: str, **changes: Any) -> None:
    """A session that may be so far ahead of its viewer that its next chunk may always leave."""
    config = stream(service.engine, **changes)
    prompts = (WeightedPrompt("sea"),)
    terms: dict[str, Any] = dict(unattended="run", lead_s=60.0, max_chunks=CHUNKS)
    service.open(OpenRequest(session_id=name, prompts=prompts, config=config, **terms), owner)


def period_ms(engine: Engine, sessions: int = 1, **changes: Any) -> float:
    """Between pictures, whoever's they are; and all of them come."""
    shown_at: list[float] = []
    with serving(engine) as service:
        owners = [Clock(shown_at) for _ in range(sessions)]
        for number, owner in enumerate(owners):
            join(service, owner, f"s{number}", **changes)
        for owner in owners:
            owner.wait_for(Ended)
            assert owner.indices == list(range(CHUNKS))
    gaps = [1e3 * (after - before) for before, after in itertools.pairwise(shown_at)]
    return statistics.median(gaps[LEFT_OUT:])


@pytest.mark.parametrize("sessions", [1, 2])
def test_the_period_falls_from_both_stages_to_the_longer_one(
    engine: Engine, sessions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlapped = period_ms(engine, sessions)
    monkeypatch.setattr(engine, "_parts", replace(engine.parts, transport=Waits(engine.transport)))
    serial = period_ms(engine, sessions)
    assert serial >= FRONT_MS + MESH_MS
    assert MESH_MS <= overlapped <= MESH_MS + SLACK_MS


def test_with_decoded_anchors_only_the_anchor_is_not_hidden(engine: Engine) -> None:
    period = period_ms(engine, anchor="decoded")
    assert MESH_MS + ANCHOR_MS <= period <= MESH_MS + ANCHOR_MS + SLACK_MS


def test_a_promise_is_made_of_the_longer_stage(engine: Engine) -> None:
    with serving(engine) as service:
        owner = Clock([])
        join(service, owner, "a")
        owner.wait_for(Ended)
        estimate = service.table.admission.times.estimate(geometry(engine.spec, stream(engine)))
    assert estimate is not None
    assert MESH_MS <= 1e3 * estimate.seconds < FRONT_MS + MESH_MS


def test_a_rank_that_is_killed_in_flight_costs_a_stall_and_no_chunk(engine: Engine) -> None:
    undisturbed = Clock([])
    disturbed = Clock([])
    mesh = engine.transport
    assert isinstance(mesh, MeshTransport)
    before = mesh.recoveries
    with serving(engine) as service:
        join(service, undisturbed, "a")
        undisturbed.wait_for(Ended)
    with serving(engine) as service:
        join(service, disturbed, "b")
        disturbed.wait_for(Chunk, lambda found: len(found) == 3)
        os.kill(
            next(iter(pids_of(engine))), signal.SIGKILL
        )  # the chunk after is with it: it left before this was shown
        assert disturbed.wait_for(Ended)[-1].cause == "limit"
    assert mesh.recoveries == before + 1
    assert disturbed.indices == undisturbed.indices == list(range(CHUNKS))
    assert disturbed.digests_seen[:3] == undisturbed.digests_seen[:3]
