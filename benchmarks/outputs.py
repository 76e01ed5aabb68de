"""A session's pictures by RTMP, SRT, HLS and MJPEG: each played for a while by a real receiver on this
machine.

    python -m benchmarks.outputs --seconds 60

A server without a model: numbered pictures are handed to it chunk by chunk at the promised rate, as an engine
would, and every receiver reads the numbers it decodes. Measured of each: how many pictures came and were
missing, the rate by the stream's own clock, when the first one came, and the latency: from when a picture was
due, which is when its chunk was handed over plus its place in it, until it was decoded. RTMP's and SRT's
receivers are also ended and started again: how long until pictures came. SRT needs the program ffmpeg;
without it, that is said instead.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import uvicorn

from benchmarks.pages import report_of, row, write_tables
from benchmarks.report import write_report
from millstream.core.presets import find_model
from millstream.core.reading import PromptReading
from millstream.core.trace import ChunkTiming
from millstream.server.app import AppConfig, create_app
from millstream.server.sessions.hub import HubLimits, SessionHub
from millstream.server.sessions.model_card import ModelCard
from millstream.server.sessions.outputs.destinations import Destination
from millstream.serving.admission_types import AdmissionMetrics
from millstream.serving.delivery_cost import DeliveryCost
from millstream.serving.notices import Ended, Live, Notice
from millstream.serving.service_metrics import ServiceMetrics
from millstream.serving.session_entry import OpenRequest
from millstream.serving.turns import SchedulerMetrics
from millstream.session.chunk import Chunk
from millstream.video.receivers import (
    ReceivedVideo,
    can_srt,
    free_port,
    read_film,
    rtmp_receiver,
    srt_receiver,
)

CHUNK = 12
BITS = 16
PATIENCE_S = 60.0
CARD = ModelCard(
    name="numbers", stream=find_model("wan-tiny").stream, read=PromptReading, examples=("numbers",)
)
ALLOWED = (Destination.parse("rtmp://127.0.0.1"), Destination.parse("srt://127.0.0.1"))


@dataclass
class PaintedSession:
    """A session of `Painter`: no model makes its chunks."""

    request: OpenRequest
    send: Callable[[Notice], None]
    viewers: int = 0
    chunks: int = 0


class Painter:
    """Stand in for a `Service`: hands numbered pictures over for as long as a client watches."""

    def __init__(self, fps: float) -> None:
        self.ready = threading.Event()
        self.ready.set()
        self.fps = fps
        self.sessions: dict[str, PaintedSession] = {}
        self.due: dict[int, float] = {}
        """When each picture was due, by its number."""
        self._number = 0
        self._next_at = 0.0

    def open(self, request: OpenRequest, tell: Callable[[Notice], None]) -> None:
        self.sessions[request.session_id] = PaintedSession(request, tell)
        tell(Live(note="at once", fps=request.config.fps))

    def watch(self, session_id: str) -> None:
        self.sessions[session_id].viewers += 1

    def unwatch(self, session_id: str) -> None:
        if session_id in self.sessions:
            self.sessions[session_id].viewers -= 1

    def end(self, session_id: str, reason: str = "closed by its owner") -> None:
        session = self.sessions.pop(session_id, None)
        if session is not None:
            session.send(Ended(cause="closed", reason=reason))

    def close(self, timeout_s: float = 0.0) -> None:
        for session_id in list(self.sessions):
            self.end(session_id, "the server is shutting down")

    def timeline(self, session_id: str) -> None:
        return None

    def hand_over_takes(self, hand_over: DeliveryCost) -> None:
        return None

    def fed(self, session_id: str) -> None:
        return None

    def catch_up(self, session_id: str, seen: int) -> None:
        return None

    def metrics(self) -> ServiceMetrics:
        return ServiceMetrics(
            scheduler=SchedulerMetrics(sessions=(), utilisation=0.0, busy_s=0.0, ready=0),
            admission=AdmissionMetrics(
                admitted=len(self.sessions), waiting=0, promised=0.0, memory_bytes=0, refused=0
            ),
            session_bytes=0,
            device_bytes=0,
        )

    async def work(self) -> None:
        while True:
            for session_id, session in list(self.sessions.items()):
                if session.viewers and time.monotonic() >= self._next_at:
                    self._hand_over(session_id)
            await asyncio.sleep(0.005)

    def _hand_over(self, session_id: str) -> None:
        session = self.sessions[session_id]
        now = time.monotonic()
        on_time = now - self._next_at < CHUNK / self.fps  # or nobody watched for a while
        self._next_at = (self._next_at if on_time else now) + CHUNK / self.fps
        config = session.request.config
        numbers = range(self._number, self._number + CHUNK)
        self.due |= {number: now + place / self.fps for place, number in enumerate(numbers)}
        frames = np.stack([numbered(number, (config.height, config.width)) for number in numbers])
        chunk = Chunk(
            index=session.chunks, epoch=0, frames=frames, num_frames=CHUNK, prompts=session.request.prompts, receipts=(),
            timing=ChunkTiming(total_ms=0.0, phases_ms={}), digest="", media_s=self._number / self.fps, fps=self.fps,
        )  # fmt: skip
        session.chunks += 1
        session.send(chunk)
        self._number += CHUNK


def numbered(number: int, size: tuple[int, int]) -> np.ndarray:
    """[H, W, 3]: a slope that moves, under a row of squares that are white where a bit is set."""
    height, width = size
    slope = (np.arange(width)[None, :] + np.arange(height)[:, None] + 4 * number) % 256
    frame = np.repeat(slope.astype(np.uint8)[..., None], 3, axis=2)
    bits = np.array([255 * (number >> bit & 1) for bit in range(BITS)], np.uint8)
    frame[: height // 8] = np.repeat(bits, -(-width // BITS))[:width][None, :, None]
    return frame


def number_of(frame_HW3: np.ndarray) -> int:
    height, width = frame_HW3.shape[:2]
    middles = (np.arange(BITS) + 0.5) * -(-width // BITS)
    bits = frame_HW3[height // 16, middles.astype(int)].mean(axis=-1) > 127
    return int(sum(1 << bit for bit in range(BITS) if bits[bit]))


@contextmanager
def painted_server(painter: Painter) -> Iterator[str]:
    """The address of the real application, on a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    limits = HubLimits(destinations=ALLOWED)
    app = create_app(lambda: SessionHub(painter, CARD, limits=limits), AppConfig())  # type: ignore[arg-type]
    server = uvicorn.Server(uvicorn.Config(app, lifespan="on", log_config=None))

    async def serve() -> None:
        painting = asyncio.ensure_future(painter.work())
        await server.serve(sockets=[listener])
        painting.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        until(lambda: server.started, "the server is there")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def until(holds: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    give_up = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > give_up:
            raise SystemExit(f"waited {patience_s:g} s in vain until {what}")
        time.sleep(0.01)


def judged(received: ReceivedVideo, asked_at: float, due: dict[int, float]) -> dict[str, Any]:
    numbers = [number for _, _, number in received.frames]
    late_ms = [1000 * (came - due[number]) for came, _, number in received.frames if number in due]
    clock_s = received.frames[-1][1] - received.frames[0][1]
    return {
        "pictures": len(numbers),
        "missing": numbers[-1] - numbers[0] + 1 - len(set(numbers)),
        "seconds": round(received.frames[-1][0] - received.frames[0][0], 2),
        "rate_by_its_clock": round((len(numbers) - 1) / clock_s, 3) if clock_s else None,
        "first_picture_s": round(received.frames[0][0] - asked_at, 2),
        "latency_ms": dict(
            zip(
                ("median", "p95", "most"), np.percentile(late_ms, (50, 95, 100)).round().tolist(), strict=True
            )
        ),
    }


def fetched(base: str, view: str, name: str, frames: int, due: dict[int, float]) -> dict[str, Any]:
    received = ReceivedVideo(look_at=number_of)
    asked_at = time.monotonic()
    kind = {"format": "mpjpeg"} if name.endswith("mjpg") else {}
    read_film(f"{base}/v1/views/{view}/{name}", received, frames=frames, **kind)
    judgement = judged(received, asked_at, due)
    if name.endswith("mjpg"):
        judgement["rate_by_its_clock"] = None  # it has none: players show pictures as they come
    return judgement


def sent(base: str, session: str, scheme: str, frames: int, due: dict[int, float]) -> dict[str, Any]:
    """Half to one receiver, half to the next."""
    receiver = rtmp_receiver if scheme == "rtmp" else srt_receiver
    port = free_port(socket.SOCK_STREAM if scheme == "rtmp" else socket.SOCK_DGRAM)
    outputs = f"{base}/v1/sessions/{session}/outputs"
    path = "/live/key" if scheme == "rtmp" else ""
    with receiver(port, ReceivedVideo(look_at=number_of), frames=frames // 2) as first:
        asked_at = time.monotonic()
        answer = httpx2.post(outputs, json={"url": f"{scheme}://127.0.0.1:{port}{path}"}).json()
        until(first.done.is_set, f"{scheme} was played", PATIENCE_S + 10 * frames / CHUNK)
    ended_at = time.monotonic()
    with receiver(port, ReceivedVideo(look_at=number_of), frames=frames // 2) as second:
        until(second.done.is_set, f"{scheme} was played again", PATIENCE_S + 10 * frames / CHUNK)
    (output,) = httpx2.get(outputs).json()["outputs"]
    httpx2.delete(f"{outputs}/{answer['output']}")
    return judged(first, asked_at, due) | {
        "after_restart": judged(second, ended_at, due),
        "reconnects": output["reconnects"],
        "dropped_chunks": output["dropped"],
        "kbps": output["kbps"],
        "key_frames_apart_s": round(float(np.median(np.diff(first.key_frames))), 2)
        if len(first.key_frames) > 1
        else None,
    }


def lines() -> list[str]:
    """Write the last result as a table."""
    report = report_of("outputs")
    asked = report["configuration"]
    measured = report["measured"]
    rows = [
        "| way | latency, median | 95th percentile | first picture | after the receiver started again |",
        "|---|---|---|---|---|",
    ]
    for kind, name in (("mjpeg", "MJPEG"), ("hls", "HLS"), ("rtmp", "RTMP"), ("srt", "SRT")):
        found = measured[kind]
        latency = found["latency_ms"]
        again = f"{found['after_restart']['first_picture_s']:.1f} s" if "after_restart" in found else ""
        cells = (
            name,
            f"{latency['median']:.0f} ms",
            f"{latency['p95']:.0f} ms",
            f"{found['first_picture_s']:.1f} s",
            again,
        )
        rows.append(row(cells))
    fps = f"{asked['fps']:g} frames a second"
    return [
        *rows,
        "",
        f"{asked['size']} at {fps}, `benchmarks/results/outputs.json`, commit `{report['commit']}`.",
    ]


PAGE = Path(__file__).parents[1] / "docs" / "outputs.md"
TABLES = {"benchmarks.outputs": lines}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of each")
    parser.add_argument("--fps", type=float, default=16.0, help="promised")
    parser.add_argument("--size", default="256x256", help="height first; this is that of the bundled model")
    parser.add_argument("--only", nargs="*", default=["mjpeg", "hls", "rtmp", "srt"])
    parser.add_argument("--page", action="store_true", help="write the last result into docs/outputs.md")
    asked = parser.parse_args()
    if asked.page:
        write_tables(PAGE, TABLES)
        return
    frames = int(asked.seconds * asked.fps)
    painter = Painter(asked.fps)
    measured: dict[str, Any] = {}
    with painted_server(painter) as base:
        start = {"prompt": "numbers", "size": asked.size, "fps": asked.fps}
        session = httpx2.post(f"{base}/v1/sessions", json=start).json()
        for kind, name in (("mjpeg", "live.mjpg"), ("hls", "live.m3u8")):
            if kind in asked.only:
                measured[kind] = fetched(base, session["view"], name, frames, painter.due)
        for scheme in ("rtmp", "srt"):
            if scheme in asked.only:
                possible = scheme == "rtmp" or can_srt()
                measured[scheme] = (
                    sent(base, session["session"], scheme, frames, painter.due)
                    if possible
                    else "no ffmpeg here"
                )
        httpx2.delete(f"{base}/v1/sessions/{session['session']}")
    configuration = {name: value for name, value in vars(asked).items() if name != "page"}
    write_report("outputs", configuration, measured)


if __name__ == "__main__":
    main()
