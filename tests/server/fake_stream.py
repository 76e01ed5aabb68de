"""A server for the page without a model: the real messages of docs/protocol.md, painted frames, and troubles
on request.

What it shows follows the prompt (a colour of its own for each) and moves (a bar that wanders), so that a
browser test can tell one stream from another and a moving picture from a still one. It runs on a thread of
its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
import uvicorn
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

import millstream
from millstream.core import client_messages as said
from millstream.core import server_messages as say
from millstream.core.client_messages import Format
from millstream.core.controls import Pause, Receipt, Resume, SetPrompt, SetWindow, WeightedPrompt
from millstream.server.headers import SafeHeaders
from millstream.server.protocol import messages as words
from millstream.server.transport.sockets import listen
from millstream.video.encoding import encoder_for

WEB = Path(millstream.__file__).parent / "server" / "web"
FPS = 16.0
FRAMES = 8
SIZE = 64
TELL_S = 0.2
"""How often it is told how a paused session does."""
EXAMPLES = ("a red balloon over green hills", "a yellow boat at sunset", "a comet in outer space")
GIBBERISH = "blorp"
"""What no word has that this model knows."""
SYNONYMS = {"vessel": "boat", "gulls": "bird"}
"""Words that it was not taught, with what it reads in their place."""


def paint(prompt: str, first: int) -> NDArray[np.uint8]:
    """[T, H, W, 3]: the prompt's colour, with a bright bar that moves on with every frame."""
    colour = 40 + np.frombuffer(zlib.crc32(prompt.encode()).to_bytes(4, "big"), np.uint8)[:3] // 2
    frames = np.tile(colour.astype(np.uint8), (FRAMES, SIZE, SIZE, 1))
    for number, frame in enumerate(frames, first):
        frame[:, number % SIZE] = 255
    return frames


@dataclass
class FakeSession:
    name: str
    prompt: str
    source: str = ""
    takes_frames: bool = False
    index: int = 0
    fps: float = FPS
    media_s: float = 0.0
    paused: bool = False
    recording: str = ""
    queued: list[Receipt] = field(default_factory=list)
    prompts_due: list[str] = field(default_factory=list)

    def last_chunk(self, format: Format) -> tuple[say.ChunkHeader, tuple[bytes, ...]]:
        """Once more, for somebody who comes while nothing moves."""
        before = replace(
            self, index=self.index - 1, media_s=self.media_s - FRAMES / self.fps, queued=[], prompts_due=[]
        )
        return before.next_chunk(format, dropped=0)[:2]

    def next_chunk(
        self, format: Format, dropped: int
    ) -> tuple[say.ChunkHeader, tuple[bytes, ...], bytes | None]:
        if self.prompts_due:
            self.prompt = self.prompts_due.pop()
        encoder = encoder_for(format)
        parts = encoder.encode(paint(self.prompt, self.index * FRAMES), fps=self.fps)
        applied = tuple(
            Receipt(control_id=receipt.control_id, state="applied", chunk_index=self.index)
            for receipt in self.queued
        )
        self.queued = []
        self.prompts_due = []
        header = say.ChunkHeader(
            index=self.index,
            epoch=0,
            media_s=self.media_s,
            fps=self.fps,
            frames=FRAMES,
            format=format,
            sizes=tuple(len(part) for part in parts),
            prompts=(WeightedPrompt(self.prompt),),
            unknown=tuple(word for word in self.prompt.split() if GIBBERISH in word),
            understood={word: SYNONYMS[word] for word in self.prompt.split() if word in SYNONYMS},
            receipts=applied,
            total_ms=120.0,
            phases_ms={"prompt": 10.0, "step": 80.0, "decode": 25.0},
            late_s=0.0,
            dropped=dropped,
        )
        self.index += 1
        self.media_s += FRAMES / self.fps
        return header, parts, encoder.opening


TAKES_PICTURES = say.Takes(image=True)


