"""A viewer beside an abuse: how continuous the picture was, and whether the next newcomer is granted what the
last one was.

Somebody at another address asks `/healthz` meanwhile, on a connection of its own each time, and the log's
lines are counted.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from millstream.load.gate import LIMITS
from millstream.load.host import Host
from millstream.load.run import LoadRequest, put_load
from tests.soak.abuses.attackers import send_attacker
from tests.soak.abuses.grants import Newcomer
from tests.soak.abuses.http import Caller, Request
from tests.soak.abuses.server import Log
from tests.soak.abuses.target import Target

FPS = 12.0
SIZE = "16x16"
"""Size of a viewer's pictures. Generation is two chunks of twelve frames ahead, so a server that is held up
for two seconds is noticed."""
AHEAD_S = 3.0
"""The viewer is seated before the abuse begins, and stays for as long after it."""
PASSER_BY = "127.0.0.3"
KNOCK_S = 0.25
PATIENCE_S = 10.0
HEALTHZ_S = 0.5
"""Within which other clients are to be answered."""
LOG_LINES = 100
"""An abuse that has more written can fill a disk."""


@dataclass(slots=True)
class PasserBy:
    """Asks `/healthz` again and again, from an address that nothing else comes from."""

    target: Target
    took_s: list[float] = field(default_factory=list)
    unanswered: int = 0

    async def ask_until(self, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            begun = time.monotonic()
            answer = None
            with suppress(OSError, asyncio.TimeoutError), Caller(self.target, PASSER_BY) as caller:
                answer = await caller.ask(Request(path="/healthz"), patience_s=PATIENCE_S)
            self.took_s.append(time.monotonic() - begun)
            self.unanswered += answer is None or answer.status != 200
            await asyncio.sleep(KNOCK_S)


async def watch_beside(host: Host, kind: str | None, *, seconds: float, seed: int) -> dict[str, Any]:
    """One viewer and one kind of abuse; None: nobody, to know what the machine does by itself."""
    target = Target.at(host.url)
    log = Log(host)
    newcomer = Newcomer(target)
    passer_by = PasserBy(target)
    is_over = asyncio.Event()
    before = await newcomer.asks()
    watching = asyncio.ensure_future(
        put_load(host, LoadRequest(sessions=1, seconds=seconds + 2 * AHEAD_S, fps=FPS, size=SIZE, seed=seed))
    )
    await asyncio.sleep(AHEAD_S)
    passing = asyncio.ensure_future(passer_by.ask_until(is_over))
    lines_before = len(log.lines())
    try:
        did = {} if kind is None else await send_attacker(kind, host.url, seconds=seconds, seed=seed)
    finally:
        is_over.set()
        log_lines = len(log.lines()) - lines_before
        await passing
        result = await watching
    refused, after_s = await newcomer.asks_until(before)
    (viewer,) = result.people
    return {
        "continuity": viewer.continuity if viewer.outcome == "played" else 0.0,
        "stalled_s": viewer.stalled_s,
        "misses": viewer.misses,
        "errors": viewer.errors,
        "unanswered_controls": viewer.unanswered,
        "healthz_slowest_s": max(passer_by.took_s, default=0.0),
        "healthz_unanswered": passer_by.unanswered,
        "log_lines": log_lines,
        "granted_before": before,
        "refused_afterwards": refused,
        "granted_again_after_s": after_s,
        "peak_bytes": None if result.server is None else result.server.peak_bytes,
        "attacker_did": did,
    }


def missed_beside(kind: str, seen: dict[str, Any]) -> list[str]:
    """A line for each limit that was missed."""
    lines = []
    if (seen["continuity"] or 0.0) < LIMITS.continuity:
        lines.append(
            f"{kind}: continuity {seen['continuity'] or 0.0:.4f}, at least {LIMITS.continuity:g} is promised"
        )
    if seen["errors"]:
        lines.append(f"{kind}: the viewer met {seen['errors'][0]}")
    if seen["healthz_unanswered"] or seen["healthz_slowest_s"] > HEALTHZ_S:
        lines.append(
            f"{kind}: to others /healthz took up to {seen['healthz_slowest_s']:.2f} s, "
            f"{seen['healthz_unanswered']} times "
            f"without an answer; {HEALTHZ_S:g} s is promised"
        )
    if seen["log_lines"] >= LOG_LINES:
        lines.append(f"{kind}: {seen['log_lines']} lines of log, fewer than {LOG_LINES} are promised")
    if not all(seen["granted_before"].values()):
        lines.append(
            f"{kind}: refused before it began: "
            f"{[name for name, granted in seen['granted_before'].items() if not granted]}"
        )
    if seen["refused_afterwards"]:
        lines.append(f"{kind}: refused afterwards: {', '.join(seen['refused_afterwards'])}")
    return lines
