"""What a session could become, as small pictures to choose from. On the event loop; the work is the engine's thread's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from millstream.core.controls import SetPrompt, Switch
from millstream.core.examples import near
from millstream.core.server_messages import FutureList, FuturePicture
from millstream.server.sessions.engine_jobs import done_by_engine
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.live_session import LiveSession
from millstream.video.encoding import Frames, Stills


async def preview(hub: SessionHub, live_session: LiveSession, prompts: Sequence[str], mode: Switch) -> FutureList:
    """Of these prompts, or of some near the one in force. Raises what stands against it."""
    prompts = prompts or _suggested(live_session)
    asked = hub.service.preview(live_session.session_id, [SetPrompt(prompt=prompt, mode=mode) for prompt in prompts])
    made = await done_by_engine(asked, otherwise="try again later")
    loop = asyncio.get_running_loop()
    jpegs = await asyncio.gather(*(loop.run_in_executor(hub.pool, _jpeg, picture) for picture in made.pictures))
    futures = tuple(FuturePicture(prompt=prompt, jpeg=jpeg) for prompt, jpeg in zip(prompts, jpegs, strict=True))
    return FutureList(futures=futures, note=made.note)


def _suggested(live_session: LiveSession) -> tuple[str, ...]:
    """Others as the stream goes on."""
    last = live_session.last_info
    return near(live_session.prompts[-1].text, turn=0 if last is None else last.index)


def _jpeg(picture: Frames | None) -> bytes:
    return b"" if picture is None else Stills("jpeg").encode(picture[None], fps=1.0)[0]