@dataclass
class FakeStream:
    admission: Literal["admit", "refuse", "reject", "wait"] = "admit"
    """`reject` is of what cannot be asked for."""
    offer: dict[str, Any] | None = None
    """What would not be refused."""
    dropped: int = 0
    """What chunk headers say about a client that reads too slowly."""
    overloaded: bool = False
    is_slow: bool = False
    """So slow that no chunk comes."""
    is_older: bool = False
    """Than what a client may say it has yet to play."""
    previews_late: bool = False
    """They come after the next prompt."""
    sources: tuple[str, ...] = ("stage-left", "sea")
    """Videos that it offers as an input."""
    examples: tuple[str, ...] = EXAMPLES
    takes: say.Takes = TAKES_PICTURES
    """What steers it besides words."""
    url: str = ""
    sessions: dict[str, FakeSession] = field(default_factory=dict)
    heard: list[Any] = field(default_factory=list)
    frames_in: int = 0
    _late: list[say.Previews] = field(default_factory=list)
    _sockets: set[WebSocket] = field(default_factory=set)
    _loop: asyncio.AbstractEventLoop | None = None

    def drop_connections(self) -> None:
        """As a network does: without a word."""
        assert self._loop is not None
        for socket in list(self._sockets):
            asyncio.run_coroutine_threadsafe(socket.close(1011), self._loop).result(5)

    def stop_and_keep(self) -> None:
        """As a server does that is told to stop and keeps its sessions; the next one is there at once."""
        assert self._loop is not None
        ended = words.encode(
            say.EndedMessage(cause="closed", reason="the server is shutting down", kept=True)
        )
        for socket in list(self._sockets):
            asyncio.run_coroutine_threadsafe(socket.send_text(ended), self._loop).result(5)

    async def connection(self, socket: WebSocket) -> None:
        self._loop = asyncio.get_running_loop()
        await socket.accept(subprotocol="millstream.v1")
        self._sockets.add(socket)
        streaming: asyncio.Task[None] | None = None
        try:
            await socket.send_text(words.encode(hello(self.sources, self.examples, self.takes)))
            while True:
                message = await socket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                if message.get("text") is None:
                    self.frames_in += 1
                    continue
                if self.is_older and '"ahead_s"' in message["text"]:
                    unknown = "cannot read the message: Object contains unknown field `ahead_s`"
                    await socket.send_text(
                        words.encode(say.ErrorMessage(code="bad_message", message=unknown))
                    )
                    continue
                asked = words.decode(message["text"])
                if not isinstance(asked, said.Ping):
                    self.heard.append(asked)
                if isinstance(asked, (said.Start, said.Attach, said.View, said.Restore)):
                    streaming = asyncio.create_task(self.stream(socket, asked))
                else:
                    await self.answer(socket, asked)
        finally:
            self._sockets.discard(socket)
            if streaming is not None:
                streaming.cancel()
                with suppress(asyncio.CancelledError, WebSocketDisconnect, RuntimeError):
                    await streaming

    async def stream(self, socket: WebSocket, asked: said.Opening) -> None:
        while self.admission != "admit" and isinstance(asked, said.Start) and not self.takes_offer(asked):
            if self.admission == "refuse":
                reason = "3 streams use 0.93 of the device; one more needs 0.31"
                await socket.send_text(
                    words.encode(say.ErrorMessage(code="refused", message=reason, offer=self.offer))
                )
                return
            if self.admission == "reject":
                await socket.send_text(
                    words.encode(say.ErrorMessage(code="bad_message", message="size must be HEIGHTxWIDTH"))
                )
                return
            waiting = say.WaitingMessage(
                position=2, expected_wait_s=30.0, reason="every place is taken", session="in-line"
            )  # fmt: skip
            await socket.send_text(words.encode(waiting))
            await asyncio.sleep(0.2)
        session = self.enter(asked)
        if session is None:
            missing = say.ErrorMessage(
                code="not_found", message="there is no such session; it may have ended"
            )
            await socket.send_text(words.encode(missing))
            return
        format = words.choose_format(asked.formats)
        owned = not isinstance(asked, said.View)
        await socket.send_text(words.encode(live(session, format, owned)))
        await self.play(socket, session, format)

    def takes_offer(self, asked: said.Start) -> bool:
        return self.offer is not None and all(
            getattr(asked, name) == value for name, value in self.offer.items()
        )

    def change_rate(self, session: FakeSession, fps: float, note: str) -> None:
        assert self._loop is not None
        session.fps = fps
        message = words.encode(say.RateMessage(fps=fps, lead_s=2 * FRAMES / fps, note=note))
        for socket in list(self._sockets):
            asyncio.run_coroutine_threadsafe(socket.send_text(message), self._loop).result(5)

    def enter(self, asked: said.Opening) -> FakeSession | None:
        match asked:
            case said.Start(prompt=prompt, source=source, input=takes_frames):
                name = f"s{len(self.sessions)}"
                self.sessions[name] = FakeSession(name, prompt, source, takes_frames)
                return self.sessions[name]
            case said.Attach(session=name) | said.View(view=name) | said.Restore(snapshot=name):
                return self.sessions.get(name)

    async def play(self, socket: WebSocket, session: FakeSession, format: Format) -> None:
        """Two chunks ahead of the clock, as far as the viewer has played."""
        begun = time.monotonic()
        first_s = session.media_s
        opened = False
        told = begun
        if session.paused and session.index and format != "mp4":
            header, parts = session.last_chunk(format)
            await socket.send_bytes(words.with_header(header, *parts))
        while True:
            if session.paused and time.monotonic() - told > TELL_S:
                told = time.monotonic()
                await socket.send_text(words.encode(self.stats(session)))
            if (
                session.paused
                or self.is_slow
                or session.media_s - first_s > FRAMES / session.fps + time.monotonic() - begun
            ):
                await asyncio.sleep(0.01)
                continue
            header, parts, opening = session.next_chunk(format, self.dropped)
            if opening is not None and not opened:
                await socket.send_bytes(words.with_header(say.OpeningHeader(), opening))
                opened = True
            await socket.send_bytes(words.with_header(header, *parts))
            await socket.send_text(words.encode(self.stats(session)))

    def stats(self, session: FakeSession) -> say.Stats:
        stalled_s, use = (session.media_s, 1.4) if self.overloaded else (0.0, 0.4)
        return say.Stats(
            continuity=0.997, ahead_s=0.5, stalled_s=stalled_s, misses=0, viewers=len(self._sockets), utilisation=use,
            paused=session.paused,
        )  # fmt: skip

    async def answer(self, socket: WebSocket, asked: said.AnyClientMessage) -> None:
        session = next(reversed(self.sessions.values()), None)
        match asked:
            case said.Steer(control=SetWindow(window=window) as control) if (
                session is not None and window < 3
            ):
                error = say.ErrorMessage(
                    code="bad_control", message="it cannot hold a chunk", control_id=control.id
                )
                await socket.send_text(words.encode(error))
            case said.Steer(control=control) if session is not None:
                receipt = Receipt(control_id=control.id, state="queued", chunk_index=session.index)
                await socket.send_text(words.encode(receipt_message(receipt)))
                await self.apply(socket, session, control, receipt)
            case said.Record(on=on):
                if session is not None:
                    session.recording = "/recording.mp4" if on else ""
                await socket.send_text(words.encode(say.RecordingMessage(on=on, url="/recording.mp4")))
            case said.Save() if session is not None:
                await socket.send_text(words.encode(say.Saved(snapshot=session.name, bytes=1_234_567)))
            case said.StartOutput(url=url):
                info = say.OutputInfo(
                    output="o0", url=url.rpartition("/")[0], state="connecting", reason="", kbps=1000, frames=0, dropped=0,
                    reconnects=0,
                )  # fmt: skip
                await socket.send_text(words.encode(say.OutputsMessage(outputs=(info,))))
            case said.StopOutput():
                await socket.send_text(words.encode(say.OutputsMessage(outputs=())))
            case said.Preview(prompts=prompts):
                self._late.append(previews(prompts or EXAMPLES))
                if not self.previews_late:
                    await self.send_previews(socket)
            case said.Ping(t=t):
                await socket.send_text(words.encode(say.Pong(t=t)))
            case said.End():
                await socket.send_text(
                    words.encode(say.EndedMessage(cause="closed", reason="closed by its owner"))
                )
                await socket.close()

    async def send_previews(self, socket: WebSocket) -> None:
        while self._late:
            await socket.send_text(words.encode(self._late.pop()))

    async def apply(self, socket: WebSocket, session: FakeSession, control: Any, receipt: Receipt) -> None:
        match control:
            case Pause() | Resume():
                session.paused = isinstance(control, Pause)
                await asyncio.sleep(0.1)
                await socket.send_text(words.encode(receipt_message(receipt, "applied")))
                if not session.paused:
                    session.queued.append(receipt)  # said twice: the chunk that comes next has it too
            case SetPrompt(prompt=prompt):
                session.prompts_due.insert(0, prompt)
                session.queued.append(receipt)
                await self.send_previews(socket)
            case _:
                session.queued.append(receipt)


