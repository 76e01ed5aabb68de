"""Sessions that move: bits as if they had not, nothing said is lost, and nobody needs to know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.sync.client import connect as open_socket

from millstream.client.sync_client import connect
from millstream.core.controls import SetPrompt
from millstream.core.messages import Ask
from tests.fleet.playing import SmallFleet, digests, small_fleet
from tests.server.serving import START, Client, wait_until

SEA = Ask(prompt="sea", fps=24.0, seed=5)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallFleet]:
    """Each test may drain one of them."""
    with small_fleet(tmp_path_factory.mktemp("fleet"), ("tiny-a", "tiny-b", "tiny-c", "tiny-d")) as running:
        yield running


def test_a_session_that_moves_under_steering_shows_what_it_would_have_shown(fleet: SmallFleet) -> None:
    with connect(fleet.url, format="raw") as still:
        still.start(SEA)
        receipt = still.steer(SetPrompt(prompt="a storm"), at_chunk=3)
        still.steer(SetPrompt(prompt="a calm"), at_chunk=6)
        expected = digests(still, 9)
        assert still.applied(receipt).chunk_index == 3
    with connect(fleet.url, format="raw") as moved:
        live = moved.start(SEA)
        home = fleet.place_of(live.session)
        moved.steer(SetPrompt(prompt="a storm"), at_chunk=3)
        late = moved.steer(SetPrompt(prompt="a calm"), at_chunk=6)
        seen = digests(moved, 2)
        fleet.drain(home)
        seen |= digests(moved, 7)
        assert fleet.place_of(live.session) != home
        assert moved.applied(late).chunk_index == 6
    assert seen == expected
    assert sorted(seen) == list(range(9)), "none twice, none missing"


def test_a_client_that_does_not_follow_is_relayed_and_hears_nothing_of_a_move(fleet: SmallFleet) -> None:
    with open_socket(f"ws{fleet.url[4:]}/v1/stream", compression=None, max_size=None) as socket:
        client = Client(socket)
        assert client.hear("hello")["moves"] is True
        client.say(START | {"formats": ["raw"]})
        session = client.hear("live")["session"]
        first = [client.hear("chunk")["index"] for _ in range(2)]
        home = fleet.place_of(session)
        fleet.drain(home)
        wait_until(lambda: fleet.place_of(session) != home, "it has moved")
        client.say({"type": "control", "control": {"type": "prompt", "prompt": "a storm", "id": "mine"}})
        assert client.hear("receipt", state="applied")["control_id"] == "mine"
        rest = [message["index"] for message in client.heard if message["type"] == "chunk"]
        assert rest == list(range(len(rest))), "none twice, none missing"
        assert len(rest) > len(first)
        assert not [message for message in client.heard if message["type"] in ("moved", "ended", "error")]
        client.say({"type": "stop"})
        client.hear("ended")


def test_a_move_that_storage_fails_is_called_off_and_the_stream_goes_on(fleet: SmallFleet, tmp_path: Path) -> None:
    events = fleet.running.fleet.events
    with connect(fleet.url, format="raw") as client:
        live = client.start(SEA)
        client.next_chunk()
        home = fleet.place_of(live.session)
        fleet.shared.rename(tmp_path / "unplugged")
        fleet.shared.write_bytes(b"")
        try:
            fleet.drain(home)
            wait_until(lambda: any(event.kind == "move failed" for event in events), "it was tried")
            seen = digests(client, 2)
            assert fleet.place_of(live.session) == home
        finally:
            fleet.shared.unlink()
            (tmp_path / "unplugged").rename(fleet.shared)
        wait_until(lambda: fleet.place_of(live.session) != home, "it is tried again")
        seen |= digests(client, 2)
        assert sorted(seen) == [1, 2, 3, 4]
