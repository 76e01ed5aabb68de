"""A person forks a stream in a real browser, on the real server: both play, either is steered, one is
kept."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright", reason="tests of the page need playwright: pip install 'millstream[dev]'")

import re
from pathlib import Path

from playwright.sync_api import Browser, Page, Route, expect

from tests.server import browser as screen
from tests.server.serving import serving

pytestmark = [screen.needs_chromium, pytest.mark.slow]

MEAN = """(id) => {
    const copy = new OffscreenCanvas(16, 16).getContext("2d", { willReadFrequently: true });
    copy.drawImage(document.getElementById(id), 0, 0, 16, 16);
    const { data } = copy.getImageData(0, 0, 16, 16);
    return Array.from(data).reduce((sum, value) => sum + value, 0);
}"""


def wait_until_it_moves(page: Page, canvas: str) -> None:
    before = page.evaluate(MEAN, canvas)
    page.wait_for_function(f"([id, before]) => ({MEAN})(id) !== before", arg=[canvas, before])


def test_a_fork_plays_beside_either_is_steered_and_one_is_kept(chrome: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, screen.greeted(chrome, server.url()) as page:
        screen.start(page, "a kite")
        screen.wait_until_moving(page)
        page.get_by_role("button", name="Fork", exact=True).click()
        beside = page.get_by_role("img", name="Branch B: a kite")
        expect(beside).to_be_visible()
        wait_until_it_moves(page, "beside-picture")
        wait_until_it_moves(page, "picture")
        screen.start(page, "a comet")
        expect(page.get_by_role("status", name="Last change")).to_contain_text("applied")
        page.get_by_role("button", name="Steer", exact=True).click()
        expect(page.get_by_role("img", name="Branch A: a comet")).to_be_visible()
        expect(page.get_by_role("textbox", name="Prompt")).to_have_value("a kite")
        expect(
            page.get_by_role("listitem", name=re.compile("^Chunk 0 "))
        ).to_be_visible()  # its parent's part is there
        screen.start(page, "a storm")
        expect(page.get_by_role("status", name="Last change")).to_contain_text("applied")
        rows = page.get_by_role("list", name="Branches").get_by_role("listitem")
        expect(rows).to_have_count(2)
        expect(rows.nth(0)).to_contain_text("A · beside · a comet")
        expect(rows.nth(1)).to_contain_text("B · steered · a storm")
        with page.expect_download() as download:
            page.get_by_role("button", name="Download the path of Branch B").click()
        assert download.value.path().read_text().startswith('{"kind":"header"')
        page.get_by_role("button", name="Look at chunk 2", exact=True).click(
            force=True
        )  # whichever has made it
        page.get_by_role("button", name="Branch from here").click()
        expect(rows).to_have_count(3)
        wait_until_it_moves(page, "beside-picture")
        page.set_viewport_size({"width": 390, "height": 844})
        for button in page.locator("#beside button").all() + page.locator("#tree button").all():
            box = button.bounding_box()
            assert box is not None
            assert box["width"] >= 28, "a finger finds it"
            assert box["x"] + box["width"] <= 390, "a phone shows all of it"
        page.get_by_role("button", name="Pick", exact=True).click()
        server.until(lambda: len(server.hub.live_sessions) == 1, "one branch is left")
        expect(page.locator("#beside")).to_be_hidden()
        expect(page.get_by_text("Branch C is kept, the others end.")).to_be_visible()
        expect(rows).to_have_count(1)
        expect(page.get_by_role("listitem", name=re.compile("^Chunk 0 "))).to_have_count(1)
        page.get_by_role("button", name="Look at chunk 0", exact=True).click(force=True)
        page.get_by_role("button", name="Branch from here").click()
        expect(page.get_by_text("The branch that chunk 0 came from has ended")).to_be_visible()
        with page.expect_download():
            page.get_by_role("button", name="Download the path of Branch C").click()
        wait_until_it_moves(page, "picture")


def test_a_branch_steered_before_the_tree_is_known_keeps_its_name_and_prompt(
    chrome: Browser, tmp_path: Path
) -> None:
    with serving(tmp_path) as server, screen.greeted(chrome, server.url()) as page:
        held: list[Route] = []
        page.route("**/v1/sessions/*/branches", lambda route: held.append(route))
        screen.start(page, "a kite")
        screen.wait_until_moving(page)
        page.get_by_role("button", name="Fork", exact=True).click()
        page.get_by_role("button", name="Steer", exact=True).click()
        expect(page.locator("#beside-name")).to_have_text("Branch A")
        expect(page.get_by_role("textbox", name="Prompt")).to_have_value("a kite")
        for route in held:
            route.continue_()
        expect(page.get_by_text("Branch B goes on from chunk")).to_be_visible()
        page.unroute_all(behavior="ignoreErrors")


def test_a_fork_of_a_paused_stream_is_seen_in_the_tree_with_its_picture(
    chrome: Browser, tmp_path: Path
) -> None:
    with serving(tmp_path) as server, screen.greeted(chrome, server.url()) as page:
        screen.start(page, "a kite")
        screen.wait_until_moving(page)
        page.get_by_role("button", name="Pause").click()
        expect(screen.phase(page)).to_have_text("paused")
        page.get_by_role("button", name="Fork", exact=True).click()
        row = page.get_by_role("list", name="Branches").get_by_role("listitem").nth(1)
        expect(row).to_contain_text("B · beside · a kite")
        expect(page.locator("#beside-name")).to_have_text("Branch B · paused")
        tree = page.get_by_role("list", name="Branches").bounding_box()
        path = row.get_by_role("button", name="Download the path of Branch B").bounding_box()
        assert tree is not None
        assert path is not None
        assert path["x"] + path["width"] <= tree["x"] + tree["width"], (
            "it begins at the end of its parent, not beyond"
        )
        page.set_viewport_size({"width": 1280, "height": 500})
        low = page.get_by_role("list", name="Branches").bounding_box()
        assert low is not None
        assert low["height"] > 50, "a low window still shows a branch"
        black = 16 * 16 * 255
        assert page.evaluate(MEAN, "beside-picture") > black
        row.get_by_role("button").first.focus()
        for _ in range(2):
            page.wait_for_event("response", lambda response: response.url.endswith("/branches"))
        expect(row.get_by_role("button").first).to_be_focused()
        page.reload()
        expect(screen.phase(page)).to_have_text("paused")
        rows = page.get_by_role("list", name="Branches").get_by_role("listitem")
        expect(rows).to_have_count(2)
        rows.nth(1).get_by_role("button").first.click()
        page.get_by_role("button", name="End this branch").click()
        expect(rows).to_have_count(1)
        page.get_by_role("button", name="End stream").click()
        expect(rows).to_have_count(0)


def test_what_is_told_of_branches_too_late_does_not_bring_their_tree_back(
    chrome: Browser, tmp_path: Path
) -> None:
    with serving(tmp_path) as server, screen.greeted(chrome, server.url()) as page:
        held: list[Route] = []
        screen.start(page, "a kite")
        screen.wait_until_moving(page)
        page.get_by_role("button", name="Fork", exact=True).click()
        rows = page.get_by_role("list", name="Branches").get_by_role("listitem")
        expect(rows).to_have_count(2)
        page.route(re.compile(r"/branches$"), lambda route: held.append(route))
        while not held:
            page.wait_for_timeout(20)
        late = held[0].fetch()
        page.get_by_text("New stream", exact=True).click()
        page.get_by_role("button", name="Start over").click()
        expect(page.locator("#tree")).to_be_hidden()
        server.until(lambda: len(server.hub.live_sessions) == 1, "the branches have ended")
        held[0].fulfill(response=late)
        page.wait_for_timeout(300)
        expect(page.locator("#tree")).to_be_hidden()
        assert len(held) == 1, "nothing more is asked of it"


def test_a_click_on_a_chunk_shows_that_moment_and_changes_nothing(chrome: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, screen.greeted(chrome, server.url()) as page:
        screen.start(page, "a kite")
        screen.wait_until_moving(page)
        cell = page.get_by_role("button", name="Look at chunk 1", exact=True)
        cell.click(force=True)
        moment = page.get_by_role("group", name="A moment of the stream")
        expect(moment).to_contain_text(re.compile(r"Chunk 1 at 0:\d\d: a kite"))
        page.keyboard.press("Escape")
        expect(moment).to_be_hidden()
        expect(cell).to_be_focused()
        wait_until_it_moves(page, "picture")
        assert len(server.hub.live_sessions) == 1, "nothing was forked"
        cell.click(force=True)
        page.get_by_role("button", name="Branch from here").click()
        server.until(lambda: len(server.hub.live_sessions) == 2, "now it was")
        expect(moment).to_be_hidden()
        expect(page.get_by_text("Branch B goes on from chunk 1")).to_be_visible()


def test_who_watches_sees_the_branch_that_is_picked(chrome: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, screen.greeted(chrome, server.url()) as page:
        screen.start(page, "a kite")
        screen.wait_until_moving(page)
        (first,) = server.hub.live_sessions.values()
        watcher = page.context.new_page()
        watcher.goto(f"{server.url()}/?view={first.view_id}")
        screen.wait_until_moving(watcher)
        page.get_by_role("button", name="Fork", exact=True).click()
        expect(page.get_by_role("img", name="Branch B: a kite")).to_be_visible()
        page.get_by_role("button", name="Pick", exact=True).click()
        server.until(lambda: first.ended, "the branch that was shared has ended")
        expect(watcher.get_by_text("goes on with another branch")).to_be_visible()
        screen.start(page, "a comet")
        expect(watcher.get_by_role("img", name="The stream: a comet")).to_be_visible()
        expect(screen.phase(watcher)).to_have_text("watching")
        watcher.reload()
        expect(watcher.get_by_role("img", name="The stream: a comet")).to_be_visible()


BOXES = """() => ["frame", "beside"].map((id) => {
    const { width, height } = document.getElementById(id).getBoundingClientRect();
    return [Math.round(width), Math.round(height)];
})"""


def test_two_branches_are_of_one_size_from_the_first_moment_on(chrome: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, screen.greeted(chrome, server.url()) as page:
        page.get_by_text("New stream", exact=True).click()
        page.get_by_label("Size").fill("64x32")
        screen.start(page, "a kite")
        screen.wait_until_moving(page)
        alone = page.locator("#frame").bounding_box()
        page.route_web_socket("**/v1/stream", lambda held: None)  # the branch does not come to be live
        page.get_by_role("button", name="Fork", exact=True).click()
        expect(page.locator("#beside")).to_be_visible()
        expect(page.get_by_role("list", name="Branches")).to_be_visible()
        mine, beside = page.evaluate(BOXES)
        assert mine == beside
        assert alone is not None
        assert mine[1] == round(alone["height"]), "and none of it is lost to the list of branches"
