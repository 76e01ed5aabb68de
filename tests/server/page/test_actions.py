"""Keys, mouse look and pictures to begin from, in a real browser."""

from __future__ import annotations

import base64
import io
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("playwright", reason="tests of the page need playwright: pip install 'millstream[dev]'")

from PIL import Image
from playwright.sync_api import Page, expect

from millstream.core.client_messages import Save, Start
from millstream.core.controls import SetActions, SetImage
from millstream.core.server_messages import Takes
from millstream.video.picture import png
from tests.server import browser as screen
from tests.server.fake_stream import FakeStream
from tests.server.page.heard import controls
from tests.server.serving import wait_until

pytestmark = screen.needs_chromium

WORLD = Takes(image=True, keys=("w", "a", "s", "d", "up", "down", "left", "right", "space"), look=True)
DROP = """([words, kind]) => {
    const bytes = Uint8Array.from(atob(words), (letter) => letter.charCodeAt(0));
    const data = new DataTransfer();
    data.items.add(new File([bytes], "a picture", { type: kind }));
    const [target, event] = window.dropsOn;
    document.querySelector(target).dispatchEvent(new (event === "paste" ? ClipboardEvent : DragEvent)(event, {
        dataTransfer: data, clipboardData: data, bubbles: true, cancelable: true,
    }));
}"""


def begin(page: Page, server: FakeStream, takes: Takes = WORLD) -> None:
    """A stream of such a model, with the focus on no field."""
    server.takes = takes
    page.reload()
    expect(screen.phase(page)).to_have_text("ready")
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.keyboard.press("Escape")


def held(server: FakeStream) -> tuple[str, ...] | None:
    """Keys as the page has said last; None: nothing yet."""
    said = [control for control in controls(server) if isinstance(control, SetActions)]
    return said[-1].keys if said else None


def until_held(page: Page, server: FakeStream, *keys: str) -> None:
    give_up = time.monotonic() + screen.PATIENCE_MS / 1000
    while held(server) != keys:
        assert time.monotonic() < give_up, f"{held(server)} are held, not {keys}"
        page.wait_for_timeout(5)  # milliseconds in which the page goes on


def photo(width: int = 400, height: int = 100) -> bytes:
    return png(np.full((height, width, 3), (10, 120, 200), np.uint8))


def drop(page: Page, data: bytes, kind: str = "image/png", on: str = "#stage", event: str = "drop") -> None:
    page.evaluate("(where) => (window.dropsOn = where)", [on, event])
    page.evaluate(DROP, [base64.b64encode(data).decode(), kind])


def test_keys_that_are_held_are_sent_and_light_up(page: Page, server: FakeStream) -> None:
    begin(page, server)
    page.keyboard.down("w")
    until_held(page, server, "w")
    expect(page.get_by_role("button", name="Key W")).to_have_attribute("aria-pressed", "true")
    page.keyboard.down("ArrowLeft")
    until_held(page, server, "left", "w")
    page.keyboard.up("w")
    until_held(page, server, "left")
    page.keyboard.up("ArrowLeft")
    until_held(page, server)
    expect(page.get_by_role("button", name="Key W")).to_have_attribute("aria-pressed", "false")
    assert all(control.id == "actions" for control in controls(server) if isinstance(control, SetActions))
    page.get_by_text("How it runs", exact=True).click()
    expect(page.locator("#meter-key")).to_contain_text(" s")
    expect(page.locator("#pending")).to_be_empty()
    expect(page.locator("#runs")).not_to_contain_text("change")


def test_a_press_shorter_than_a_message_is_not_lost(page: Page, server: FakeStream) -> None:
    begin(page, server)
    page.evaluate(
        """() => {
            for (const [type, code] of [["keydown", "KeyW"], ["keydown", "KeyD"], ["keyup", "KeyD"], ["keyup", "KeyW"]])
                document.body.dispatchEvent(new KeyboardEvent(type, { code, bubbles: true }));
        }"""
    )
    until_held(page, server)
    first, second = (control for control in controls(server) if isinstance(control, SetActions))
    assert (first.keys, second.keys, second.tapped) == (("w",), (), ("d",))


