"""What the page looks like to everybody: themes, names, sizes and contrasts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="tests of the page need playwright: pip install 'millstream[dev]'")

from playwright.sync_api import Page, expect

from tests.server import browser as screen
from tests.server.fake_stream import GIBBERISH, WEB, FakeStream

pytestmark = screen.needs_chromium


def test_both_themes_follow_the_system_and_the_switch(page: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(background)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(background)
    page.get_by_role("button", name="Switch between dark and light").click()
    assert page.evaluate(background) == dark != light
    page.reload()
    assert page.evaluate(background) == dark, "the choice is remembered"


def test_every_control_has_a_name(page: Page) -> None:
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button:not([hidden]), a[href], input, select, textarea")].filter((element) => {
            const label = element.labels?.[0]?.textContent ?? "";
            return !(element.getAttribute("aria-label") ?? element.textContent + label).trim();
        }).map((element) => element.outerHTML)"""
    )
    assert nameless == []


def test_a_phone_needs_no_sideways_scrolling(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    screen.start(page, "a kite with a very long tail over a very wide sea at the end of a very long day")
    screen.wait_until_moving(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_words_that_are_not_understood_do_not_widen_a_phones_page(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    screen.start(page, " ".join(f"{GIBBERISH}{number}" for number in range(12)))
    expect(page.get_by_role("status", name="Words not understood")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("name", ["Record", "Save", "Saved", "Share"])
def test_a_button_without_its_words_still_has_its_name(page: Page, name: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    expect(page.get_by_role("button", name=name, exact=True)).to_be_visible()


def test_a_phones_bar_has_room_for_a_download(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    screen.start(page, "a kite")
    page.get_by_role("button", name="Record").click()
    page.get_by_role("button", name="Stop recording").click()
    expect(page.get_by_role("link", name="Download")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    icon = page.locator(".brand svg").bounding_box()
    assert icon is not None
    assert icon["width"] >= 20, "nothing else takes its room"


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_a_stream_is_ended_without_scrolling(page: Page, width: int, height: int) -> None:
    page.set_viewport_size({"width": width, "height": height})
    expect(page.get_by_role("button", name="End stream")).to_be_disabled()
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    expect(page.get_by_role("button", name="End stream")).to_be_in_viewport(ratio=1)
    page.get_by_role("button", name="End stream").click()
    expect(screen.phase(page)).to_have_text("ended")


def height_of_picture(page: Page) -> float:
    box = page.locator("#frame").bounding_box()
    assert box is not None
    return box["height"]


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_picture_keeps_its_size_whatever_opens(page: Page, width: int, height: int) -> None:
    page.set_viewport_size({"width": width, "height": height})
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    before = height_of_picture(page)
    page.get_by_role("radio", name="Blend").check()
    expect(page.get_by_role("spinbutton", name="Blend length in chunks")).to_be_visible()
    assert height_of_picture(page) == before
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("list", name="Futures")).to_be_visible()
    assert height_of_picture(page) == before
    page.get_by_role("button", name="Close the previews").click()
    expect(page.get_by_role("list", name="Futures")).to_be_hidden()
    page.get_by_role("button", name="Look at chunk 0", exact=True).click(force=True)
    assert height_of_picture(page) == before


def test_figures_of_the_run_are_there_for_who_opens_them_and_not_first(page: Page) -> None:
    summaries = page.get_by_role("complementary", name="Details").locator("summary").all_inner_texts()
    assert summaries[:3] == ["Source", "Steer", "How it runs"]
    expect(page.locator("#meter-fps")).to_be_hidden()
    page.get_by_text("How it runs", exact=True).click()
    expect(page.locator("#meter-fps")).to_be_visible()


@pytest.mark.parametrize("mode", ["Recompute", "Blend", "Cut", "Keep"])
def test_every_mode_says_what_it_does(page: Page, mode: str) -> None:
    page.get_by_role("radio", name=mode).check()
    expect(page.get_by_role("status", name="What the mode does")).to_contain_text(f"{mode}: ")


@pytest.mark.parametrize("name", ["Record", "Save", "Saved", "Share"])
def test_a_phones_buttons_have_words_on_them(page: Page, name: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    word = page.get_by_role("button", name=name, exact=True).locator("span").bounding_box()
    assert word is not None
    assert word["width"] >= 20, "it can be read"


def test_what_ends_a_recording_and_what_ends_the_stream_do_not_look_alike(page: Page) -> None:
    screen.start(page, "a kite")
    page.get_by_role("button", name="Record").click()
    expect(page.get_by_role("button", name="Stop recording")).to_be_visible()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    expect(page.get_by_role("button", name="End stream")).to_be_visible()


def test_news_are_as_wide_as_a_phone_lets_them_be(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    screen.start(page, "a kite")
    expect(screen.phase(page)).to_have_text("live")
    page.get_by_role("button", name="Share").click()
    news = page.get_by_role("status", name="News").bounding_box()
    assert news is not None
    assert news["width"] > 300


def test_the_page_asks_nobody_but_its_server(page: Page, server: FakeStream) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    assert asked
    assert all(url.startswith((server.url, "blob:", "data:")) for url in asked), asked


@pytest.mark.parametrize(
    "path", sorted(WEB.glob("*.js")) + sorted(WEB.glob("*.css")), ids=lambda path: path.name
)
def test_every_file_of_the_page_says_what_it_is(path: Path) -> None:
    assert path.read_text().startswith("/*"), f"{path.name} begins without a word about itself"


def luminance(colour: str) -> float:
    """As WCAG defines it, of #rgb or #rrggbb."""
    digits = colour.lstrip("#")
    digits = digits if len(digits) == 6 else "".join(digit * 2 for digit in digits)
    shares = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("ground", ["wall", "panel", "raised"])
@pytest.mark.parametrize("ink", ["ink", "soft", "faint", "accent", "good", "warn", "bad"])
def test_text_is_readable_in_both_themes(ink: str, ground: str) -> None:
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\)", (WEB / "theme.css").read_text())
    colours = {name: (light, dark) for name, light, dark in pairs}
    for one, other in zip(colours[ink], colours[ground], strict=True):
        darker, lighter = sorted((luminance(one), luminance(other)))
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, f"{one} on {other}"
