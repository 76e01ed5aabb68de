"""What people see while they steer a stream in a real browser."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright", reason="tests of the page need playwright: pip install 'millstream[dev]'")

import re

from playwright.sync_api import Page, WebSocketRoute, expect

from millstream.core.client_messages import Start
from millstream.core.controls import Cut, SetPrompt
from tests.server import browser as screen
from tests.server.fake_stream import EXAMPLES, FakeStream
from tests.server.page.heard import controls

pytestmark = screen.needs_chromium


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


def test_an_empty_box_starts_the_first_example_and_shows_it(page: Page, server: FakeStream) -> None:
    page.get_by_role("button", name="Start", exact=True).click()
    expect(screen.phase(page)).to_have_text("live")
    expect(page.get_by_role("textbox", name="Prompt")).to_have_value(EXAMPLES[0])
    expect(page.get_by_role("img", name=f"The stream: {EXAMPLES[0]}")).to_be_visible()


def test_who_starts_before_the_greeting_gets_what_the_server_starts_with(
    page: Page, server: FakeStream
) -> None:
    greetings: list[tuple[WebSocketRoute, str | bytes]] = []

    def hold_the_first(line: WebSocketRoute) -> None:
        above = line.connect_to_server()
        above.on_message(
            lambda message: line.send(message) if greetings else greetings.append((line, message))
        )

    page.route_web_socket(re.compile(r"/v1/stream"), hold_the_first)
    page.reload()
    screen.start(page, "a kite")
    while not greetings:
        page.wait_for_timeout(20)
    ((line, greeting),) = greetings
    line.send(greeting)
    expect(screen.phase(page)).to_have_text("live")
    (asked,) = server.heard
    assert isinstance(asked, Start)
    assert (asked.size, asked.steps, asked.window) == (None, None, None)


def test_starting_over_before_anything_was_said_starts_the_first_example(page: Page) -> None:
    page.get_by_text("New stream", exact=True).click()
    page.get_by_role("button", name="Start over").click()
    expect(page.get_by_role("img", name=f"The stream: {EXAMPLES[0]}")).to_be_visible()


def test_an_empty_box_changes_no_stream_that_runs(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    expect(screen.phase(page)).to_have_text("live")
    screen.start(page, " ")
    expect(page.get_by_role("status", name="Last change")).to_have_text("Say what the stream should show.")
    assert controls(server) == []


def test_words_are_asked_for_where_there_are_no_examples(page: Page, server: FakeStream) -> None:
    server.examples = ()
    page.reload()
    expect(screen.phase(page)).to_have_text("ready")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("status", name="Last change")).to_have_text("Say what the stream should show.")
    assert server.heard == []


def test_until_the_first_picture_the_page_says_that_it_comes(page: Page, server: FakeStream) -> None:
    server.is_slow = True
    screen.start(page, "a kite")
    expect(screen.phase(page)).to_have_text("live")
    expect(page.get_by_text("It begins in a moment.")).to_be_visible()
    server.is_slow = False
    screen.wait_until_moving(page)
    expect(page.get_by_text("It begins in a moment.")).to_be_hidden()


def test_a_change_of_a_paused_stream_is_said_to_wait(page: Page) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.get_by_role("button", name="Pause").click()
    expect(screen.phase(page)).to_have_text("paused")
    screen.start(page, "a comet")
    expect(page.get_by_role("status", name="Last change")).to_have_text("Prompt shows once you resume")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("status", name="Last change")).to_contain_text("Prompt applied")


def test_a_pause_that_is_over_is_marked_by_its_name(page: Page) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").click()
    expect(
        page.get_by_role("listitem", name=re.compile(r"Chunk \d+ .*resume applied", re.IGNORECASE))
    ).to_be_visible()
    expect(page.get_by_role("listitem", name=re.compile("change applied", re.IGNORECASE))).to_have_count(0)


EVERY_STATUS = """() => {
    const status = document.querySelector("#prompt-status");
    window.said = [];
    const watched = {childList: true, characterData: true, subtree: true};
    new MutationObserver(() => said.push(status.textContent)).observe(status, watched);
}"""


def test_a_prompt_is_shown_queued_then_applied_then_seen(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    before = screen.mean_colour(page)
    page.evaluate(EVERY_STATUS)  # one may stand there for less time than it takes to look
    screen.start(page, "a comet")
    status = page.get_by_role("status", name="Last change")
    expect(status).to_have_text(re.compile(r"Prompt applied at chunk \d+, on screen after [\d.]+ s"))
    assert any(re.match(r"Prompt queued for chunk \d+", said) for said in page.evaluate("said"))
    after = screen.mean_colour(page)
    assert max(abs(a - b) for a, b in zip(before, after, strict=True)) > 8, f"{before} → {after}"
    chunk = re.findall(r"chunk (\d+)", status.inner_text())[0]
    expect(
        page.get_by_role("listitem", name=re.compile(rf"Chunk {chunk} .*Prompt applied at chunk {chunk}"))
    ).to_be_visible()
    expect(page.locator("#meter-latency")).to_have_text(re.compile(r"[\d.]+ s"))


def test_figures_and_where_the_time_goes_are_told(page: Page) -> None:
    page.get_by_text("How it runs", exact=True).click()
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
    assert [(each.mode, each.chunks) for each in controls(server) if isinstance(each, SetPrompt)] == [
        ("blend", 7)
    ]


def test_words_that_are_not_understood_are_named(page: Page) -> None:
    screen.start(page, "a blorp at sea")
    expect(page.get_by_role("status", name="Words not understood")).to_have_text("Not understood: “blorp”")
    screen.start(page, "a boat at sea")
    expect(page.get_by_role("status", name="Words not understood")).to_be_hidden()


def test_words_that_are_read_as_others_are_named_with_those(page: Page) -> None:
    screen.start(page, "a vessel and gulls at sea")
    said = page.get_by_role("status", name="Words understood as others")
    expect(said).to_have_text("Understood: vessel → boat, gulls → bird")
    expect(page.get_by_role("status", name="Words not understood")).to_be_hidden()
    screen.start(page, "a boat at sea")
    expect(said).to_be_hidden()


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
    assert controls(server)[-1] == SetPrompt(
        id=controls(server)[-1].id, prompt="a comet", mode="blend", chunks=4
    )  # type: ignore[attr-defined]
    keyboard.press("Escape")
    keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()


def test_the_strip_is_one_stop_for_tab_and_walked_by_arrow_keys(page: Page) -> None:
    screen.start(page, "a kite")
    page.wait_for_function("() => document.querySelectorAll('.cell').length > 3")
    page.get_by_role("button", name="End stream").focus()
    page.keyboard.press("Tab")
    expect(page.get_by_role("list", name="Chunks, oldest first")).to_be_focused()
    page.keyboard.press("ArrowLeft")
    newest = int(re.findall(r"\d+", page.locator(".from:focus").get_attribute("title") or "")[0])
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("button", name=f"Look at chunk {newest - 1}")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator(".from:focus")).to_have_count(0)


def test_earlier_prompts_come_back_with_the_arrow_keys(page: Page) -> None:
    prompt = page.get_by_role("textbox", name="Prompt")
    for text in ("a kite", "a comet"):
        screen.start(page, text)
        expect(screen.phase(page)).to_have_text("live")
    prompt.fill("a draft")
    for key, text in [
        ("ArrowUp", "a comet"),
        ("ArrowUp", "a kite"),
        ("ArrowUp", "a kite"),
        ("ArrowDown", "a comet"),
    ]:
        prompt.press(key)
        expect(prompt).to_have_value(text)
    prompt.press("ArrowDown")
    expect(prompt).to_have_value("a draft")
