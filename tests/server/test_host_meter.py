"""What passing chunks on takes of the host is measured and told."""

from __future__ import annotations

import os

import pytest

from millstream.server.sessions import hub as hubs
from millstream.server.sessions import threads
from millstream.server.sessions.host_meter import ENOUGH, HostMeter
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.outbox import Outbox
from millstream.serving.delivery_cost import DeliveryCost
from tests.server.fakes import TINY, FakeService, until
from tests.server.hub_plays import SEA, with_hub


def test_a_meter_shares_what_was_spent_among_the_chunks_that_came_and_keeps_that_while_few_come() -> None:
    meter = HostMeter(4)

    def passed_on(chunks: int, encode_s: float) -> None:
        for _ in range(chunks):
            meter.passed_on(encode_s)

    passed_on(ENOUGH - 1, 1.0)
    assert meter.read(3.0) == DeliveryCost(), "a page that was opened would count as theirs"
    passed_on(32, 0.75)
    passed_on(32, 0.25)
    assert meter.read(3.5) == DeliveryCost(send_s=0.5 / 64, encode_s=0.125)
    assert meter.read(9.0) == DeliveryCost(send_s=0.5 / 64, encode_s=0.125)
    passed_on(64, 0.0)
    assert meter.read(9.25) == DeliveryCost(send_s=0.25 / 64)


def test_a_hub_tells_its_service_what_encoding_and_sending_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "TICK_S", 0.5)

    async def play(hub: SessionHub, service: FakeService) -> None:
        live_session = hub.open(SEA, TINY)
        live_session.join("jpeg", Outbox())
        for _ in range(ENOUGH):
            service.picture(live_session.session_id)
        await until(lambda: service.hand_over.encode_s > 0)
        assert service.hand_over.send_s > 0

    with_hub(play)


@pytest.mark.parametrize(("cores", "expected"), [(1, 2), (2, 2), (8, 4), (16, 8), (224, 16)])
def test_the_threads_that_encode_follow_the_cores(
    cores: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    assert threads.num_encoders() == expected
