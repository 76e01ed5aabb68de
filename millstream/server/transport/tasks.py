"""Ending tasks for good."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

AGAIN_S = 0.1


async def stop_all(tasks: Collection[asyncio.Future[Any]]) -> list[Any]:
    """Cancel until all have ended; what each came to, errors included.

    Once is not enough: `asyncio.wait_for` swallows a cancellation that comes at the moment its own wait is
    over.
    """
    pending: Collection[asyncio.Future[Any]] = [task for task in tasks if not task.done()]
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN_S)
    return await asyncio.gather(*tasks, return_exceptions=True)