@pytest.mark.parametrize("way", ["blur", "prompt", "dialog", "pause"])
def test_keys_are_let_go_when_the_page_no_longer_has_them(page: Page, server: FakeStream, way: str) -> None:
    begin(page, server)
    page.keyboard.down("w")
    until_held(page, server, "w")
    if way == "blur":
        page.evaluate("() => dispatchEvent(new Event('blur'))")
    elif way == "prompt":
        page.get_by_role("textbox", name="Prompt").focus()
    elif way == "dialog":
        page.get_by_role("button", name="Keyboard shortcuts").click()
    else:  # the server lets go of them
        page.get_by_role("button", name="Pause").click()
        expect(screen.phase(page)).to_have_text("paused")
        expect(page.get_by_role("group", name="Keys that steer")).to_be_hidden()
        return
    until_held(page, server)


def test_letters_that_are_typed_steer_nothing_and_what_steers_is_no_shortcut(
    page: Page, server: FakeStream
) -> None:
    begin(page, server)
    page.keyboard.press("s")
    wait_until(lambda: held(server) == (), "it was pressed and let go")
    said = len(controls(server))
    page.get_by_role("textbox", name="Prompt").fill("")
    page.keyboard.type("wasd ")
    expect(page.get_by_role("textbox", name="Prompt")).to_have_value("wasd ")
    page.get_by_role("slider", name="Steps").focus()
    page.keyboard.press("ArrowLeft")
    wait_until(lambda: len(controls(server)) > said, "the slider has moved")
    assert [type(control) for control in controls(server)[said:]].count(SetActions) == 0
    assert not [asked for asked in server.heard if isinstance(asked, Save)], "S saves nothing here"


def test_keys_on_the_screen_work_by_finger_and_by_keyboard(page: Page, server: FakeStream) -> None:
    begin(page, server)
    button = page.get_by_role("button", name="Arrow up")
    box = button.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    until_held(page, server, "up")
    page.mouse.move(0, 0)
    assert held(server) == ("up",), "a finger that slips holds on"
    page.mouse.up()
    until_held(page, server)
    page.get_by_role("button", name="Key A").focus()
    page.keyboard.press("Enter")
    wait_until(
        lambda: any("a" in (*c.keys, *c.tapped) for c in controls(server) if isinstance(c, SetActions)),
        "it was pressed, or tapped where both ends went out together",
    )


def test_a_captured_mouse_turns_the_view(page: Page, server: FakeStream) -> None:
    begin(page, server)
    page.evaluate(
        """() => {
            const frame = document.getElementById("frame");
            const captured = { value: frame, configurable: true };
            frame.requestPointerLock = () => Object.defineProperty(document, "pointerLockElement", captured);
        }"""
    )  # a browser without a window captures no mouse
    page.locator("#frame").click(position={"x": 20, "y": 100})
    page.evaluate(
        "() => document.dispatchEvent(new MouseEvent('mousemove', { movementX: 100, movementY: -20 }))"
    )
    wait_until(
        lambda: any(c.look != (0, 0) for c in controls(server) if isinstance(c, SetActions)), "the view turns"
    )
    turned = [control.look for control in controls(server) if isinstance(control, SetActions)]
    assert (sum(look[0] for look in turned), sum(look[1] for look in turned)) == pytest.approx((15, -3))


def test_a_model_without_keys_shows_nothing_of_them(page: Page, server: FakeStream) -> None:
    begin(page, server, Takes(image=True))
    expect(page.get_by_role("group", name="Keys that steer")).to_be_hidden()
    page.keyboard.press("w")
    page.get_by_text("How it runs", exact=True).click()
    expect(page.locator("#meter-key")).to_be_hidden()
    assert held(server) is None


def test_one_who_only_watches_has_no_keys_and_no_pictures(page: Page, server: FakeStream) -> None:
    begin(page, server)
    page.goto(f"{server.url}/?view=s0")
    screen.wait_until_moving(page)
    page.keyboard.press("w")
    expect(page.get_by_role("group", name="Keys that steer")).to_be_hidden()
    expect(page.get_by_role("button", name="Begin from a picture")).to_be_hidden()
    assert held(server) is None


