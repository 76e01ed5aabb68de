"""A client for programs without an event loop: `client/async_client.py` on a thread of its own, each call
waited for."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from millstream.client.async_client import AsyncClient, connect_async
from millstream.client.chunk import ClientChunk, StillFormat
from millstream.core.client_messages import Ask
from millstream.core.conditions import ImageMode
from millstream.core.controls import AnyControl, Receipt, SetPrompt, Switch
from millstream.core.errors import ClientError
from millstream.core.server_messages import (
    BranchKept,
    EndedMessage,
    Forked,
    Hello,
    LiveMessage,
    Previews,
    RecordingMessage,
    Rewound,
    Saved,
    Stats,
    WaitingMessage,
)
from millstream.core.undo import undone_by

Result = TypeVar("Result")


@contextmanager
def connect(
    url: str, *, key: str | None = None, format: StillFormat = "jpeg", tls: ssl.SSLContext | None = None
) -> Iterator[Client]:
    """A client for as long as the block lasts. A session that it steers ends with it, unless it has said
    `detach`."""
    with _event_loop() as loop:
        connecting = connect_async(url, key=key, format=format, tls=tls)
        client = Client(loop, _wait(loop, connecting.__aenter__()))
        try:
            yield client
        finally:
            _wait(loop, connecting.__aexit__(None, None, None))


class Client:
    """As `AsyncClient`, where every method says what it does."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: AsyncClient) -> None:
        self._loop = loop
        self._client = client

    @property
    def hello(self) -> Hello:
        return self._client.hello

    @property
    def live(self) -> LiveMessage | None:
        return self._client.live

    @property
    def waiting(self) -> WaitingMessage | None:
        return self._client.waiting

    @property
    def ended(self) -> EndedMessage | None:
        return self._client.ended

    @property
    def stats(self) -> Stats | None:
        return self._client.stats

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._client.notes)

    @property
    def dropped(self) -> int:
        return self._client.dropped

    def start(self, ask: str | Ask, *, image: bytes | Path | None = None) -> LiveMessage:
        return self._wait(self._client.start(ask, image=image))

    def attach(self, session: str) -> LiveMessage:
        return self._wait(self._client.attach(session))

    def view(self, view: str) -> LiveMessage:
        return self._wait(self._client.view(view))

    def restore(self, snapshot: str) -> LiveMessage:
        return self._wait(self._client.restore(snapshot))

    def steer(self, control: str | AnyControl, *, at_chunk: int | None = None) -> Receipt:
        return self._wait(self._client.steer(control, at_chunk=at_chunk))

    def image(
        self,
        image: bytes | Path,
        *,
        mode: ImageMode = "cut",
        chunks: int = 4,
        fit: Literal["crop", "pad"] = "crop",
    ) -> Receipt:
        return self._wait(self._client.image(image, mode=mode, chunks=chunks, fit=fit))

    def actions(
        self,
        keys: Sequence[str] = (),
        *,
        tapped: Sequence[str] = (),
        look: tuple[float, float] = (0.0, 0.0),
        axes: Sequence[float] = (),
    ) -> None:
        self._wait(self._client.actions(keys, tapped=tapped, look=look, axes=axes))

    def camera(
        self,
        motion: Sequence[float] = (),
        *,
        path: Sequence[Sequence[float]] = (),
        lens: tuple[float, float, float, float] | None = None,
    ) -> Receipt:
        return self._wait(self._client.camera(motion, path=path, lens=lens))

    def draft(self, control: str | SetPrompt | None) -> None:
        self._wait(self._client.draft(control))

    def send_frame(self, frame: bytes | NDArray[np.uint8]) -> None:
        self._wait(self._client.send_frame(frame))

    def preview(self, *prompts: str, mode: Switch = "recompute") -> Previews:
        return self._wait(self._client.preview(*prompts, mode=mode))

    def applied(self, receipt: Receipt) -> Receipt:
        return self._wait(self._client.applied(receipt))

    def chunks(self, count: int | None = None) -> Iterator[ClientChunk]:
        taken = 0
        while (count is None or taken < count) and (chunk := self.next_chunk()) is not None:
            taken += 1
            yield chunk

    def next_chunk(self) -> ClientChunk | None:
        return self._wait(self._client.next_chunk())

    def save(self) -> Saved:
        return self._wait(self._client.save())

    def fork(self, at_chunk: int | None = None) -> Forked:
        return self._wait(self._client.fork(at_chunk))

    def rewind(self, chunk: int) -> Rewound:
        return self._wait(self._client.rewind(chunk))

    def keep(self) -> BranchKept:
        return self._wait(self._client.keep())

    def record(self, on: bool) -> RecordingMessage:
        return self._wait(self._client.record(on))

    def stop(self) -> EndedMessage:
        return self._wait(self._client.stop())

    def detach(self) -> None:
        self._client.detach()

    def _wait(self, asked: Coroutine[Any, Any, Result]) -> Result:
        return _wait(self._loop, asked)


@contextmanager
def _event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """One that runs on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="millstream-client", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _wait(loop: asyncio.AbstractEventLoop, asked: Coroutine[Any, Any, Result]) -> Result:
    if loop.is_closed():
        asked.close()
        raise ClientError("the client is closed: use it within its `with` block")
    future = asyncio.run_coroutine_threadsafe(asked, loop)
    with undone_by(future.cancel):  # where Ctrl-C ends the wait; one that failed by itself is done
        return future.result()
