"""The page at the gateway's address: it goes to a replica, and along when its session moves."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="tests of the page need playwright: pip install 'millstream[dev]'")

from playwright.sync_api import expect

from tests.fleet.playing import small_fleet
from tests.server import browser as screen
from tests.server.serving import wait_until

pytestmark = [screen.needs_chromium, pytest.mark.slow]


def test_the_page_follows_its_session_from_replica_to_replica(tmp_path: Path) -> None:
    with (
        small_fleet(tmp_path) as fleet,
        screen.chromium() as chrome,
        screen.greeted(chrome, fleet.url) as page,
    ):
        screen.start(page, "a kite")
        screen.wait_until_moving(page)
        ((session_id, home),) = [
            (name, replica) for replica, server in fleet.servers.items() for name in server.hub.live_sessions
        ]
        (viewer,) = fleet.servers[home].hub.live_sessions[session_id].viewers
        assert viewer.follows, "it is connected to its replica"
        fleet.drain(home)
        wait_until(lambda: fleet.place_of(session_id) != home, "it has moved")
        there = fleet.servers[fleet.place_of(session_id)].hub.live_sessions[session_id]
        wait_until(lambda: any(viewer.follows for viewer in there.viewers), "the page has gone along")
        screen.wait_until_moving(page)
        expect(screen.phase(page)).to_have_text("live")
        labels = (
            page.get_by_role("region", name="Timeline")
            .locator(".cell > span:first-of-type")
            .all_inner_texts()
        )
        assert [int(text) for text in labels] == list(range(len(labels))), "without a hole or a repetition"
        with chrome.new_context() as context:
            watching = context.new_page()
            watching.goto(f"{fleet.url}/fleet")
            expect(watching.get_by_role("heading", name=home)).to_be_visible()
            expect(watching.locator("#timeline")).to_contain_text("move")
