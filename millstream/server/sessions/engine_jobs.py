"""Jobs that the engine's thread does for the event loop, and how long they are waited for."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TypeVar

from millstream.core.errors import Overloaded

T = TypeVar("T")
ENGINE_S = 60.0
"""How long the engine's thread may take to come to a job between two chunks."""


async def done_by_engine(job: Future[T], *, otherwise: str) -> T:
    """Its answer, or what it raised; `otherwise` is what people are told to do if it does not come."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(job), ENGINE_S)
    except asyncio.TimeoutError:
        raise Overloaded(f"its chunk has not come within {ENGINE_S:g} s; {otherwise}") from None
