"""The built site in a browser, on a desk and on a phone: what it shows, what it asks for, and whether its
sliders move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("material", reason="MkDocs Material is not installed: make course does")
pytest.importorskip("playwright", reason="tests of the page need playwright: pip install 'millstream[dev]'")

from playwright.sync_api import Browser

from course.catalogue import CHAPTERS
from course.reading.catalogue import PAPERS
from course.site import build_site
from tests.server.browser import chromium, complaints, needs_chromium

pytestmark = [pytest.mark.slow, pytest.mark.course, needs_chromium]
LOOK = """() => ({
    wide: document.documentElement.scrollWidth,
    missing: [...document.images].filter((image) => !image.naturalWidth).map((image) => image.src),
    stuck: [...document.querySelectorAll(".slider input")].filter((input) => {
        const shown = () => input.closest(".slider").textContent;
        const before = shown();
        input.value = input.max;
        input.dispatchEvent(new Event("input", { bubbles: true }));
        return shown() === before || !input.closest(".slider").querySelector("p").textContent;
    }).length,
})"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("course") / "site"
    build_site(folder)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def test_every_chapter_paper_and_the_quiz_have_a_page(site: Path) -> None:
    pages = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    wanted = {f"{each.name}/page.html" for each in CHAPTERS} | {
        f"reading/{each.name}.html" for each in PAPERS
    }
    assert pages == wanted | {"index.html", "quiz.html", "reading/index.html", "404.html"}


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_the_screen_and_ask_nobody(site: Path, browser: Browser, width: int) -> None:
    with browser.new_context(viewport={"width": width, "height": 800}) as context:
        page = context.new_page()
        found = complaints(page)
        asked = list[str]()
        page.on("request", lambda request: asked.append(request.url))
        for path in sorted(site.rglob("*.html")):
            if path.name == "404.html":  # a server shows it, with the server's own paths
                continue
            page.goto(path.as_uri())
            assert page.evaluate(LOOK) == {"wide": width, "missing": [], "stuck": 0}, path
        assert found == []
        assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
