"""`millstream serve --topology front+tp2` as people run it: the page shows what it shows locally, a killed
rank is a stall."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from websockets.sync.client import connect

pytest.importorskip("playwright", reason="tests of the page need playwright: pip install 'millstream[dev]'")

from playwright.sync_api import expect

from millstream.engine.engine import Engine
from tests.dist.meshes import MODEL, ranks_of, seconds_until_gone
from tests.server import browser as screen
from tests.server.serve_process import wait_until_ready
from tests.server.serving import PATIENCE_S, Client

OPTIONS = [
    "--model",
    "wan-tiny",
    "--weights",
    "random:3",
    "--device",
    "cpu",
    "--dtype",
    "float32",
    "--threads",
    "2",
    "--abandon",
    "0.5",
]


@contextmanager
def serving(data: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [
        sys.executable,
        "-m",
        "millstream",
        "serve",
        "--port",
        "0",
        "--data",
        str(data),
        "--topology",
        "front+tp2",
    ]
    with subprocess.Popen([*command, *OPTIONS], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            wait_until_ready(url)
            yield process, url
        finally:
            process.kill()


def first_chunks(url: str, count: int) -> list[np.ndarray]:
    """Their pictures as they were made, [frames, 32, 32, 3]."""
    found = []
    with connect(
        f"{url.replace('http', 'ws')}/v1/stream", max_size=None, open_timeout=PATIENCE_S
    ) as connection:
        client = Client(connection)
        client.hear("hello")
        client.start(prompt="sea", seed=3, fps=4.0, formats=["raw"])
        for index in range(count):
            parts = client.hear("chunk", index=index)["parts"]
            found.append(np.frombuffer(b"".join(parts), np.uint8).reshape(-1, 32, 32, 3))
    return found


@pytest.mark.skipif(screen.CHROMIUM is None, reason="no chromium on PATH: apt install chromium")
def test_a_served_mesh_shows_what_local_shows_survives_a_killed_rank_and_stops_when_told(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as (process, url):
        local = Engine("wan-tiny", **MODEL).session("sea", seed=3)
        for served, chunk in zip(first_chunks(url, 3), local.stream(3), strict=True):
            assert np.abs(served.astype(int) - chunk.frames).max() <= 1, "the same picture"
        with screen.chromium() as chrome, chrome.new_context(reduced_motion="reduce") as context:
            page = context.new_page()
            page.goto(url)
            page.get_by_text("New stream", exact=True).click()
            page.get_by_label("Frame rate").fill("4")  # so slow that any machine can promise it
            screen.start(page, "a kite over the sea")
            screen.wait_until_moving(page)
            os.kill(ranks_of(process.pid)[-1], signal.SIGKILL)
            screen.start(page, "a lantern in the rain")
            status = page.get_by_role("status", name="Last change")
            expect(status).to_have_text(re.compile(r"Prompt applied at chunk \d+, on screen after [\d.]+ s"))
            screen.wait_until_moving(page)
        ranks = ranks_of(process.pid)
        assert len(ranks) == 2
        process.terminate()
        process.wait(20)
        seconds_until_gone(ranks, 5)
