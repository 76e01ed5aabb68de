"""Connections that break, pages that reload, lines to wait in and links to watch by, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="tests of the page need playwright: pip install 'millstream[dev]'")

from playwright.sync_api import Browser, Page, expect

from millstream.core.client_messages import Attach, Start, View
from tests.server import browser as screen
from tests.server.fake_stream import FakeStream
from tests.server.page.heard import controls
from tests.server.serving import serving, wait_until

pytestmark = screen.needs_chromium


def watched(page: Page, server: FakeStream) -> Page:
    """Another page, which watches what this one has begun."""
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    watcher = page.context.new_page()
    watcher.goto(f"{server.url}/?view=s0")
    expect(screen.phase(watcher)).to_have_text("watching")
    return watcher


def chunks_on_strip(page: Page) -> list[int]:
    labels = page.get_by_role("region", name="Timeline").locator(".cell > span:first-of-type")
    return [int(text) for text in labels.all_inner_texts()]


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


def test_an_older_server_is_asked_again_without_what_it_does_not_know(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    server.is_older = True
    server.drop_connections()
    expect(screen.phase(page)).to_have_text("reconnecting")
    expect(screen.phase(page)).to_have_text("live")
    screen.wait_until_moving(page)
    expect(page.get_by_role("alert")).to_be_hidden()
    assert len(server.sessions) == 1


def test_a_stream_that_a_new_server_has_kept_is_shown_from_where_it_was_kept(
    page: Page, server: FakeStream
) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    (session,) = server.sessions.values()
    wait_until(lambda: session.index > 3, "a few chunks came")
    server.drop_connections()
    session.index = 2
    session.media_s = 0.0
    expect(screen.phase(page)).to_have_text("reconnecting")
    expect(screen.phase(page)).to_have_text("live")
    screen.wait_until_moving(page)
    chunks = chunks_on_strip(page)
    assert chunks == list(range(len(chunks))), (
        "what comes again is shown again, once, after what came before it"
    )


def test_a_stream_that_a_stopping_server_keeps_has_not_ended_and_goes_on_with_the_next(
    page: Page, server: FakeStream
) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    server.stop_and_keep()
    expect(screen.phase(page)).to_have_text("reconnecting")
    expect(screen.phase(page)).to_have_text("live")
    screen.wait_until_moving(page)
    assert len(server.sessions) == 1
    assert any(isinstance(asked, Attach) for asked in server.heard)


def test_a_reload_comes_back_to_the_same_session(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.reload()
    expect(screen.phase(page)).to_have_text("live")
    screen.wait_until_moving(page)
    expect(page.get_by_role("textbox", name="Prompt")).to_have_value("a kite")
    assert len(server.sessions) == 1


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


def test_a_paused_stream_is_still_paused_after_a_reload_and_shows_where_it_is(
    page: Page, server: FakeStream
) -> None:
    screen.start(page, "a kite")
    screen.wait_until_moving(page)
    page.get_by_role("button", name="Pause").click()
    expect(screen.phase(page)).to_have_text("paused")
    page.reload()
    expect(page.get_by_role("img", name="The stream: a kite")).to_be_visible()
    expect(screen.phase(page)).to_have_text("paused")
    page.keyboard.press("Space")
    screen.wait_until_moving(page)
    expect(screen.phase(page)).to_have_text("live")


def test_video_is_played_when_asked_for_and_goes_on_after_a_lost_connection(
    page: Page, server: FakeStream
) -> None:
    page.get_by_text("New stream", exact=True).click()
    page.get_by_label("Pictures").select_option("mp4")
    screen.start(page, "a kite")
    video = page.locator("#video")
    expect(video).to_be_visible()
    page.wait_for_function("() => document.getElementById('video').currentTime > 1")
    server.drop_connections()
    expect(screen.phase(page)).to_have_text("reconnecting")
    expect(screen.phase(page)).to_have_text("live")
    screen.start(page, "a comet")
    expect(page.get_by_role("status", name="Last change")).to_have_text(
        re.compile(r"applied at chunk \d+, on screen after")
    )


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
    expect(page.get_by_role("alert")).to_contain_text(
        "You are number 2 in line, about 30 s. Every place is taken."
    )
    expect(screen.phase(page)).to_have_text("in line")
    screen.start(page, "a comet")
    expect(page.get_by_role("status", name="Last change")).to_contain_text("Still in line")
    server.admission = "admit"
    expect(screen.phase(page)).to_have_text("live")
    expect(page.get_by_role("alert")).to_be_hidden()
    assert len([asked for asked in server.heard if isinstance(asked, Start)]) == 1


def test_a_view_link_shows_the_stream_and_steers_nothing(page: Page, server: FakeStream) -> None:
    watcher = watched(page, server)
    screen.wait_until_moving(watcher)
    expect(watcher.get_by_role("textbox")).to_have_count(0)
    expect(watcher.get_by_role("button", name="Record")).to_have_count(0)
    watcher.keyboard.press("c")
    watcher.keyboard.press("Space")
    screen.wait_until_moving(watcher)
    assert controls(server) == []


def test_who_watches_is_told_of_a_pause_and_of_its_end(page: Page, server: FakeStream) -> None:
    watcher = watched(page, server)
    page.get_by_role("button", name="Pause").click()
    expect(screen.phase(watcher)).to_have_text("paused")
    expect(watcher.get_by_role("alert")).to_contain_text("It goes on here when they resume.")
    expect(page.get_by_role("alert")).to_be_hidden()
    page.get_by_role("button", name="Resume").click()
    expect(screen.phase(watcher)).to_have_text("watching")
    expect(watcher.get_by_role("alert")).to_be_hidden()
    screen.wait_until_moving(watcher)


def test_who_watches_comes_back_to_a_stream_whose_owner_comes_back_later(
    page: Page, server: FakeStream
) -> None:
    watcher = watched(page, server)
    session = server.sessions.pop("s0")
    server.drop_connections()
    wait_until(
        lambda: sum(isinstance(asked, View) for asked in server.heard) > 2, "the watcher asks and asks again"
    )
    server.sessions["s0"] = session
    expect(screen.phase(watcher)).to_have_text("watching")
    screen.wait_until_moving(watcher)


def test_a_view_link_to_nothing_says_so(page: Page, server: FakeStream) -> None:
    page.goto(f"{server.url}/?view=gone")
    expect(page.get_by_role("alert")).to_contain_text("That stream is not there any more.")
    expect(screen.phase(page)).to_have_text("gone")


def test_a_size_that_is_none_is_not_called_a_lack_of_room(page: Page, server: FakeStream) -> None:
    screen.start(page, "a kite")
    expect(screen.phase(page)).to_have_text("live")
    server.change_rate(server.sessions["s0"], 8.0, "slower")
    expect(page.get_by_role("status", name="How the stream is paced")).to_be_visible()
    server.admission = "reject"
    page.get_by_text("New stream", exact=True).click()
    page.get_by_role("button", name="Start over").click()
    expect(page.get_by_role("alert")).to_contain_text("Size must be HEIGHTxWIDTH")
    expect(screen.phase(page)).to_have_text("not started")
    expect(page.get_by_role("status", name="How the stream is paced")).to_be_hidden()


def test_a_line_that_is_let_go_before_it_is_open_closes_without_a_complaint(
    page: Page, server: FakeStream
) -> None:
    """The fixture fails the test for whatever the browser has to complain about."""
    closed = page.evaluate(
        """async () => {
            const { Connection } = await import("./connection.js");
            const sockets = [], Plain = window.WebSocket;
            window.WebSocket = class extends Plain {
              constructor(...given) { super(...given); sockets.push(this); }
            };
            const line = new Connection(location.origin.replace("http", "ws") + "/v1/stream");
            line.connect();
            line.close();
            window.WebSocket = Plain;
            return new Promise((resolve) => sockets[0].addEventListener("close", () => resolve(sockets.length)));
        }"""
    )
    assert closed == 1


@pytest.mark.slow
def test_a_reload_in_line_keeps_the_place_and_the_prompt(chrome: Browser, tmp_path: Path) -> None:
    with (
        serving(tmp_path, places=1, max_waiting=2) as real,
        real.client() as owner,
        real.client() as behind,
        screen.greeted(chrome, real.url()) as page,
    ):
        owner.start()
        screen.start(page, "a kite")
        expect(page.get_by_role("alert")).to_contain_text("You are next in line")
        behind.say({"type": "start", "version": 1, "prompt": "a comet", "wait": True})
        assert behind.hear("waiting")["position"] == 2
        page.reload()
        expect(page.get_by_role("alert")).to_contain_text("You are next in line")
        expect(page.get_by_role("textbox", name="Prompt")).to_have_value("a kite")
        owner.say({"type": "stop"})
        expect(screen.phase(page)).to_have_text("live")
        expect(page.get_by_role("img", name="The stream: a kite")).to_be_visible()


def test_who_was_away_for_longer_than_a_place_is_kept_lines_up_again(page: Page, server: FakeStream) -> None:
    server.admission = "wait"
    screen.start(page, "a kite")
    expect(screen.phase(page)).to_have_text("in line")
    server.drop_connections()
    wait_until(
        lambda: sum(isinstance(asked, Start) for asked in server.heard) == 2, "it asks for a stream again"
    )
    assert [type(asked) for asked in server.heard] == [Start, Attach, Start], (
        "once it knows that its place is gone"
    )
    server.admission = "admit"
    expect(screen.phase(page)).to_have_text("live")
    expect(page.get_by_role("img", name="The stream: a kite")).to_be_visible()
