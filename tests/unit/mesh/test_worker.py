"""A rank that follows its leader holds as much after many chunks as after one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.core.envelope import instruction
from millstream.mesh import worker
from millstream.mesh.worker import MeshRank
from millstream.session.chunk import PendingChunk
from millstream.session.session import Session
from millstream.wire.framing import Frame
from millstream.wire.packing import pack_instruction, pack_parcels
from millstream.wire.parcel import Delivery, Parcel
from millstream.wire.process import Wire
from tests.unit.models_for_tests import SMALL, tiny_engine
from tests.unit.one_chunk import plan_chunk

CHUNKS = 4


class LeaderOfOne:
    """What a leader would broadcast: a session's chunks, one when the one before is done, and a goodbye."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._bytes = bytearray()
        self._sent = 0

    def send(self, header: bytes, meta: bytes, /, *tensors: memoryview) -> None:
        self._bytes += b"".join((header, meta, *tensors))

    def receive(self, into: memoryview, *, what: str) -> None:
        if not self._bytes:
            self._sent += 1
            Wire(self).send(self._chunk() if self._sent <= CHUNKS else self._goodbye())
        into[:] = self._bytes[: len(into)]
        del self._bytes[: len(into)]

    def _chunk(self) -> Frame:
        parcel = plan_chunk(self._session)
        assert parcel is not None
        return pack_parcels([parcel], sequence=self._sent)

    def _goodbye(self) -> Frame:
        return pack_instruction(instruction("SHUTDOWN", self._sent), sequence=self._sent)


def test_a_worker_lets_go_of_the_times_of_chunks_that_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine()
    run = MeshRank.run
    session = engine.session("sea", **SMALL)
    watch = engine.generator.stopwatch
    watch.spans.clear()  # the engine is that of other tests, too

    def heard(member: MeshRank, parcels: Sequence[Parcel]) -> list[Delivery]:
        (delivery,) = run(member, parcels)
        session.receive(PendingChunk(session, plan=None), delivery)  # type: ignore[arg-type]
        return [delivery]

    monkeypatch.setattr(engine.generator, "commits", "at once")  # as on a rank
    monkeypatch.setattr(MeshRank, "run", heard)
    monkeypatch.setattr(worker, "Broadcast", lambda mesh: LeaderOfOne(session))
    groups: Any = SimpleNamespace(mesh=SimpleNamespace(size=1, rank=2))
    MeshRank(engine.generator, groups, SimpleNamespace(busy=nullcontext), check=lambda _: None).serve_leader()  # type: ignore[arg-type]
    last = watch.spans[-1].work.call
    times = [span.ms for span in watch.spans if span.work.call == last]
    assert len({span.work.call for span in watch.spans}) == CHUNKS
    assert 0 < sum(watch.lap().values()) <= sum(times) + 1e-6
