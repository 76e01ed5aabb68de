"""A stream that is started over after a reload, in a real browser on the real server."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright", reason="tests of the page need playwright: pip install 'millstream[dev]'")

from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.server import browser as screen
from tests.server.serving import serving

pytestmark = [screen.needs_chromium, pytest.mark.slow]


def test_who_starts_over_after_a_reload_gets_what_the_stream_was_by_then(
    chrome: Browser, tmp_path: Path
) -> None:
    with serving(tmp_path) as server, screen.greeted(chrome, server.url()) as page:
        page.get_by_text("New stream", exact=True).click()
        page.get_by_label("Size").fill("32x48")
        page.get_by_label("Frame rate").fill("12")
        screen.start(page, "a kite")
        screen.wait_until_moving(page)
        page.get_by_role("slider", name="Steps").press("ArrowLeft")
        page.get_by_role("spinbutton", name="Window").fill("6")
        page.get_by_role("spinbutton", name="Window").press("Enter")
        page.get_by_role("slider", name="Weight of the past").press("ArrowLeft")
        expect(page.get_by_role("status", name="Last change")).to_contain_text("Past 95% applied")
        (first,) = server.hub.live_sessions.values()
        config = first.config
        assert config != first.request.config, "it was steered"
        page.reload()
        expect(screen.phase(page)).to_have_text("live")
        page.get_by_text("New stream", exact=True).click()
        page.get_by_role("button", name="Start over").click()
        server.until(lambda: first.ended and len(server.hub.live_sessions) == 1, "another one has begun")
        (second,) = server.hub.live_sessions.values()
        assert (second.request.config, second.request.rate) == (config, "asked")


def test_a_stream_goes_on_where_the_server_would_refuse_the_one_in_its_place(
    chrome: Browser, tmp_path: Path
) -> None:
    with serving(tmp_path) as server, screen.greeted(chrome, server.url()) as page:
        screen.start(page, "a kite")
        screen.wait_until_moving(page)
        (first,) = server.hub.live_sessions.values()
        page.get_by_text("New stream", exact=True).click()
        page.get_by_label("Size").fill("4096x4096")
        page.get_by_role("button", name="Start over").click()
        expect(page.get_by_role("status", name="Last change")).to_contain_text(
            "Your stream goes on as it is."
        )
        expect(screen.phase(page)).to_have_text("live")
        assert list(server.hub.live_sessions.values()) == [first]
        page.get_by_label("Size").fill("32x48")
        page.get_by_role("button", name="Start over").click()
        server.until(lambda: first.ended and len(server.hub.live_sessions) == 1, "another one has begun")
