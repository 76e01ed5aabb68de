"""The page's playout and its strip of chunks: frames when they are due, and never too many."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright", reason="tests of the page need playwright: pip install 'millstream[dev]'")

from playwright.sync_api import Page

from tests.server import browser as screen

pytestmark = screen.needs_chromium


def test_the_strip_and_the_buffer_are_bounded(page: Page) -> None:
    figures = page.evaluate(
        """async () => {
            const { Timeline } = await import("./timeline.js");
            const make = (tag) => document.body.appendChild(document.createElement(tag));
            const [runs, pending, empty] = [make("ol"), make("ul"), make("p")];
            const named = ["moment", "momentPicture", "momentWords", "momentFork", "momentClose"];
            const momentElements = Object.fromEntries(named.map((name) => [name, document.createElement("button")]));
            const strip = new Timeline({ runs, pending, empty, ...momentElements });
            strip.open("a");
            for (let index = 0; index < 500; index++) {
                const prompts = [{ text: `prompt ${index >> 5}`, weight: 1 }];
                strip.add("a", { index, epoch: 0, media_s: index, fps: 16, prompts, late_s: 0, total_ms: 1 }, []);
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


def test_a_branchs_strip_begins_with_its_parents_and_goes_its_own_way(page: Page) -> None:
    strips = page.evaluate(
        """async () => {
            const { Timeline } = await import("./timeline.js");
            const make = (tag) => document.body.appendChild(document.createElement(tag));
            const [runs, pending, empty] = [make("ol"), make("ul"), make("p")];
            const named = ["moment", "momentPicture", "momentWords", "momentFork", "momentClose"];
            const momentElements = Object.fromEntries(named.map((name) => [name, document.createElement("button")]));
            const strip = new Timeline({ runs, pending, empty, ...momentElements });
            const add = (session, index, media_s, text) => {
                const header = { index, epoch: 0, media_s, fps: 16, prompts: [{ text, weight: 1 }], late_s: 0, total_ms: 1 };
                strip.add(session, header, []);
            };
            const seen = (session) => {
                strip.open(session);
                return [...runs.children].map((run) => [run.dataset.name, run.querySelectorAll(".cell").length]);
            };
            for (let index = 0; index < 5; index++) add("a", index, index, "sea");
            strip.branch("a", "b", 3);
            for (let index = 3; index < 5; index++) add("b", index, index, "storm");
            const found = [seen("a"), seen("b"), seen("a")];
            add("a", 4, 4, "sea"); // told again to who attaches
            found.push(seen("a"));
            add("a", 2, 9, "fog"); // it was rewound
            found.push(seen("a"), seen("b"));
            strip.keepOnly(["b"]);
            found.push(seen("b"), seen("a"));
            return found;
        }"""
    )
    before = [["sea", 5]]
    branch = [["sea", 3], ["storm", 2]]
    assert strips == [before, branch, before, before, [["sea", 2], ["fog", 1]], branch, branch, []]


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
