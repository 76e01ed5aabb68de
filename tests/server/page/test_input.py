"""A stream from a camera or a file, and the knobs beside it, in a real browser."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("playwright", reason="tests of the page need playwright: pip install 'millstream[dev]'")

from playwright.sync_api import Page, expect

from millstream.core.client_messages import Restore, Start
from millstream.core.controls import SetKVBias, SetNoiseScale, SetSeed, SetSteps, SetWindow
from millstream.video.picture import png
from millstream.video.writer import VideoWriter
from tests.server import browser as screen
from tests.server.fake_stream import FakeStream
from tests.server.page.heard import controls
from tests.server.serving import wait_until

pytestmark = screen.needs_chromium


def wait_for_frames(page: Page, server: FakeStream, count: int) -> None:
    """Until the camera or file has sent so many."""
    give_up = time.monotonic() + screen.PATIENCE_MS / 1000
    while server.frames_in < count:
        assert time.monotonic() < give_up, f"{server.frames_in} frames came, not {count}"
        page.wait_for_timeout(5)  # milliseconds in which the page goes on


def save_a_stream_of_words(page: Page) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("status", name="News")).to_contain_text("Saved")


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
    page.get_by_role("slider", name="Weight of the past").press("ArrowLeft")
    expect(page.get_by_role("status", name="Last change")).to_contain_text("Past 95% applied")
    sent = {type(control): control for control in controls(server)}
    assert sent[SetSeed].seed == 7  # type: ignore[attr-defined]
    assert sent[SetSteps].steps == pytest.approx((1000, 2000 / 3, 1000 / 3))  # type: ignore[attr-defined]
    assert (sent[SetWindow].window, sent[SetWindow].sink) == (12, 3)  # type: ignore[attr-defined]
    assert sent[SetNoiseScale].noise_scale == pytest.approx(0.75)  # type: ignore[attr-defined]
    assert sent[SetKVBias].kv_bias == pytest.approx(0.95)  # type: ignore[attr-defined]


def test_what_is_refused_stays_to_be_read_and_the_knob_goes_back(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    window = page.get_by_role("spinbutton", name="Window")
    before = window.input_value()
    status = page.get_by_role("status", name="Last change")
    screen.start(page, "a comet")
    window.fill("2")
    window.press("Enter")
    expect(status).to_contain_text("cannot hold a chunk")
    expect(window).to_have_value(before)
    page.wait_for_timeout(1500)  # by then the prompt is on the screen
    expect(status).to_contain_text("cannot hold a chunk")


def test_camera_frames_reach_the_server_at_the_streams_rate(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.get_by_role("radio", name="Camera").check(force=True)
    expect(page.get_by_label("Your input")).to_be_visible()
    expect(screen.phase(page)).to_have_text("live")
    rate = 16
    already = server.frames_in
    begun = time.monotonic()
    wait_for_frames(page, server, already + rate)
    assert 1 / 1.2 <= time.monotonic() - begun < 2, "a second's worth of frames in about a second"
    assert [asked.input for asked in server.heard if isinstance(asked, Start)] == [False, True]


HOLD_FRAMES = """() => {
    const encode = OffscreenCanvas.prototype.convertToBlob;
    const held = new Promise((resolve) => (window.letGo = resolve));
    OffscreenCanvas.prototype.convertToBlob = async function (how) {
        window.holds = true;
        await held;
        return encode.call(this, how);
    };
}"""


def test_a_frame_that_is_encoded_too_late_is_not_sent_to_the_next_stream(
    page: Page, server: FakeStream
) -> None:
    page.get_by_role("textbox", name="Prompt").fill("a kite")
    page.get_by_role("radio", name="Camera").check(force=True)
    wait_for_frames(page, server, 1)
    page.evaluate(HOLD_FRAMES)
    page.wait_for_function("() => window.holds")
    page.get_by_role("radio", name="Words").check(force=True)
    wait_until(lambda: len(server.sessions) == 2, "the next stream has begun")
    screen.wait_until_moving(page)
    already = server.frames_in
    page.evaluate("() => window.letGo()")
    page.wait_for_timeout(300)
    assert server.frames_in == already


COUNT_FRAMES = """() => {
    const encode = OffscreenCanvas.prototype.convertToBlob;
    window.encoded = 0;
    OffscreenCanvas.prototype.convertToBlob = function (how) {
        window.encoded++;
        return encode.call(this, how);
    };
}"""


def test_no_frame_is_made_for_a_stream_that_has_ended_or_takes_none(page: Page, server: FakeStream) -> None:
    save_a_stream_of_words(page)
    page.get_by_role("radio", name="Camera").check(force=True)
    wait_for_frames(page, server, 1)
    page.evaluate(COUNT_FRAMES)
    page.get_by_role("button", name="Saved").click()
    page.get_by_role("button", name="Go on from a kite").click()
    wait_until(lambda: isinstance(server.heard[-1], Restore), "the page asks for the one of words")
    screen.wait_until_moving(page)
    begun = page.evaluate("() => window.encoded")
    already = server.frames_in
    page.wait_for_timeout(300)
    assert page.evaluate("() => window.encoded") == begun
    page.get_by_role("radio", name="Words").check(force=True)
    page.get_by_role("radio", name="Camera").check(force=True)
    wait_for_frames(page, server, already + 1)
    page.get_by_role("button", name="End stream").click()
    expect(screen.phase(page)).to_have_text("ended")
    ended = page.evaluate("() => window.encoded")
    page.wait_for_timeout(300)
    assert page.evaluate("() => window.encoded") == ended


def test_a_camera_that_is_still_asked_for_sends_nothing_when_the_rate_changes(
    page: Page, server: FakeStream
) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.evaluate("() => { navigator.mediaDevices.getUserMedia = () => new Promise(() => {}) }")
    page.get_by_role("radio", name="Camera").check(force=True)
    server.change_rate(server.sessions["s0"], 8.0, "slower")
    expect(page.get_by_role("status", name="How the stream is paced")).to_have_text("Slower.")
    page.wait_for_timeout(500)
    assert server.frames_in == 0


def test_a_video_of_the_servers_is_asked_for_by_name_and_no_frame_is_sent(
    page: Page, server: FakeStream
) -> None:
    page.get_by_role("textbox", name="Prompt").fill("a kite")
    page.get_by_role("radio", name="sea").check(force=True)
    screen.wait_until_moving(page)
    expect(page.get_by_role("slider", name="Noise")).to_be_enabled()
    page.get_by_role("radio", name="Words").check(force=True)
    wait_until(
        lambda: sum(isinstance(asked, Start) for asked in server.heard) == 2, "the page has asked again"
    )
    assert [(asked.input, asked.source) for asked in server.heard if isinstance(asked, Start)] == [
        (False, "sea"),
        (False, ""),
    ]
    assert server.frames_in == 0


def test_a_stream_of_a_camera_goes_on_after_a_reload_once_the_camera_is_chosen_again(
    page: Page, server: FakeStream
) -> None:
    page.get_by_role("textbox", name="Prompt").fill("a kite")
    page.get_by_role("radio", name="Camera").check(force=True)
    wait_for_frames(page, server, 1)
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("choose one, and it goes on")
    already = server.frames_in
    page.get_by_role("button", name="Use the camera").click()
    wait_for_frames(page, server, already + 3)
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.get_by_role("radio", name="Camera")).to_be_checked()
    assert len(server.sessions) == 1


def test_a_video_of_the_servers_is_still_the_source_after_a_reload(page: Page, server: FakeStream) -> None:
    page.get_by_role("textbox", name="Prompt").fill("a kite")
    page.get_by_role("radio", name="sea").check(force=True)
    screen.wait_until_moving(page)
    page.reload()
    expect(page.get_by_role("radio", name="sea")).to_be_checked()
    page.get_by_text("New stream", exact=True).click()
    page.get_by_role("button", name="Start over").click()
    wait_until(lambda: len(server.sessions) == 2, "another stream has begun")
    assert [asked.source for asked in server.heard if isinstance(asked, Start)] == ["sea", "sea"]


def test_who_comes_to_a_stream_of_words_is_not_left_with_the_video_of_the_stream_before(
    page: Page, server: FakeStream
) -> None:
    save_a_stream_of_words(page)
    page.get_by_role("radio", name="sea").check(force=True)
    wait_until(lambda: len(server.sessions) == 2, "the page asks for the video")
    screen.wait_until_moving(page)
    page.get_by_role("button", name="Saved").click()
    page.get_by_role("button", name="Go on from a kite").click()
    expect(page.get_by_role("radio", name="Words")).to_be_checked()


@pytest.mark.parametrize("kind", ["still.png", "film.mp4"])
def test_a_file_becomes_the_input(page: Page, server: FakeStream, tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    frames_THW3 = np.full((16, 48, 96, 3), 128, np.uint8)
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


def test_the_same_file_can_be_chosen_again(page: Page, server: FakeStream, tmp_path: Path) -> None:
    path = tmp_path / "still.png"
    path.write_bytes(png(np.full((48, 96, 3), 128, np.uint8)))
    page.get_by_role("textbox", name="Prompt").fill("a kite")
    for number in (1, 2):
        with page.expect_file_chooser() as chooser:
            page.get_by_role("radio", name="File").check(force=True)
        chooser.value.set_files(path)
        wait_until(lambda number=number: len(server.sessions) == 2 * number - 1, "it has begun")  # type: ignore[misc]
        page.get_by_role("radio", name="Words").check(force=True)
        wait_until(lambda number=number: len(server.sessions) == 2 * number, "words again")  # type: ignore[misc]


def test_another_file_can_be_chosen(page: Page, server: FakeStream, tmp_path: Path) -> None:
    page.get_by_role("textbox", name="Prompt").fill("a kite")
    for number, shade in enumerate((90, 180)):
        path = tmp_path / f"{number}.png"
        path.write_bytes(png(np.full((48, 96, 3), shade, np.uint8)))
        with page.expect_file_chooser() as chooser:
            page.get_by_role("radio", name="File").click(force=True)
        chooser.value.set_files(path)
        wait_until(lambda number=number: len(server.sessions) == number + 1, "it has begun")  # type: ignore[misc]
        already = server.frames_in
        wait_for_frames(page, server, already + 1)


def test_a_file_after_the_camera_is_asked_for_once(page: Page) -> None:
    page.get_by_role("radio", name="Camera").check(force=True)
    expect(page.get_by_label("Your input")).to_be_visible()
    asked: list[object] = []
    page.on("filechooser", lambda chooser: asked.append(chooser))
    with page.expect_file_chooser():
        page.get_by_role("radio", name="File").check(force=True)
    page.wait_for_timeout(300)  # a second chooser would open in the same moment
    assert len(asked) == 1


def test_a_camera_that_opens_too_late_takes_nothing_from_the_choice_after_it(page: Page) -> None:
    page.evaluate(
        """() => {
          const late = (error) => new Promise((_, reject) => setTimeout(() => { window.failed = true; reject(error) }, 200));
          HTMLVideoElement.prototype.play = () => late(new DOMException("it was closed", "AbortError"));
        }"""
    )
    page.get_by_role("radio", name="Camera").check(force=True)
    with page.expect_file_chooser():
        page.get_by_role("radio", name="File").check(force=True)
    page.wait_for_function("() => window.failed")
    page.wait_for_timeout(50)  # the page learns of it
    expect(page.get_by_role("radio", name="File")).to_be_checked()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_camera_that_is_given_too_late_is_put_out_again(page: Page) -> None:
    page.evaluate(
        """() => {
          const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
          navigator.mediaDevices.getUserMedia = async (what) => {
            const stream = await ask(what);
            await new Promise((given) => { window.give = given });
            window.given = stream;
            return stream;
          };
        }"""
    )
    page.get_by_role("radio", name="Camera").check(force=True)
    page.wait_for_function("() => window.give")
    page.get_by_role("radio", name="Words").check(force=True)
    page.evaluate("() => window.give()")
    page.wait_for_function("() => window.given?.getTracks().every((track) => track.readyState === 'ended')")
    expect(page.get_by_role("radio", name="Words")).to_be_checked()


def test_what_the_camera_sees_is_shown_without_scrolling(page: Page) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.get_by_role("radio", name="Camera").check(force=True)
    expect(page.get_by_label("Your input")).to_be_in_viewport(ratio=1)
