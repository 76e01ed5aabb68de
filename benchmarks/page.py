"""Measure what the first viewer of a server sees in a real browser: the first picture after Start and stalls.

    python -m benchmarks.page                 # Brook, as `make serve` serves it
    python -m benchmarks.page --seconds 300
    python -m benchmarks.page --page          # write the last result into docs/brook.md

Needs Playwright and the distribution's Chromium, which draws on the same cores. Pictures are counted where
the page draws them, for a minute unless `--seconds` differs. A stall is a visible gap between two of them:
more than a quarter of a second longer than the stated frame rate allows.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playwright.async_api import Page, async_playwright

from benchmarks.pages import report_of, write_between
from benchmarks.report import write_report
from millstream.core.errors import LoadError
from millstream.core.examples import DEFAULT_PROMPT
from millstream.load.host import serve

PAGE = Path(__file__).parents[1] / "docs" / "brook.md"
FIRST_PICTURE_S = 2.0
STALL_S = 0.25
PATIENCE_S = 60.0
COUNT_PICTURES = """(() => {
    window.drawn = [];
    const draw = CanvasRenderingContext2D.prototype.drawImage;
    CanvasRenderingContext2D.prototype.drawImage = function (...what) {
        if (this.canvas.id === "picture") window.drawn.push(performance.now() / 1000);
        return draw.apply(this, what);
    };
})()"""


async def watch(url: str, seconds: float) -> dict[str, Any]:
    """From Start on: when pictures were drawn, and what the page says of the rate."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise LoadError("no chromium on PATH; install it: apt install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = await browser.new_page()
        await page.add_init_script(COUNT_PICTURES)
        await page.goto(url)
        await page.get_by_text("ready", exact=True).wait_for()
        await page.get_by_role("textbox", name="Prompt").fill(DEFAULT_PROMPT)
        started = await page.evaluate("performance.now() / 1000")
        await page.keyboard.press("Enter")
        await _first_picture(page)
        await asyncio.sleep(seconds)
        drawn = await page.evaluate("window.drawn")
        rate, note = (
            await page.locator("#meter-fps").inner_text(),
            await page.locator("#rate-note").inner_text(),
        )
        await browser.close()
    return {"first_picture_s": drawn[0] - started, **gaps(drawn), "rate": rate, "note": note}


async def _first_picture(page: Page) -> None:
    patience = time.monotonic() + PATIENCE_S
    while not await page.evaluate("window.drawn.length"):
        if time.monotonic() > patience:
            raise LoadError(
                f"no picture within {PATIENCE_S:g} s; the page says: {await page.locator('main').inner_text()}"
            )
        await asyncio.sleep(0.05)


def gaps(drawn: Sequence[float]) -> dict[str, float]:
    """Frames a second, and how long the picture stood still beyond what its rate explains."""
    assert len(drawn) > 2, f"{len(drawn)} pictures have no rate"
    between = [later - earlier for earlier, later in itertools.pairwise(drawn)]
    usual = sorted(between)[len(between) // 2]
    stalls = [gap - usual for gap in between if gap > usual + STALL_S]
    return {
        "pictures": len(drawn),
        "frames_per_second": (len(drawn) - 1) / (drawn[-1] - drawn[0]),
        "longest_gap_s": max(between),
        "stalls": len(stalls),
        "stalled_s": sum(stalls),
    }


def missed(measured: dict[str, Any]) -> list[str]:
    lines = []
    if measured["first_picture_s"] > FIRST_PICTURE_S:
        lines.append(f"first picture after {measured['first_picture_s']:.2f} s, at most {FIRST_PICTURE_S:g}")
    if measured["stalls"]:
        lines.append(f"{measured['stalls']} stalls, {measured['stalled_s']:.2f} s in all")
    return lines


def lines() -> list[str]:
    """Write the last result as a sentence."""
    report = report_of("page")
    found = report["measured"]
    cpu = report["hardware"]["cpu"]
    cores = report["hardware"]["cores"]
    stalls = f"{found['stalls']} stalls, {found['stalled_s']:.2f} s in all" if found["stalls"] else "no stall"
    return [
        f"In Chromium beside the server on {cores} cores ({cpu}, commit `{report['commit']}`): the first picture",
        f"{found['first_picture_s']:.2f} s after Start, {found['frames_per_second']:.1f} frames a second and {stalls} in",
        f"{report['configuration']['seconds']:g} s.",
    ]


async def measure(seconds: float, options: Sequence[str]) -> dict[str, Any]:
    async with serve(options) as host:
        found = await watch(f"http{host.url.removeprefix('ws')}", seconds)
    return {**found, "missed": missed(found)}


def main() -> None:
    parser = argparse.ArgumentParser(description="What the first viewer of a server sees in a real browser.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--page", action="store_true", help="write the last result into docs/brook.md and measure nothing"
    )
    options, server = parser.parse_known_args()
    if options.page:
        write_between(PAGE, "benchmarks.page", lines())
        return
    write_report(
        "page", {"seconds": options.seconds, "server": server}, asyncio.run(measure(options.seconds, server))
    )


if __name__ == "__main__":
    main()
