"""A real Chromium for tests of the page, and what a test asks of a page. Needs Playwright and the
distribution's chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: apt install chromium")
FLAGS = [
    "--no-sandbox",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
]
PATIENCE_MS = 20_000
expect.set_options(timeout=PATIENCE_MS)

PIXELS = """() => {
    const { width, height } = document.getElementById("picture");
    const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(document.getElementById("picture"), 0, 0);
    return copy.getImageData(0, 0, width, height).data;
}"""
FINGERPRINT = f"() => ({PIXELS})().reduce((sum, value) => (sum * 31 + value) >>> 0, 0)"
MEAN_COLOUR = f"""() => {{
    const data = ({PIXELS})();
    const mean = [0, 0, 0];
    data.forEach((value, i) => (i % 4 < 3 ? (mean[i % 4] += value) : 0));
    return mean.map((sum) => sum / (data.length / 4));
}}"""


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def greeted(chrome: Browser, url: str) -> Iterator[Page]:
    """A page that has been greeted; whatever it complains about fails the test."""
    with chrome.new_context(permissions=["camera"], reduced_motion="reduce") as context:
        page = context.new_page()
        found = complaints(page)
        page.goto(url)
        expect(phase(page)).to_have_text("ready")
        yield page
    assert found == [], found


def complaints(page: Page) -> list[str]:
    """Errors and warnings of this page, as they come."""
    found: list[str] = []
    page.on(
        "console",
        lambda message: found.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: found.append(str(error)))
    return found


def start(page: Page, prompt: str) -> None:
    page.get_by_role("textbox", name="Prompt").fill(prompt)
    page.keyboard.press("Enter")


def phase(page: Page) -> Any:
    return page.get_by_role("status", name="Connection")


def fingerprint(page: Page) -> int:
    """Of the pixels on the screen."""
    return int(page.evaluate(FINGERPRINT))


def mean_colour(page: Page) -> tuple[float, float, float]:
    red, green, blue = page.evaluate(MEAN_COLOUR)
    return red, green, blue


def wait_until_moving(page: Page) -> None:
    """Until the picture is another than it is now."""
    before = fingerprint(page)
    page.wait_for_function(f"before => ({FINGERPRINT})() !== before", arg=before, timeout=PATIENCE_MS)
