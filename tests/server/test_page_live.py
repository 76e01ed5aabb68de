"""The page in a real browser against the real server, with the smallest model there is: the whole way, from a
key to pixels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import av
import pytest

pytest.importorskip("playwright", reason="tests of the page need playwright: pip install 'millstream[dev]'")

from playwright.sync_api import Browser, Page, WebSocketRoute, expect

from millstream.server.access.auth import access_for
from millstream.server.app import AppConfig
from tests.server import browser as screen
from tests.server.serving import serving

pytestmark = screen.needs_chromium


IMAGE = """() => {
    const picture = document.getElementById("elsewhere-picture");
    if (!picture.naturalWidth) return 0;
    const copy = new OffscreenCanvas(picture.naturalWidth, picture.naturalHeight).getContext("2d");
    copy.drawImage(picture, 0, 0);
    const { data } = copy.getImageData(0, 0, picture.naturalWidth, picture.naturalHeight);
    return data.reduce((sum, value) => (sum * 31 + value) >>> 0, 1);
}"""


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with screen.chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("serve"), abandon_s=2.0) as running:
        yield running.url()


@pytest.fixture
def page(chrome: Browser, server: str) -> Iterator[Page]:
    with screen.greeted(chrome, server) as page:
        yield page


def test_the_picture_follows_the_prompt_after_two_receipts(page: Page) -> None:
    screen.start(page, "a kite over the sea")
    screen.wait_until_moving(page)
    screen.start(page, "a lantern in the rain")
    status = page.get_by_role("status", name="Last change")
    expect(status).to_have_text(re.compile(r"Prompt (queued for|applied at) chunk \d+"))
    expect(status).to_have_text(re.compile(r"Prompt applied at chunk \d+, on screen after [\d.]+ s"))
    screen.wait_until_moving(page)
    expect(page.locator(".run").last).to_contain_text("a lantern in the rain")


def test_the_addresses_on_the_page_are_played_by_a_browser_and_by_a_player(page: Page) -> None:
    screen.start(page, "a kite over the sea")
    screen.wait_until_moving(page)
    page.get_by_text("Watch elsewhere").click()
    page.evaluate("""() => {
        const picture = document.body.appendChild(new Image());
        picture.id = "elsewhere-picture";
        picture.src = document.getElementById("mjpeg").value;
    }""")
    seen = set()
    for _ in range(100):
        page.wait_for_timeout(50)
        seen.add(page.evaluate(IMAGE))
        if len(seen - {0}) > 2:
            break
    assert len(seen - {0}) > 2, "it does not move"
    with av.open(page.get_by_label("HLS", exact=False).first.input_value()) as film:
        assert next(film.decode(video=0)).width == film.streams.video[0].width
    page.evaluate("""document.getElementById("elsewhere-picture").remove()""")


def test_day_becomes_night_when_the_prompt_says_so(chrome: Browser, tmp_path: Path) -> None:
    with serving(tmp_path, model=("brook", "bundled")) as running, chrome.new_context() as context:
        page = context.new_page()
        page.goto(running.url())
        page.get_by_text("New stream", exact=True).click()
        page.get_by_label("Frame rate").fill("4")  # so slow that any machine can promise it
        screen.start(page, "a large white boat on the sea at noon in clear weather")
        screen.wait_until_moving(page)
        noon = sum(screen.mean_colour(page))
        page.get_by_role("radio", name="Cut").check(force=True)
        screen.start(page, "a large white boat on the sea at night in clear weather")
        expect(page.get_by_role("status", name="Last change")).to_have_text(
            re.compile(r"applied at chunk \d+, on screen after")
        )
        night = sum(screen.mean_colour(page))
        assert night < 0.7 * noon, f"{noon:.0f} at noon, {night:.0f} at night"


def test_a_cut_connection_comes_back_to_its_session(chrome: Browser, server: str) -> None:
    with chrome.new_context() as context:
        page = context.new_page()
        lines: list[WebSocketRoute] = []

        def relay(line: WebSocketRoute) -> None:
            lines.append(line)
            line.connect_to_server()

        page.route_web_socket(re.compile(r"/v1/stream"), relay)
        page.goto(server)
        screen.start(page, "a kite over the sea")
        screen.wait_until_moving(page)
        lines[-1].close(code=1012, reason="cut by the test")
        expect(page.get_by_role("alert")).to_contain_text("connection is lost")
        expect(screen.phase(page)).to_have_text("live")
        screen.wait_until_moving(page)
        numbers = [int(text) for text in page.locator(".cell > span:first-of-type").all_inner_texts()]
        assert len(lines) == 2
        assert numbers == list(range(len(numbers))), "the same session goes on where it was"


def test_two_tabs_show_two_streams(page: Page, server: str) -> None:
    other = page.context.new_page()
    other.goto(server)
    for tab in (page, other):
        screen.start(tab, "a kite over the sea")
        screen.wait_until_moving(tab)
    assert screen.mean_colour(page) != screen.mean_colour(other), "the same prompt, noise of their own"


def test_a_recording_can_be_downloaded_and_played(page: Page, tmp_path: Path) -> None:
    screen.start(page, "a kite over the sea")
    screen.wait_until_moving(page)
    page.get_by_role("button", name="Record").click()
    expect(page.locator("#recording-mark")).to_be_visible()
    shown = page.locator(".cell").count()
    page.wait_for_function("shown => document.querySelectorAll('.cell').length >= shown + 2", arg=shown)
    page.get_by_role("button", name="Stop recording").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename.startswith("a-kite-over-the-sea_"), (
        "what the server calls it is for itself"
    )
    clip = tmp_path / "clip.mp4"
    download.value.save_as(clip)
    with av.open(str(clip)) as video:
        assert sum(1 for _ in video.decode(video=0)) >= 12


def test_a_saved_stream_goes_on_as_a_new_one(page: Page) -> None:
    screen.start(page, "a kite over the sea")
    screen.wait_until_moving(page)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("status", name="News")).to_contain_text("Saved")
    page.get_by_role("button", name="Saved").click()
    page.get_by_role("button", name="Go on from a kite over the sea").click()
    expect(screen.phase(page)).to_have_text("live")
    screen.wait_until_moving(page)


def test_a_view_link_shows_what_its_owner_sees(page: Page) -> None:
    screen.start(page, "a kite over the sea")
    screen.wait_until_moving(page)
    page.get_by_role("button", name="Share").click()
    said = page.get_by_role("status", name="News").inner_text()
    watcher = page.context.new_page()
    watcher.goto(re.findall(r"http\S+", said)[0])
    expect(screen.phase(watcher)).to_have_text("watching")
    screen.wait_until_moving(watcher)


def test_video_and_camera_work_together(page: Page) -> None:
    page.get_by_text("New stream", exact=True).click()
    page.get_by_label("Pictures").select_option("mp4")
    page.get_by_role("radio", name="Camera").check(force=True)
    expect(page.get_by_label("Your input")).to_be_visible()
    screen.start(page, "a kite over the sea")
    page.wait_for_function("() => document.getElementById('video').currentTime > 1")


def test_a_prompt_that_is_too_long_is_said_and_not_cut(page: Page) -> None:
    page.get_by_placeholder("What should it show?").fill("a kite over the sea " * 500)
    page.get_by_placeholder("What should it show?").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("The prompt has 9999 bytes; shorten it to 8192")


def test_a_key_is_asked_for_and_then_lets_in(chrome: Browser) -> None:
    access = access_for("127.0.0.1", api_key="open-sesame", insecure=False, origins=())
    with serving(config=AppConfig(access=access)) as locked, chrome.new_context() as context:
        page = context.new_page()
        page.goto(locked.url())
        expect(page.get_by_role("alert")).to_contain_text("This server asks for an access key")
        page.get_by_label("Access key").fill("open-simsim")
        page.get_by_label("Access key").press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("Your access key is not one of this server's")
        page.get_by_label("Access key").fill("open-sesame")
        page.get_by_label("Access key").press("Enter")
        expect(screen.phase(page)).to_have_text("ready")
        screen.start(page, "a kite over the sea")
        screen.wait_until_moving(page)
