"""Makes docs/pictures/stranger-*.png again: the tops of reports on five traces of other projects, as a
browser shows them.

    python -m benchmarks.stranger_pictures --tables FOLDER

Their tables of events are not in this repository: fetch the traces from the sources that `labels.json` names,
make tables with `benchmarks/event_tables.py`, and say where they lie. What is left out of a table, Python
stacks and most arguments, the report then does not know.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import sync_playwright

from benchmarks.event_tables import write_trace

SHOWN = {
    "tracelens-02488a": "communication",
    "tracelens-737b43": "launches",
    "tracelens-5e8c10": "data",
    "tracelens-941dea": "allocator",
    "tracelens-b6a467": "cut-out",
}
PICTURES = Path(__file__).parents[1] / "docs" / "pictures"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=PICTURES)
    parser.add_argument("--whole", action="store_true", help="the whole pages, to look at")
    options = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with TemporaryDirectory() as text, sync_playwright() as playwright:
        chrome = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, called in SHOWN.items():
            trace = Path(text) / f"{called}.json"
            page_file = Path(text) / f"{called}.html"
            write_trace(options.tables / f"{name}.json.xz", trace)
            command = [
                sys.executable,
                "-m",
                "millstream",
                "profile",
                "read",
                str(trace),
                "--html",
                str(page_file),
            ]
            subprocess.run(command, check=True)
            page = chrome.new_page(viewport={"width": 960, "height": 760})
            page.goto(page_file.as_uri())
            page.screenshot(path=options.out / f"stranger-{called}.png", full_page=options.whole)
            page.close()
        chrome.close()


if __name__ == "__main__":
    main()
