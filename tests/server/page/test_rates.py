"""Frame rates as people meet them: chosen for them, told with their reason, and offered where one is
refused."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright", reason="tests of the page need playwright: pip install 'millstream[dev]'")

import re

from playwright.sync_api import Page, expect

from millstream.core.client_messages import Start
from tests.server import browser as screen
from tests.server.fake_stream import FakeStream
from tests.server.serving import wait_until

pytestmark = screen.needs_chromium
SLOW = "plays 9.5 frames a second, which this device keeps: a chunk takes 1.20 s"


def starts(server: FakeStream) -> list[Start]:
    return [heard for heard in server.heard if isinstance(heard, Start)]


def test_who_names_no_rate_asks_for_the_one_that_the_device_keeps(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    expect(screen.phase(page)).to_have_text("live")
    assert starts(server)[0].fps == "auto"


def test_a_rate_that_was_typed_is_asked_for(page: Page, server: FakeStream) -> None:
    page.get_by_text("New stream", exact=True).click()
    page.get_by_label("Frame rate").fill("12.5")
    screen.start(page, "a kite")
    expect(screen.phase(page)).to_have_text("live")
    assert starts(server)[0].fps == 12.5


def test_a_rate_that_changes_is_told_with_its_reason_and_the_picture_goes_on(
    page: Page, server: FakeStream
) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    server.change_rate(next(iter(server.sessions.values())), 9.5, SLOW)
    expect(page.get_by_role("status", name="How the stream is paced")).to_have_text(f"P{SLOW[1:]}.")
    expect(page.locator("#meter-fps")).to_have_text(re.compile(r"^[1-9][\d.]* of 9.5$"))
    screen.wait_until_moving(page)


@pytest.mark.parametrize(
    ("offer", "button"), [({"fps": 9.0}, "Start at 9 frames a second"), ({"wait": True}, "Wait in line")]
)
def test_a_refusal_has_a_button_for_what_would_be_accepted(
    page: Page, server: FakeStream, offer: dict[str, object], button: str
) -> None:
    server.admission = "refuse"
    server.offer = offer
    page.get_by_text("New stream", exact=True).click()
    page.get_by_label("Wait in line when there is no room").uncheck()
    screen.start(page, "a kite")
    page.get_by_role("button", name=button).click()
    expect(screen.phase(page)).to_have_text("live")
    screen.wait_until_moving(page)
    assert server.takes_offer(starts(server)[-1])


def test_what_makes_no_sense_is_said_beside_its_field_and_the_stream_goes_on(
    page: Page, server: FakeStream
) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.get_by_text("New stream", exact=True).click()
    for label, wrong, right in (
        ("Frame rate", "fast", "auto"),
        ("Frame rate", "0", "12"),
        ("Size", "big", "256x256"),
    ):
        page.get_by_label(label).fill(wrong)
        page.get_by_role("button", name="Start over").click()
        assert page.evaluate("document.activeElement.matches(':invalid')")
        page.get_by_label(label).fill(right)
    expect(screen.phase(page)).to_have_text("live")
    assert len(server.sessions) == 1
    page.get_by_role("button", name="Start over").click()
    wait_until(lambda: len(server.sessions) == 2, "what makes sense is asked for")
