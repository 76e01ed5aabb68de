"""The page in a real browser, against a server that paints instead of dreaming: what people see, hear and can do."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("playwright", reason="tests of the page need playwright: pip install 'millstream[dev]'")

from playwright.sync_api import Browser, Page, expect

from millstream.core.controls import Cut, SetNoiseScale, SetPrompt, SetSeed, SetSteps, SetWindow
from millstream.server.messages import Attach, Start, Steer
from millstream.server.picture import png
from millstream.server.video_writer import VideoWriter
from tests.server import browser as screen
from tests.server.fake_stream import EXAMPLES, WEB, FakeStream, fake_stream

pytestmark = pytest.mark.skipif(screen.CHROMIUM is None, reason="no chromium on PATH: apt install chromium")


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with screen.chromium() as browser:
        yield browser


@pytest.fixture
def server() -> Iterator[FakeStream]:
    with fake_stream() as fake:
        yield fake


@pytest.fixture
def page(chrome: Browser, server: FakeStream) -> Iterator[Page]:
    """A page that has been greeted; whatever it complains about fails the test."""
    context = chrome.new_context(permissions=["camera"], reduced_motion="reduce")
    page = context.new_page()
    complaints = screen.complaints(page)
    page.goto(server.url)
    expect(screen.phase(page)).to_have_text("ready")
    yield page
    context.close()
    assert complaints == []


def controls(server: FakeStream) -> list[object]:
    return [asked.control for asked in server.heard if isinstance(asked, Steer)]


def wait_for_frames(page: Page, server: FakeStream, count: int) -> None:
    """Until the camera or file has sent so many."""
    give_up = time.monotonic() + screen.PATIENCE_MS / 1000
    while server.frames_in < count:
        assert time.monotonic() < give_up, f"{server.frames_in} frames came, not {count}"
        page.wait_for_timeout(5)  # milliseconds in which the page goes on


def chunks_on_strip(page: Page) -> list[int]:
    labels = page.get_by_role("region", name="Timeline").locator(".cell > span:first-of-type")
    return [int(text) for text in labels.all_inner_texts()]


def test_the_picture_moves(page: Page) -> None:
    screen.start(page, "a kite")
    expect(screen.phase(page)).to_have_text("live")
    screen.wait_until_moving(page)
    screen.wait_until_moving(page)


def test_an_example_starts_a_stream_with_one_click(page: Page, server: FakeStream) -> None:
    page.get_by_role("button", name=EXAMPLES[1]).click()
    expect(screen.phase(page)).to_have_text("live")
    expect(page.get_by_role("img", name=f"The stream: {EXAMPLES[1]}")).to_be_visible()
    assert isinstance(server.heard[0], Start)


def test_a_prompt_is_shown_queued_then_applied_then_seen(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    before = screen.mean_colour(page)
    screen.start(page, "a comet")
    status = page.get_by_role("status", name="Last change")
    expect(status).to_have_text(re.compile(r"Prompt queued for chunk \d+"))
    expect(status).to_have_text(re.compile(r"Prompt applied at chunk \d+, on screen after [\d.]+ s"))
    after = screen.mean_colour(page)
    assert max(abs(a - b) for a, b in zip(before, after, strict=True)) > 8, f"{before} → {after}"
    chunk = re.findall(r"chunk (\d+)", status.inner_text())[0]
    expect(page.get_by_role("listitem", name=re.compile(rf"Chunk {chunk} .*Prompt applied at chunk {chunk}"))).to_be_visible()
    expect(page.locator("#meter-latency")).to_have_text(re.compile(r"[\d.]+ s"))


def test_figures_and_where_the_time_goes_are_told(page: Page) -> None:
    screen.start(page, "a kite")
    expect(page.locator("#meter-fps")).to_have_text(re.compile(r"^[1-9][\d.]* of 16$"))
    expect(page.locator("#meter-continuity")).to_have_text("99.7 %")
    expect(page.locator("#meter-viewers")).to_have_text("1")
    told = "Where a chunk's time goes: prompt 10 ms, step 80 ms, decode 25 ms, other 5 ms"
    expect(page.get_by_role("img", name=told)).to_be_visible()
    expect(page.get_by_text("120 ms of work for 500 ms of stream")).to_be_visible()


def test_every_chunk_leaves_its_picture_on_the_strip_under_its_prompt(page: Page) -> None:
    screen.start(page, "a kite")
    painted = """() => {
        const thumbnail = document.querySelector(".cell canvas");
        if (!thumbnail) return false;
        const copy = new OffscreenCanvas(thumbnail.width, thumbnail.height).getContext("2d", { willReadFrequently: true });
        copy.drawImage(thumbnail, 0, 0);
        return copy.getImageData(0, 0, thumbnail.width, thumbnail.height).data.every((value, i) => i % 4 < 3 || value === 255);
    }"""
    page.wait_for_function(painted)
    expect(page.locator(".run").first).to_contain_text("a kite")


def test_a_blend_is_as_long_as_it_was_asked_to_be(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    expect(screen.phase(page)).to_have_text("live")
    page.get_by_role("radio", name="Blend").check(force=True)
    page.get_by_role("spinbutton", name="Blend length in chunks").fill("7")
    screen.start(page, "a comet")
    expect(page.get_by_role("status", name="Last change")).to_contain_text("applied")
    assert [(each.mode, each.chunks) for each in controls(server) if isinstance(each, SetPrompt)] == [("blend", 7)]


def test_the_same_session_goes_on_after_a_lost_connection(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    server.drop_connections()
    expect(page.get_by_role("alert")).to_contain_text("connection is lost")
    expect(screen.phase(page)).to_have_text("live")
    screen.wait_until_moving(page)
    assert len(server.sessions) == 1
    assert any(isinstance(asked, Attach) for asked in server.heard)
    chunks = chunks_on_strip(page)
    assert chunks == list(range(len(chunks))), "the strip goes on without a hole or a repetition"


def test_a_reload_comes_back_to_the_same_session(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.reload()
    expect(screen.phase(page)).to_have_text("live")
    screen.wait_until_moving(page)
    assert len(server.sessions) == 1


def test_two_tabs_are_two_sessions_with_pictures_of_their_own(page: Page, server: FakeStream) -> None:
    other = page.context.new_page()
    other.goto(server.url)
    screen.start(page, "a kite")
    screen.start(other, "a comet")
    for tab in (page, other):
        screen.wait_until_moving(tab)
    assert len(server.sessions) == 2
    assert screen.mean_colour(page) != pytest.approx(screen.mean_colour(other), abs=4)
    seeds = {asked.seed for asked in server.heard if isinstance(asked, Start)}
    assert len(seeds) == 2, "each stream has noise of its own"


def test_a_refusal_is_told_with_its_reason_and_can_be_tried_again(page: Page, server: FakeStream) -> None:
    server.admission = "refuse"
    screen.start(page, "a kite")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("cannot take this stream now. 3 streams use 0.93 of the device")
    server.admission = "admit"
    alert.get_by_role("button", name="Start again").click()
    expect(screen.phase(page)).to_have_text("live")


def test_waiting_is_told_with_the_position_until_there_is_room(page: Page, server: FakeStream) -> None:
    server.admission = "wait"
    screen.start(page, "a kite")
    expect(page.get_by_role("alert")).to_contain_text("You are number 2 in line, about 30 s. Every place is taken.")
    expect(screen.phase(page)).to_have_text("in line")
    screen.start(page, "a comet")
    expect(page.get_by_role("status", name="Last change")).to_contain_text("Still in line")
    server.admission = "admit"
    expect(screen.phase(page)).to_have_text("live")
    expect(page.get_by_role("alert")).to_be_hidden()
    assert len([asked for asked in server.heard if isinstance(asked, Start)]) == 1


def test_words_that_are_not_understood_are_named(page: Page) -> None:
    screen.start(page, "a blorp at sea")
    expect(page.get_by_role("status", name="Words not understood")).to_have_text("Not understood: “blorp”")
    screen.start(page, "a boat at sea")
    expect(page.get_by_role("status", name="Words not understood")).to_be_hidden()


def test_left_out_pictures_and_overload_are_told(page: Page, server: FakeStream) -> None:
    server.dropped = 3
    screen.start(page, "a kite")
    expect(page.get_by_role("status", name="News")).to_contain_text("the pictures of 3 chunks were left out")
    server.overloaded = True
    expect(screen.phase(page)).to_have_text("overloaded")


def test_everything_can_be_done_from_the_keyboard(page: Page, server: FakeStream) -> None:
    keyboard = page.keyboard
    keyboard.press("/")
    expect(page.get_by_role("textbox", name="Prompt")).to_be_focused()
    keyboard.type("a kite")
    keyboard.press("Enter")
    expect(screen.phase(page)).to_have_text("live")
    keyboard.press("Escape")
    keyboard.press("2")
    expect(page.get_by_role("radio", name="Blend")).to_be_checked()
    keyboard.press("Space")
    expect(screen.phase(page)).to_have_text("paused")
    keyboard.press("Space")
    expect(screen.phase(page)).to_have_text("live")
    keyboard.press("c")
    keyboard.press("/")
    keyboard.press("Control+A")
    keyboard.type("a comet")
    keyboard.press("Enter")
    expect(page.get_by_role("status", name="Last change")).to_contain_text("Prompt applied")
    assert any(isinstance(control, Cut) for control in controls(server))
    assert controls(server)[-1] == SetPrompt(id=controls(server)[-1].id, prompt="a comet", mode="blend", chunks=4)  # type: ignore[attr-defined]
    keyboard.press("Escape")
    keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()


def test_earlier_prompts_come_back_with_the_arrow_keys(page: Page) -> None:
    prompt = page.get_by_role("textbox", name="Prompt")
    for text in ("a kite", "a comet"):
        screen.start(page, text)
        expect(screen.phase(page)).to_have_text("live")
    prompt.fill("a draft")
    for key, text in [("ArrowUp", "a comet"), ("ArrowUp", "a kite"), ("ArrowUp", "a kite"), ("ArrowDown", "a comet")]:
        prompt.press(key)
        expect(prompt).to_have_value(text)
    prompt.press("ArrowDown")
    expect(prompt).to_have_value("a draft")


def test_every_knob_sends_its_control(page: Page, server: FakeStream) -> None:
    page.get_by_role("radio", name="Camera").check(force=True)
    expect(page.get_by_label("Your input")).to_be_visible()
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.get_by_role("spinbutton", name="Seed").fill("7")
    page.get_by_role("slider", name="Steps").press("ArrowLeft")
    page.get_by_role("spinbutton", name="Window").fill("12")
    page.get_by_role("spinbutton", name="Window").press("Enter")
    page.get_by_role("slider", name="Noise").press("ArrowRight")
    expect(page.get_by_role("status", name="Last change")).to_contain_text("Noise 75% applied")
    sent = {type(control): control for control in controls(server)}
    assert sent[SetSeed].seed == 7  # type: ignore[attr-defined]
    assert sent[SetSteps].steps == pytest.approx((1000, 2000 / 3, 1000 / 3))  # type: ignore[attr-defined]
    assert (sent[SetWindow].window, sent[SetWindow].sink) == (12, 3)  # type: ignore[attr-defined]
    assert sent[SetNoiseScale].noise_scale == pytest.approx(0.75)  # type: ignore[attr-defined]


def test_camera_frames_reach_the_server_at_the_streams_rate(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.get_by_role("radio", name="Camera").check(force=True)
    expect(page.get_by_label("Your input")).to_be_visible()
    expect(screen.phase(page)).to_have_text("live")
    rate, already, begun = 16, server.frames_in, time.monotonic()
    wait_for_frames(page, server, already + rate)
    assert 1 / 1.2 <= time.monotonic() - begun < 2, "a second's worth of frames in about a second"
    assert [asked.input for asked in server.heard if isinstance(asked, Start)] == [False, True]


@pytest.mark.parametrize("kind", ["still.png", "film.mp4"])
def test_a_file_becomes_the_input(page: Page, server: FakeStream, tmp_path: Path, kind: str) -> None:
    path, frames_THW3 = tmp_path / kind, np.full((16, 48, 96, 3), 128, np.uint8)
    if kind == "still.png":
        path.write_bytes(png(frames_THW3[0]))
    else:
        with VideoWriter(path, fps=16) as film:
            film.write(frames_THW3)
    page.get_by_role("textbox", name="Prompt").fill("a kite")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("radio", name="File").check(force=True)
    chooser.value.set_files(path)
    screen.wait_until_moving(page)
    assert [asked.input for asked in server.heard if isinstance(asked, Start)] == [True]
    wait_for_frames(page, server, 2)


def test_a_file_that_is_no_picture_is_told_in_words(page: Page, tmp_path: Path) -> None:
    (tmp_path / "notes.mp4").write_text("not a video")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("radio", name="File").check(force=True)
    chooser.value.set_files(tmp_path / "notes.mp4")
    expect(page.get_by_role("alert")).to_contain_text("notes.mp4 is not a video or picture")
    expect(page.get_by_role("radio", name="Words")).to_be_checked()


def test_a_paused_stream_is_still_paused_after_a_lost_connection(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.get_by_role("button", name="Pause").click()
    expect(screen.phase(page)).to_have_text("paused")
    server.drop_connections()
    expect(screen.phase(page)).to_have_text("reconnecting")
    expect(screen.phase(page)).to_have_text("paused")
    page.get_by_role("button", name="Resume").click()
    screen.wait_until_moving(page)
    expect(screen.phase(page)).to_have_text("live")


def test_a_recording_is_offered_for_download(page: Page) -> None:
    screen.start(page, "a kite")
    page.get_by_role("button", name="Record").click()
    expect(page.locator("#recording-mark")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.path().read_bytes() == b"a recording"


def test_a_recording_that_a_lost_connection_ended_is_offered_too(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    page.get_by_role("button", name="Record").click()
    expect(page.locator("#recording-mark")).to_be_visible()
    server.drop_connections()
    expect(page.get_by_role("link", name="Download")).to_be_visible()
    expect(page.get_by_role("button", name="Record")).to_be_enabled()
    expect(page.locator("#recording-mark")).to_be_hidden()


def test_a_saved_stream_can_be_gone_on_from(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("status", name="News")).to_contain_text("Saved, 1.2 MB")
    page.get_by_role("button", name="Saved").click()
    page.get_by_role("button", name="Go on from a kite").click()
    expect(screen.phase(page)).to_have_text("live")
    screen.wait_until_moving(page)
    assert server.heard[-1].snapshot == "s0"


def test_a_view_link_shows_the_stream_and_steers_nothing(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    watcher = page.context.new_page()
    watcher.goto(f"{server.url}/?view=s0")
    expect(screen.phase(watcher)).to_have_text("watching")
    screen.wait_until_moving(watcher)
    expect(watcher.get_by_role("textbox")).to_have_count(0)
    expect(watcher.get_by_role("button", name="Record")).to_have_count(0)
    watcher.keyboard.press("c")
    watcher.keyboard.press("Space")
    screen.wait_until_moving(watcher)
    assert controls(server) == []


def test_a_view_link_to_nothing_says_so(page: Page, server: FakeStream) -> None:
    page.goto(f"{server.url}/?view=gone")
    expect(page.get_by_role("alert")).to_contain_text("That stream is not there any more.")


def test_video_is_played_when_asked_for_and_goes_on_after_a_lost_connection(page: Page, server: FakeStream) -> None:
    page.get_by_text("New stream", exact=True).click()
    page.get_by_label("Pictures").select_option("mp4")
    screen.start(page, "a kite")
    video = page.locator("#video")
    expect(video).to_be_visible()
    page.wait_for_function("document.getElementById('video').currentTime > 1")
    server.drop_connections()
    expect(screen.phase(page)).to_have_text("reconnecting")
    expect(screen.phase(page)).to_have_text("live")
    screen.start(page, "a comet")
    expect(page.get_by_role("status", name="Last change")).to_have_text(re.compile(r"applied at chunk \d+, on screen after"))


def test_the_strip_and_the_buffer_are_bounded(page: Page) -> None:
    figures = page.evaluate(
        """async () => {
            const { Timeline } = await import("./timeline.js");
            const make = (tag) => document.body.appendChild(document.createElement(tag));
            const [runs, pending, empty] = [make("ol"), make("ul"), make("p")];
            const strip = new Timeline({ runs, pending, empty });
            for (let index = 0; index < 500; index++) {
                const prompts = [{ text: `prompt ${index >> 5}`, weight: 1 }];
                strip.add({ index, epoch: 0, media_s: index, fps: 16, prompts, late_s: 0, total_ms: 1 }, []);
                strip.queue(`c${index}`, "cut", index);
            }
            const { Playout } = await import("./playout.js");
            let discarded = 0;
            const playout = new Playout({ capacity: 100, discard: () => discarded++ });
            for (let i = 0; i < 500; i++) playout.add({ at: i / 16, lasts: 1 / 16 });
            return [runs.querySelectorAll(".cell").length, runs.children.length, pending.children.length, discarded];
        }"""
    )
    assert figures == [120, 5, 16, 400]


def test_frames_are_due_by_media_time_and_a_dry_buffer_waits(page: Page) -> None:
    shown = page.evaluate(
        """async () => {
            const { Playout } = await import("./playout.js");
            const playout = new Playout({ maxAhead: 3 });
            const shown = [];
            const look = (now) => shown.push(playout.due(now)?.at ?? null);
            for (let i = 0; i < 4; i++) playout.add({ at: 10 + i * 0.25, lasts: 0.25 });
            look(0); look(0.1); look(0.2); look(0.9); look(2); look(3);
            playout.add({ at: 11, lasts: 0.25 });
            look(7); look(7.1);
            for (let i = 0; i < 40; i++) playout.add({ at: 11.25 + i * 0.25, lasts: 0.25 });
            look(7.2);
            return { shown, stalls: playout.stalls, ahead: playout.ahead(7.2) };
        }"""
    )
    assert shown["shown"] == [None, 10, None, 10.75, None, None, None, 11, 18.25]
    assert (shown["stalls"], shown["ahead"]) == (1, pytest.approx(3))


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


def test_the_page_asks_nobody_but_its_server(page: Page, server: FakeStream) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    assert asked
    assert all(url.startswith((server.url, "blob:", "data:")) for url in asked), asked


@pytest.mark.parametrize("path", sorted(WEB.glob("*.js")) + sorted(WEB.glob("*.css")), ids=lambda path: path.name)
def test_every_file_of_the_page_says_what_it_is(path: Path) -> None:
    assert path.read_text().startswith("/*"), f"{path.name} begins without a word about itself"


def luminance(colour: str) -> float:
    """As WCAG defines it, of #rgb or #rrggbb."""
    digits = colour.lstrip("#")
    digits = digits if len(digits) == 6 else "".join(digit * 2 for digit in digits)
    shares = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("ground", ["wall", "panel", "raised"])
@pytest.mark.parametrize("ink", ["ink", "soft", "faint", "accent", "good", "warn", "bad"])
def test_text_is_readable_in_both_themes(ink: str, ground: str) -> None:
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\)", (WEB / "theme.css").read_text())
    colours = {name: (light, dark) for name, light, dark in pairs}
    for one, other in zip(colours[ink], colours[ground], strict=True):
        darker, lighter = sorted((luminance(one), luminance(other)))
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, f"{one} on {other}"
