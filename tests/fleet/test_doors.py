"""Tickets: those that are forged, used twice, old or for another open nothing, and each is one
line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
import pytest
from websockets import InvalidStatus
from websockets.sync.client import connect

from millstream.fleet.tickets import LINK
from tests.fleet.playing import SmallFleet, small_fleet
from tests.server.serving import START, Client


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallFleet]:
    with small_fleet(tmp_path_factory.mktemp("fleet"), ("tiny-a",)) as running:
        yield running


def ticket(fleet: SmallFleet, session: str = "mine", **changes: Any) -> str:
    return fleet.ticket("tiny-a", session, **changes)


def knock(fleet: SmallFleet, text: str, path: str = "/v1/stream") -> str:
    """What a replica says to whoever brings this."""
    try:
        with connect(fleet.servers["tiny-a"].socket_url(f"{path}?ticket={text}"), compression=None) as socket:
            return msgspec.json.decode(socket.recv(10))["type"]
    except InvalidStatus as refused:
        return msgspec.json.decode(refused.response.body)["error"]["message"]


def test_a_ticket_opens_one_connection_to_one_replica(fleet: SmallFleet) -> None:
    good = ticket(fleet)
    assert knock(fleet, good) == "hello"
    assert "used already" in knock(fleet, good)
    assert "not a ticket of this fleet" in knock(fleet, ticket(fleet, secret=bytes(32)))
    assert "not a ticket of this fleet" in knock(fleet, "")
    assert "expired" in knock(fleet, ticket(fleet, now=time.time() - 200))
    assert "clocks" in knock(fleet, ticket(fleet, now=time.time() + 200))
    assert "another replica" in knock(fleet, ticket(fleet, replica_id="tiny-b"))


def test_a_clock_that_is_almost_a_minute_off_shuts_nobody_out(fleet: SmallFleet) -> None:
    assert knock(fleet, ticket(fleet, now=time.time() + 55)) == "hello"
    assert knock(fleet, ticket(fleet, now=time.time() - 80)) == "hello"


def test_a_ticket_is_for_its_session_alone(fleet: SmallFleet) -> None:
    url = fleet.servers["tiny-a"].socket_url("/v1/stream?ticket=")
    with connect(url + ticket(fleet, "mine"), compression=None, max_size=None) as socket:
        client = Client(socket)
        client.hear("hello")
        client.say({"type": "attach", "version": 1, "session": "hers"})
        assert "another session" in client.hear("error")["message"]
        client.say(START)
        assert client.hear("live")["session"] == "mine", (
            "it is opened under the name that the gateway gave it"
        )
        client.say({"type": "stop"})
        client.hear("ended")


def test_the_gateways_own_line_to_a_replica_is_not_for_clients(fleet: SmallFleet) -> None:
    with pytest.raises(InvalidStatus):
        connect(fleet.servers["tiny-a"].socket_url(f"{LINK}?ticket={ticket(fleet)}"), compression=None)
    assert httpx2.get(f"{fleet.url}{LINK}").status_code == 404


def test_rest_goes_through_the_gateway_to_whoever_has_the_session(fleet: SmallFleet) -> None:
    made = httpx2.post(f"{fleet.url}/v1/sessions", json={"prompt": "sea", "fps": 24.0})
    assert made.status_code == 201, made.text
    session = made.json()["session"]
    told = httpx2.post(
        f"{fleet.url}/v1/sessions/{session}/controls", json={"control": {"type": "cut", "id": "a"}}
    )
    assert told.json()["control_id"] == "a"
    assert httpx2.delete(f"{fleet.url}/v1/sessions/{session}").status_code < 300
    assert httpx2.get(f"{fleet.url}/v1/sessions/nobodys").status_code == 404
    assert httpx2.get(f"{fleet.url}/").status_code == 200
    assert "millstream_fleet_placed_total" in httpx2.get(f"{fleet.url}/metrics").text
    assert httpx2.get(f"{fleet.url}/v1/fleet").json()["replicas"][0]["state"] == "ready"


def test_the_policy_is_told_which_geometries_a_replica_is_ready_for(fleet: SmallFleet) -> None:
    report = fleet.running.fleet.links["tiny-a"].report
    assert report is not None
    (warmed_up,) = report.replica("tiny-a").recorded
    assert warmed_up.model == "wan-tiny"