def hello(sources: tuple[str, ...], examples: tuple[str, ...], takes: say.Takes) -> say.Hello:
    defaults = say.Defaults(
        size=f"{SIZE}x{SIZE}",
        fps=FPS,
        steps=(1000, 750, 500, 250),
        window=21,
        sink=3,
        lead_s=1.0,
        noise_scale=0.7,
        seed=0,
    )
    return say.Hello(
        model="painted", defaults=defaults, limits={}, examples=examples, sources=sources, takes=takes
    )


def previews(prompts: tuple[str, ...]) -> say.Previews:
    """All but the last of several."""
    jpegs = [
        encoder_for("jpeg").encode(paint(prompt, 0)[:1], fps=1.0)[0]
        for prompt in prompts[: max(1, len(prompts) - 1)]
    ]
    futures = [
        say.FuturePicture(prompt=prompt, jpeg=jpeg)
        for prompt, jpeg in zip_longest(prompts, jpegs, fillvalue=b"")
    ]  # type: ignore[arg-type]
    return say.Previews(
        futures=tuple(futures), note="" if len(prompts) == 1 else "1 of 3 pictures could not be made: no time"
    )


def live(session: FakeSession, format: Format, owned: bool) -> say.LiveMessage:
    config = dict(
        height=SIZE,
        width=SIZE,
        fps=session.fps,
        lead_s=1.0,
        steps=(1000, 750, 500, 250),
        window=21,
        sink=3,
        noise_scale=0.7,
        seed=5,
        rate="auto",
        source=session.source,
        input=session.takes_frames,
    )
    name = session.name if owned else ""
    paused = session.paused
    return say.LiveMessage(
        session=name, view=session.name, format=format, config=config, paused=paused, note="",
        recording=session.recording if owned else "", recorded_s=65.0 if session.recording else 0.0,
    )  # fmt: skip


def receipt_message(receipt: Receipt, state: Literal["queued", "applied"] = "queued") -> say.ReceiptMessage:
    return say.ReceiptMessage(control_id=receipt.control_id, state=state, chunk_index=receipt.chunk_index)


async def no_branches(request: Request) -> Response:
    return JSONResponse({"branches": []})


async def may_be(request: Request) -> Response:
    return JSONResponse({"obstacle": ""})


async def recording(request: Request) -> Response:
    return Response(b"a recording", media_type="video/mp4")


@contextmanager
def fake_stream() -> Iterator[FakeStream]:
    fake = FakeStream()
    routes = [
        WebSocketRoute("/v1/stream", fake.connection),
        Route("/recording.mp4", recording),
        Route("/v1/sessions/{session}/branches", no_branches),
        Route("/v1/sessions/{session}/check", may_be, methods=["POST"]),
        Mount("/", StaticFiles(directory=WEB, html=True)),
    ]
    app = Starlette(
        routes=routes, middleware=[Middleware(SafeHeaders)]
    )  # the page works under the policy it is served with
    config = uvicorn.Config(app, ws="websockets-sansio", log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    listener = listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield fake
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
        assert not thread.is_alive(), "the fake server did not stop within 10 s"
