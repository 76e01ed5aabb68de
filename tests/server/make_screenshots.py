"""Makes docs/pictures/page-dark.png, page-light.png and page-branches.png again, from the real server and the
model that comes with the package.

python -m tests.server.make_screenshots [dark] [light] [branches]
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser, Page, expect

from tests.server import browser as screen
from tests.server.serve_process import serving

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
STORY = {
    "dark": (
        "a yellow boat on the sea at sunset",
        "a yellow boat on the sea at night",
        "a yellow boat on the sea at dawn",
    ),
    "light": (
        "a large white boat on the sea at dawn in clear weather",
        "a large white boat on the sea at noon in clear weather",
    ),
}
SEED = 3
FPS = 12
"""What two busy cores can promise while a browser draws on the same ones."""
BRANCH_FPS = 4
"""What two cores that do nothing else can promise to two streams: the page says how long a change took."""
PATIENCE_MS = 120_000
SCENE_S = 7
WINDOW = {"width": 1440, "height": 900}


def tell(page: Page, prompts: tuple[str, ...], fps: float = FPS) -> None:
    """Steer through a story and stay a while at each scene."""
    page.get_by_text("New stream", exact=True).click()
    page.get_by_label("Frame rate").fill(str(fps))
    page.get_by_text("New stream", exact=True).click()
    page.get_by_label("Seed", exact=True).fill(str(SEED))
    for number, prompt in enumerate(prompts):
        screen.start(page, prompt)
        screen.wait_until_moving(page)
        if number:
            expect(page.get_by_role("status", name="Last change")).to_contain_text("on screen after")
        page.wait_for_timeout(1000 * SCENE_S)


def picture(chrome: Browser, url: str, theme: str) -> None:
    with chrome.new_context(color_scheme=theme, viewport=WINDOW) as context:  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(url)
        tell(page, STORY[theme])
        page.screenshot(path=PICTURES / f"page-{theme}.png")
        page.evaluate("document.getElementById('stop').click()")
        expect(screen.phase(page)).to_have_text("ended")


def branches(chrome: Browser, url: str) -> None:
    """The same moment, two futures."""
    with chrome.new_context(color_scheme="dark", viewport=WINDOW) as context:
        page = context.new_page()
        page.goto(url)
        tell(page, STORY["dark"][:1], fps=BRANCH_FPS)
        page.get_by_role("button", name="Fork", exact=True).click()
        expect(page.get_by_role("button", name="Steer", exact=True)).to_be_visible()
        page.wait_for_timeout(3000)
        for prompt in ("a yellow boat on the sea at night", "a yellow boat on the sea at noon"):
            page.get_by_role("button", name="Steer", exact=True).click()
            screen.wait_until_moving(page)
            screen.start(page, prompt)
            expect(page.get_by_role("status", name="Last change")).to_contain_text(
                "on screen after", timeout=PATIENCE_MS
            )
        page.wait_for_timeout(2000 * SCENE_S)
        strip = page.get_by_role("region", name="Timeline").bounding_box()
        assert strip is not None
        without_panel = {"x": 0, "y": 0, "width": 2 * strip["x"] + strip["width"], "height": WINDOW["height"]}
        page.screenshot(path=PICTURES / "page-branches.png", clip=without_panel)


def main() -> None:
    wanted = sys.argv[1:] or [*STORY, "branches"]
    with (
        TemporaryDirectory() as data,
        serving("--model", "brook", "--data", data) as url,
        screen.chromium() as chrome,
    ):
        for name in wanted:
            branches(chrome, url) if name == "branches" else picture(chrome, url, name)


if __name__ == "__main__":
    main()
