"""A person looks at what the stream could become, and steers there with a click."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright", reason="tests of the page need playwright: pip install 'millstream[dev]'")

from playwright.sync_api import Page, expect

from millstream.core.client_messages import DraftPrompt, Preview
from millstream.core.controls import SetPrompt
from tests.server import browser as screen
from tests.server.fake_stream import EXAMPLES, FakeStream
from tests.server.page.heard import controls

pytestmark = screen.needs_chromium


def asked(server: FakeStream) -> list[tuple[str, ...]]:
    return [message.prompts for message in server.heard if isinstance(message, Preview)]


def drafts(server: FakeStream) -> list[str]:
    return [
        message.control.prompt
        for message in server.heard
        if isinstance(message, DraftPrompt) and message.control
    ]


def test_suggested_futures_are_previewed_considered_and_steered_to(page: Page, server: FakeStream) -> None:
    button = page.get_by_role("button", name="Preview", exact=True)
    expect(button).to_be_disabled()
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    button.click()
    cards = page.get_by_role("list", name="Futures").get_by_role("button")
    expect(cards).to_have_count(3)
    expect(page.locator("#futures canvas")).to_have_count(2)
    expect(page.get_by_text("1 of 3 pictures could not be made: no time.")).to_be_visible()
    assert asked(server) == [()]
    assert drafts(server)[-1] == EXAMPLES[0], "the first may be made ahead"
    cards.nth(1).hover()
    cards.nth(1).click()
    expect(page.get_by_role("img", name=f"The stream: {EXAMPLES[1]}")).to_be_visible()
    assert drafts(server)[-1] == EXAMPLES[1], "so may the one that is pointed at"
    (control,) = controls(server)
    assert isinstance(control, SetPrompt)
    assert (control.prompt, control.mode) == (EXAMPLES[1], "recompute")
    expect(cards).to_have_count(0)


def test_what_is_typed_is_previewed_before_it_is_sent(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.get_by_role("textbox", name="Prompt").fill("a comet")
    page.get_by_role("button", name="Preview", exact=True).click()
    card = page.get_by_role("list", name="Futures").get_by_role("button", name="a comet")
    expect(card).to_be_visible()
    assert asked(server) == [("a comet",)]
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        box = card.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    card.click()
    expect(page.get_by_role("img", name="The stream: a comet")).to_be_visible()


def test_futures_leave_with_the_moment_that_they_are_of(page: Page) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.get_by_role("button", name="Preview", exact=True).click()
    futures = page.get_by_role("list", name="Futures")
    expect(futures).to_be_visible()
    screen.start(page, "a comet")
    expect(futures).to_be_hidden()


def test_futures_that_come_after_their_moment_are_not_shown(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    server.previews_late = True
    button = page.get_by_role("button", name="Preview", exact=True)
    button.click()
    screen.start(page, "a comet")
    expect(page.get_by_role("img", name="The stream: a comet")).to_be_visible()
    expect(button).to_be_enabled()
    page.wait_for_timeout(300)
    expect(page.get_by_role("list", name="Futures")).to_be_hidden()
