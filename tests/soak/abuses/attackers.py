"""Attackers as processes of their own, which yield the machine to the server and to those who watch."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from millstream.core.errors import LoadError

GRACE_S = 30.0
"""For a process to start, and to end after its time."""


async def send_attacker(kind: str, url: str, *, seconds: float, seed: int) -> dict[str, Any]:
    """One, from its start to its end; what it got done."""
    words = [
        sys.executable,
        "-m",
        "tests.soak.abuses",
        kind,
        url,
        "--seconds",
        str(seconds),
        "--seed",
        str(seed),
    ]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe, start_new_session=True)
    try:
        said, wrong = await asyncio.wait_for(process.communicate(), seconds + GRACE_S)
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    if process.returncode:
        raise LoadError(
            f"the attacker {kind} broke: {wrong.decode(errors='replace').strip().splitlines()[-1:]}"
        )
    return dict(json.loads(said))
