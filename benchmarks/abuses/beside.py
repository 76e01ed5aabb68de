"""A viewer beside an abuse: how continuous the picture was, and whether the next newcomer is granted what the last one was."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.abuses.attackers import send_attacker
from benchmarks.abuses.grants import Newcomer
from benchmarks.abuses.target import Target
from millstream.load.gate import LIMITS
from millstream.load.host import Host
from millstream.load.run import LoadRequest, put_load

FPS, SIZE = 12.0, "16x16"
"""Of a viewer. Generation is two chunks of twelve frames ahead, so what holds a server up for two seconds is seen."""
AHEAD_S = 3.0
"""The viewer is seated before the abuse begins, and stays for as long after it."""


async def watch_beside(host: Host, kind: str | None, *, seconds: float, seed: int) -> dict[str, Any]:
    """One viewer and one kind of abuse; None: nobody, to know what the machine does by itself."""
    newcomer = Newcomer(Target.at(host.url))
    before = await newcomer.asks()
    watching = asyncio.ensure_future(
        put_load(host, LoadRequest(sessions=1, seconds=seconds + 2 * AHEAD_S, fps=FPS, size=SIZE, seed=seed))
    )
    await asyncio.sleep(AHEAD_S)
    try:
        did = {} if kind is None else await send_attacker(kind, host.url, seconds=seconds, seed=seed)
    finally:
        result = await watching
    refused, after_s = await newcomer.asks_until(before)
    (viewer,) = result.people
    return {
        "continuity": viewer.continuity if viewer.outcome == "played" else 0.0,
        "stalled_s": viewer.stalled_s,
        "misses": viewer.misses,
        "errors": viewer.errors,
        "unanswered_controls": viewer.unanswered,
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
        lines.append(f"{kind}: continuity {seen['continuity'] or 0.0:.4f}, at least {LIMITS.continuity:g} is promised")
    if seen["errors"]:
        lines.append(f"{kind}: the viewer met {seen['errors'][0]}")
    if not all(seen["granted_before"].values()):
        lines.append(
            f"{kind}: refused before it began: {[name for name, granted in seen['granted_before'].items() if not granted]}"
        )
    if seen["refused_afterwards"]:
        lines.append(f"{kind}: refused afterwards: {', '.join(seen['refused_afterwards'])}")
    return lines
