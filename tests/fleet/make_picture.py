"""Makes docs/pictures/fleet-kill.png: Brook from three replicas of `millstream fleet up` in a browser, one of
them killed -9.

python -m tests.fleet.make_picture        # needs millstream[fleet], Playwright and a chromium

Left, the page before; right, after its replica was killed: its strip goes on without a hole. It fails where
that is not so.
"""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from playwright.sync_api import Page

from millstream.fleet.local_fleet import RunningFleet, brought_up
from tests.server import browser as screen
from tests.server.serving import wait_until

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "fleet-kill.png"
TOML = """
port = 8483
keep = 2
[replicas.brook]
model = "brook"
minimum = 3
maximum = 3
cpus = 0.5
fps = 1
[replicas.brook.serve]
threads = 1
"""
PATIENCE_S = 300.0
WINDOW = {"width": 1200, "height": 780}
SMALL = (640, 416)
MORE_CHUNKS = 2


def cells(page: Page) -> list[int]:
    """The chunks of its strip."""
    labels = (
        page.get_by_role("region", name="Timeline").locator(".cell > span:first-of-type").all_inner_texts()
    )
    return [int(text) for text in labels]


def wait_for_chunks(page: Page, count: int) -> None:
    wait_until(lambda: len(cells(page)) >= count, f"{count} chunks are on the page", patience_s=PATIENCE_S)


def shot(page: Page) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB").resize(SMALL, Image.Resampling.LANCZOS)


def kill_its_server(fleet: RunningFleet) -> str:
    (busy,) = fleet.busy()
    os.kill(int(busy["pid"]), signal.SIGKILL)
    return str(busy["id"])


def watch(fleet: RunningFleet, page: Page) -> list[Image.Image]:
    """Before and after."""
    page.goto(fleet.url)
    screen.start(page, "a yellow boat on the sea at sunset")
    wait_for_chunks(page, 3)
    before = shot(page)
    seen = len(cells(page))
    killed = kill_its_server(fleet)
    wait_until(lambda: bool(fleet.events("restored")), "its session is back", patience_s=PATIENCE_S)
    wait_for_chunks(page, seen + MORE_CHUNKS)
    assert cells(page) == list(range(len(cells(page)))), f"a hole or a repetition: {cells(page)}"
    (restored,) = fleet.events("restored")
    (death,) = fleet.events("death")
    assert restored["replica_id"] != death["replica_id"] == killed
    print(
        f"{killed} was killed; {restored['at'] - death['at']:.1f} s later {restored['replica_id']} had its "
        "session"
    )
    return [before, shot(page)]


def main() -> None:
    os.environ.update({"RAY_raylet_start_wait_time_s": "120"})  # other programs use the machine, too
    with TemporaryDirectory() as folder, brought_up(Path(folder), TOML) as fleet, screen.chromium() as chrome:
        page = chrome.new_context(color_scheme="dark", viewport=WINDOW).new_page()  # type: ignore[arg-type]
        pictures = watch(fleet, page)
    beside = Image.new("RGB", (SMALL[0] * len(pictures), SMALL[1]))
    for number, picture in enumerate(pictures):
        beside.paste(picture, (number * SMALL[0], 0))
    beside.quantize(128).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
