"""Other people's pages, rebuilt in miniature, at a server of ours: each plays for a while with a prompt switch in the middle.

    python -m benchmarks.clients_minute --seconds 60

SGLang's, Krea's and Scope's pages as `tests/server/clients` has them: what they send and read is taken from their code. One
after the other, alone at a server with the bundled model. Measured: when the first picture came, how many did, the longest time
without one, how long after it was asked for the switch showed, and whether the page showed an error
or met a field that is not what it reads.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from benchmarks.report import write_report
from tests.server.clients.krea_client import krea_page
from tests.server.clients.scope_client import ScopePage
from tests.server.clients.sglang_client import sglang_page
from tests.server.serve_process import server_process

MODEL = "brook"
PROMPTS = ("a red circle moving left", "a blue square moving up")


@dataclass
class Watched:
    began: float = field(default_factory=time.monotonic)
    pictures: list[float] = field(default_factory=list)
    """When each came, in seconds since the page was opened."""
    switched_s: float | None = None
    errors: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    def saw(self, count: int = 1) -> None:
        self.pictures += [self.now] * count

    def summary(self) -> dict[str, Any]:
        gaps = [after - before for before, after in zip(self.pictures, self.pictures[1:], strict=False)]
        return {
            "first_picture_s": round(self.pictures[0], 2) if self.pictures else None,
            "pictures": len(self.pictures),
            "longest_gap_s": round(max(gaps), 2) if gaps else None,
            "switch_shown_s": None if self.switched_s is None else round(self.switched_s, 2),
            "errors_shown": self.errors,
            "differences": self.differences,
        }


async def watch_sglang(url: str, seconds: float) -> Watched:
    watched, event_id, asked_s = Watched(), 0, 0.0
    async with sglang_page(url.replace("http", "ws", 1)) as page:
        await page.init(model=MODEL, prompt=PROMPTS[0], size=None, fps=None)
        while watched.now < seconds:
            seen = len(page.frames)
            await page.chunk()
            watched.saw(len(page.frames) - seen)
            if not event_id and watched.now > seconds / 2:
                event_id, asked_s = await page.event("prompt", PROMPTS[1]), watched.now
            if event_id and page.cut_over_to >= event_id and watched.switched_s is None:
                watched.switched_s = watched.now - asked_s
        watched.errors, watched.differences = page.history, page.differences
    return watched


async def watch_krea(url: str, seconds: float) -> Watched:
    watched, asked_s = Watched(), 0.0
    address = url.replace("http", "ws", 1)
    async with krea_page(address, prompt=PROMPTS[0], width=256, height=256, num_blocks=100_000) as page:
        while watched.now < seconds:
            seen = len(page.buffer)
            await page.hear()
            watched.saw(len(page.buffer) - seen)
            if not asked_s and watched.now > seconds / 2:
                asked_s = watched.now
                await page.change_prompt(PROMPTS[1])
            if asked_s and watched.switched_s is None and "prompt-1: applied" in " ".join(page.status):
                watched.switched_s = watched.now - asked_s
        watched.errors = [status for status in page.status if status.startswith("Server error")]
        watched.differences = page.differences
    return watched


async def watch_scope(url: str, seconds: float) -> Watched:
    watched, page = Watched(), ScopePage(url)

    async def switch() -> None:
        await asyncio.sleep(seconds / 2)
        asked_s = watched.now
        await page.update(prompts=[{"text": PROMPTS[1], "weight": 100}])
        await page.hear("receipt", parameter="prompts", state="applied")
        watched.switched_s = watched.now - asked_s

    page.model = MODEL
    try:
        await page.load()
        await page.play(input_mode="text", prompts=[{"text": PROMPTS[0], "weight": 100}], pipeline_ids=[MODEL])
        switching = asyncio.ensure_future(switch())
        while watched.now < seconds:
            await page.frames(1)
            watched.saw()
        await switching
        watched.differences = page.differences
    finally:
        await page.close()
    return watched


PAGES: dict[str, Callable[[str, float], Coroutine[Any, Any, Watched]]] = {
    "sglang": watch_sglang, "krea": watch_krea, "scope": watch_scope,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each page plays")
    options = parser.parse_args()
    with server_process("--model", MODEL, "--device", "cpu") as (_, url):
        watched = {name: asyncio.run(play(url, options.seconds)).summary() for name, play in PAGES.items()}
    write_report("clients_minute", {"model": MODEL, "seconds": options.seconds, "device": "cpu"}, watched)


if __name__ == "__main__":
    main()
