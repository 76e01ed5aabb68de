"""Makes docs/pictures/plan-report.png, profile-report.png, profile-ranks.png and profile-h200.png again:
reports as a browser shows them.

    python -m tests.unit.make_report_pictures

The first two are of a calculation and of a run on this machine; the ranks are of a simulated workload, the
last of the trace of an H200 that tests keep.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser
from typer.testing import CliRunner

from millstream.commands.main import app
from millstream.profiler.simulated_workloads import WORKLOADS
from tests.server.browser import chromium

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
H200_TRACE = Path(__file__).parents[1] / "fixtures" / "traces" / "fast-stream.json.gz"
PLAN = "plan --model wan2.1-t2v-14b --gpus 4xH200 --size 320x576 --fps 24 --software compiled"


def millstream(*words: str) -> None:
    result = CliRunner().invoke(app, list(words))
    if result.exit_code:
        sys.exit(result.output)


def picture(chrome: Browser, page_file: Path, name: str) -> None:
    page = chrome.new_page(viewport={"width": 960, "height": 900})
    page.goto(page_file.as_uri())
    page.screenshot(path=PICTURES / name, full_page=True)
    page.close()


def main() -> None:
    with TemporaryDirectory() as text, chromium() as chrome:
        folder = Path(text)
        millstream(*PLAN.split(), "--html", str(folder / "plan.html"))
        trace = str(folder / "brook.json.gz")
        os.environ["MILLSTREAM_HOME"] = text
        millstream("plan", "calibrate", "--device", "cpu")
        millstream("profile", "run", "--out", trace, "--chunks", "3", "--device", "cpu")
        millstream("profile", "read", trace, "--html", str(folder / "profile.html"))
        slow = next(workload for workload in WORKLOADS if workload.expected == "straggler")
        ranks = [str(path) for path in slow.write(folder, 8)]
        millstream("profile", "read", *ranks, "--html", str(folder / "ranks.html"))
        millstream("profile", "read", str(H200_TRACE), "--html", str(folder / "h200.html"))
        picture(chrome, folder / "plan.html", "plan-report.png")
        picture(chrome, folder / "profile.html", "profile-report.png")
        picture(chrome, folder / "ranks.html", "profile-ranks.png")
        picture(chrome, folder / "h200.html", "profile-h200.png")


if __name__ == "__main__":
    main()
