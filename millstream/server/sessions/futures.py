"""Futures of a session, as small pictures to choose from. Runs on the event loop; the engine's thread does
the work."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

from millstream.core.controls import SetPrompt, Switch
from millstream.core.server_messages import FutureList, FuturePicture
from millstream.server.sessions.engine_jobs import done_by_engine
from millstream.serving.service import Service
from millstream.video.encoding import Frames, ImageEncoder


async def preview(
    service: Service, pool: Executor, session_id: str, prompts: Sequence[str], mode: Switch
) -> FutureList:
    """Return a picture for each of these prompts. Raises what stands against it."""
    asked = service.preview(session_id, [SetPrompt(prompt=prompt, mode=mode) for prompt in prompts])
    made = await done_by_engine(asked, otherwise="try again later")
    loop = asyncio.get_running_loop()
    jpegs = await asyncio.gather(*(loop.run_in_executor(pool, _jpeg, picture) for picture in made.pictures))
    futures = tuple(
        FuturePicture(prompt=prompt, jpeg=jpeg) for prompt, jpeg in zip(prompts, jpegs, strict=True)
    )
    return FutureList(futures=futures, note=made.note)


def _jpeg(picture: Frames | None) -> bytes:
    return b"" if picture is None else ImageEncoder("jpeg").encode(picture[None], fps=1.0)[0]
