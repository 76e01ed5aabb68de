"""What people take away from the page: recordings and saved streams."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("playwright", reason="tests of the page need playwright: pip install 'millstream[dev]'")

from playwright.sync_api import Page, expect

from tests.server import browser as screen
from tests.server.fake_stream import FakeStream

pytestmark = screen.needs_chromium


def test_a_recording_is_offered_for_download(page: Page) -> None:
    screen.start(page, "a kite")
    page.get_by_role("button", name="Record").click()
    expect(page.locator("#recording-mark")).to_be_visible()
    page.get_by_role("button", name="Stop recording").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.path().read_bytes() == b"a recording"


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("A red kite, high over the sea", "a-red-kite-high-over-the-sea"),
        ("a kite " * 20, "a-kite-a-kite-a-kite-a-kite-a-kite-a"),
        ("../../etc/passwd \u202e<b>: Ωmega é", "etc-passwd-b-ωmega-é"),
        ("x" * 300, "x" * 40),
        ("\N{KITE}", "millstream"),
    ],
)
def test_a_recordings_file_says_what_it_shows_and_when_it_began(page: Page, prompt: str, name: str) -> None:
    screen.start(page, prompt)
    page.get_by_role("button", name="Record").click()
    expect(page.locator("#recording-mark")).to_be_visible()
    page.get_by_role("button", name="Stop recording").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert re.fullmatch(
        rf"{name}_\d{{4}}(-\d\d){{2}}_\d\d(-\d\d){{2}}\.mp4", download.value.suggested_filename
    )


def test_a_recording_that_is_fetched_with_a_key_has_its_name_too(page: Page) -> None:
    page.get_by_text("New stream", exact=True).click()
    page.get_by_label("Access key").fill("open-sesame")
    screen.start(page, "a kite")
    page.get_by_role("button", name="Record").click()
    page.get_by_role("button", name="Stop recording").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename.startswith("a-kite_")


def test_a_recording_goes_on_over_a_lost_connection(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    page.get_by_role("button", name="Record").click()
    expect(page.locator("#recording-mark")).to_be_visible()
    server.drop_connections()
    expect(screen.phase(page)).to_have_text("reconnecting")
    expect(screen.phase(page)).to_have_text("live")
    expect(page.locator("#recording-mark")).to_be_visible()
    expect(page.get_by_role("link", name="Download")).to_be_hidden()


def test_a_recording_goes_on_over_a_reload(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    page.get_by_role("button", name="Record").click()
    expect(page.locator("#recording-mark")).to_be_visible()
    page.reload()
    expect(page.locator("#recording-mark")).to_contain_text(
        "Recording 1:0"
    )  # what the server has of it, not since the reload
    expect(page.get_by_role("link", name="Download")).to_be_hidden()
    page.get_by_role("button", name="Stop recording").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename.startswith("a-kite_")


def test_a_recording_that_has_ended_is_offered_after_a_reload_and_after_the_end_of_its_stream(
    page: Page,
) -> None:
    screen.start(page, "a kite")
    page.get_by_role("button", name="Record").click()
    page.get_by_role("button", name="Stop recording").click()
    expect(page.get_by_role("link", name="Download")).to_be_visible()
    page.reload()
    expect(page.get_by_role("link", name="Download")).to_be_visible()
    expect(screen.phase(page)).to_have_text("live")
    page.get_by_role("button", name="End stream").click()
    expect(screen.phase(page)).to_have_text("ended")
    page.reload()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.path().read_bytes() == b"a recording"


def test_a_recording_that_ended_while_the_page_was_away_is_offered(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    page.get_by_role("button", name="Record").click()
    expect(page.locator("#recording-mark")).to_be_visible()
    (session,) = server.sessions.values()
    session.recording = ""
    server.drop_connections()
    expect(page.get_by_role("link", name="Download")).to_be_visible()
    expect(page.locator("#recording-mark")).to_be_hidden()


def test_a_saved_stream_can_be_gone_on_from(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("status", name="News")).to_contain_text("Saved, 1.2 MB")
    screen.start(page, "a comet")
    expect(page.get_by_role("status", name="Last change")).to_contain_text("applied")
    page.get_by_role("button", name="Saved").click()
    page.get_by_role("button", name="Go on from a kite").click()
    expect(screen.phase(page)).to_have_text("live")
    screen.wait_until_moving(page)
    expect(page.get_by_role("textbox", name="Prompt")).to_have_value("a kite")
    assert server.heard[-1].snapshot == "s0"


def test_what_is_recorded_and_saved_before_the_first_picture_is_not_called_as_the_stream_before(
    page: Page, server: FakeStream
) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.get_by_role("button", name="End stream").click()
    expect(screen.phase(page)).to_have_text("ended")
    server.is_slow = True
    screen.start(page, "a comet")
    expect(screen.phase(page)).to_have_text("live")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("status", name="News")).to_contain_text("Saved")
    page.get_by_role("button", name="Record").click()
    expect(page.locator("#recording-mark")).to_be_visible()
    page.get_by_role("button", name="Stop recording").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename.startswith("a-comet_")
    page.get_by_role("button", name="Saved").click()
    expect(page.get_by_role("button", name="Go on from a comet")).to_be_visible()


@pytest.mark.parametrize("key", ["", "letmein8"])
def test_a_link_says_whether_its_viewers_need_a_key(page: Page, key: str) -> None:
    page.get_by_text("New stream", exact=True).click()
    page.get_by_label("Access key").fill(key)
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.get_by_role("button", name="Share", exact=True).click()
    news = page.get_by_role("status", name="News")
    expect(news).to_contain_text("Whoever opens it may watch, not steer")
    assert ("They need an access key as well" in news.inner_text()) == bool(key)
