"""What the page says about watching elsewhere: addresses to copy, and addresses to send to."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright", reason="tests of the page need playwright: pip install 'millstream[dev]'")

from playwright.sync_api import Page, expect

from tests.server import browser as screen
from tests.server.fake_stream import FakeStream

pytestmark = screen.needs_chromium


def test_addresses_are_copied_with_the_key_and_shown_without(page: Page, server: FakeStream) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_text("Watch elsewhere").click()
    expect(page.get_by_role("button", name="Copy the HLS address")).to_be_disabled()
    page.get_by_text("New stream", exact=True).click()
    page.get_by_label("Access key").fill("letmein8")
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    shown = f"{server.url}/v1/views/s0/live.m3u8"
    expect(page.locator("#hls")).to_have_value(shown)
    page.get_by_role("button", name="Copy the HLS address").click()
    expect(page.get_by_role("status", name="News")).to_contain_text("Address copied")
    assert page.evaluate("navigator.clipboard.readText()") == f"{shown}?api_key=letmein8"


def test_a_stream_is_sent_elsewhere_until_that_is_stopped(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.get_by_text("Watch elsewhere").click()
    page.get_by_label("Send it to").fill("rtmp://live.example.org/app/key")
    page.get_by_role("button", name="Connect").click()
    item = page.get_by_role("list", name="Outputs").get_by_role("listitem")
    expect(item).to_contain_text("rtmp://live.example.org/app")
    page.get_by_role("button", name="Stop sending to rtmp://live.example.org/app").click()
    expect(item).to_have_count(0)
    assert [type(message).__name__ for message in server.heard[-2:]] == ["StartOutput", "StopOutput"]
