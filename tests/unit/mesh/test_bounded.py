"""What front and leader keep of a mesh does not grow with the chunks and sessions that it has seen."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from millstream.core.envelope import instruction
from millstream.generation.answers import result_of
from millstream.mesh import recovery
from millstream.mesh.link import LinkAnswer
from millstream.mesh.recovery import MAX_LOSSES, MeshTransport
from millstream.mesh.worker import Leader
from millstream.wire.conditioning import CAPACITY
from millstream.wire.framing import Orders
from millstream.wire.parcel import Delivery, Parcel
from millstream.wire.process import Received
from tests.unit.mesh.echo import PATIENCE_S, SHAPE, echo_mesh, parcel
from tests.unit.mesh.test_recovery import FakeLink, FakeMesh

SESSIONS = 40


def held(thing: object) -> int:
    """How much is in all that it keeps."""
    return sum(
        len(each)
        for each in vars(thing).values()
        if isinstance(each, list | dict | OrderedDict | set | deque)
    )


def test_a_link_keeps_nothing_of_what_was_answered() -> None:
    found = []
    with echo_mesh() as mesh:
        for call in range(1, 2 * SESSIONS + 1):
            name = f"s{call}"
            one = parcel(call, session_id=name, conditioning_id=name, reset_cross=True)
            mesh.may_answer.release()
            prompted = Parcel(
                envelope=one.envelope, latents_in=one.latents_in, conditioning=torch.zeros(SHAPE[:3])
            )
            mesh.link.post([prompted]).result(PATIENCE_S)
            mesh.link.tell("CHECK", name)
            mesh.link.tell("RELEASE", name)
            while mesh.link._waiting:
                time.sleep(0.001)
            found.append(held(mesh.link) + held(mesh.link._known))
    assert found[-1] == found[SESSIONS] == CAPACITY


class QuietLink(FakeLink):
    def tell(
        self, action: str, session_id: str = "", *, fork_id: str = "", heard: bool = False
    ) -> Future[LinkAnswer]:
        return super().tell(action, session_id, heard=heard)


def test_a_front_keeps_nothing_of_sessions_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor of one that was released while its last chunk was with a mesh that is lost."""
    monkeypatch.setattr(recovery, "PAUSES_S", (0.0,) * MAX_LOSSES)
    last = 3 * SESSIONS
    meshes = iter([FakeMesh(QuietLink(dies_at=frozenset({last}))), FakeMesh(QuietLink())])
    transport = MeshTransport(lambda: next(meshes))  # type: ignore[arg-type, return-value]
    transport.check()
    before = held(transport)
    for number in range(1, SESSIONS + 1):
        session: Any = type("Watched", (), {"id": f"s{number}"})()
        transport.watch(session)
        for call, under_way in ((3 * number - 2, 1), (3 * number - 1, 2)):
            transport.post([parcel(call, session_id=session.id, under_way=under_way)]).result()
        assert transport.fork(session.id, f"fork of {number}")
        transport.release(f"fork of {number}")
        late = transport.post([parcel(3 * number, session_id=session.id, under_way=2)])
        transport.release(session.id)
        del session
        late.result()
    assert transport.recoveries == 1
    assert held(transport) == before
    transport.close()


class ObedientRank:
    """Answers each chunk with its latents, staggered ones too."""

    generator = SimpleNamespace(held_bytes=lambda: 0, stopwatch=SimpleNamespace(lap=dict), rest=lambda: None)

    def refusal(self, parcel: Parcel) -> str:
        return ""

    def run(self, parcels: Sequence[Parcel]) -> list[Delivery]:
        done = [result_of(each.envelope) for each in parcels]
        return [Delivery(result=result) for result in done]

    def obey(self, envelope: object) -> bool:
        return True


def test_a_leader_keeps_nothing_of_sessions_that_are_gone() -> None:
    groups = SimpleNamespace(mesh=SimpleNamespace(size=1))
    watchdog = SimpleNamespace(busy=lambda _: nullcontext())
    channel = SimpleNamespace(send=lambda *_: None)
    leader = Leader(ObedientRank(), groups, channel, watchdog)  # type: ignore[arg-type]
    sequence = 0
    before = held(leader)
    for number in range(SESSIONS):
        name = f"s{number}"
        staggered = parcel(2, session_id=name, under_way=2)
        for one in (parcel(1, session_id=name), staggered):
            sequence += 1
            orders = Orders(sequence=sequence, envelopes=(one.envelope,))
            assert leader._handle(Received(orders, {"0.latents_in": one.latents_in}))
        assert held(leader) > before
        sequence += 1
        assert leader._handle(
            Received(Orders(sequence=sequence, envelopes=(instruction("RELEASE", 3, name),)), {})
        )
    assert held(leader) == before