@pytest.mark.parametrize("way", ["file", "drop", "paste"])
def test_a_stream_begins_from_a_picture(page: Page, server: FakeStream, tmp_path: Path, way: str) -> None:
    large = photo(3000, 1000)
    if way == "file":
        (tmp_path / "photo.png").write_bytes(large)
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Begin from a picture").click()
        chooser.value.set_files(tmp_path / "photo.png")
    elif way == "drop":
        drop(page, large)
    else:
        drop(page, large, on="#prompt", event="paste")
    expect(page.get_by_role("group", name="Your picture")).to_be_visible()
    page.get_by_role("checkbox", name="With borders").check()
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    (started,) = [asked for asked in server.heard if isinstance(asked, Start)]
    assert started.fit == "pad"
    with Image.open(io.BytesIO(started.image)) as sent:
        assert (sent.format, sent.size) == ("JPEG", (1280, 427))
    expect(page.get_by_role("group", name="Your picture")).to_be_hidden()


@pytest.mark.parametrize(("button", "mode"), [("Cut to it", "cut"), ("Blend to it", "blend")])
def test_a_running_stream_goes_on_from_a_picture(
    page: Page, server: FakeStream, button: str, mode: str
) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    drop(page, photo())
    page.get_by_role("button", name=button).click()
    expect(page.get_by_role("status", name="Last change")).to_contain_text("our picture applied")
    (control,) = [control for control in controls(server) if isinstance(control, SetImage)]
    assert (control.mode, control.fit) == (mode, "crop")
    with Image.open(io.BytesIO(control.image)) as sent:
        assert sent.size == (400, 100)
    expect(page.get_by_role("group", name="Your picture")).to_be_hidden()


@pytest.mark.parametrize("button", ["This frame", "Camera still"])
def test_a_picture_is_taken_from_the_stream_or_the_camera_and_can_be_removed(
    page: Page, server: FakeStream, button: str
) -> None:
    expect(page.get_by_role("button", name="This frame")).to_be_disabled()
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.get_by_role("button", name=button).click()
    expect(page.get_by_role("group", name="Your picture")).to_be_visible()
    page.get_by_role("button", name="Remove your picture").click()
    expect(page.get_by_role("group", name="Your picture")).to_be_hidden()
    assert [control for control in controls(server) if isinstance(control, SetImage)] == []


def test_a_file_that_is_no_picture_is_said_in_words_and_an_older_server_is_asked_for_none(
    page: Page, server: FakeStream
) -> None:
    drop(page, b"words", kind="image/png")
    expect(page.get_by_role("status", name="News")).to_contain_text(
        "not a picture that this browser can read"
    )
    server.takes = Takes()
    page.reload()
    expect(screen.phase(page)).to_have_text("ready")
    expect(page.get_by_role("button", name="Begin from a picture")).to_be_hidden()
    drop(page, photo())
    expect(page.get_by_role("group", name="Your picture")).to_be_hidden()


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_keys_and_a_picture_fit_on_the_screen(
    page: Page, server: FakeStream, width: int, height: int
) -> None:
    page.set_viewport_size({"width": width, "height": height})
    begin(page, server)
    before = page.locator("#frame").bounding_box()
    drop(page, photo())
    expect(page.get_by_role("button", name="Blend to it")).to_be_visible()
    after = page.locator("#frame").bounding_box()
    assert before == after, "the picture keeps its size and its place"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    frame = page.locator("#frame")
    for button in page.get_by_role("group", name="Keys that steer").get_by_role("button").all():
        inner = button.bounding_box()
        outer = frame.bounding_box()
        assert inner is not None
        assert outer is not None
        assert outer["x"] <= inner["x"]
        assert inner["x"] + inner["width"] <= outer["x"] + outer["width"]
        assert inner["y"] + inner["height"] <= outer["y"] + outer["height"]


def test_a_picture_and_what_words_are_read_as_have_room_beside_each_other(
    page: Page, server: FakeStream
) -> None:
    begin(page, server)
    heights = page.evaluate(
        """() => {
            const lines = {
                understood: "Understood: vessels → boat, stormy → rainy",
                unknown: "Not understood: “two”",
            };
            document.querySelector(".said .status").textContent = "Prompt applied at chunk 12";
            for (const [id, text] of Object.entries(lines)) {
                const line = document.getElementById(id);
                line.textContent = text;
                line.hidden = false;
            }
            document.getElementById("given").hidden = false;
            for (const button of document.querySelectorAll("#given button")) button.hidden = false;
            return ["understood", "unknown"].map((id) => document.getElementById(id).offsetHeight);
        }"""
    )
    assert max(heights) <= 60, f"lines of words are {heights} pixels high: letters stand below each other"
