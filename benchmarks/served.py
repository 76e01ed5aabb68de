"""Measure what share of a device's speed viewers get: `bench stream`, then `serve`, on one machine.

    python -m benchmarks.served --model wan2.1-t2v-1.3b --weights random --size 480x832 --window 9 --fast on
    python -m benchmarks.served                                             # Brook, on whatever is here

Through the server, over real sockets: the frames a second of one unpaced stream (a lead as long as the
measurement), by format; those of 1, 2, 4 and 8 unpaced viewers together; the highest rate at which the
viewers are admitted, and what they then see. All are given as a share of the rate of `bench stream` with the
same model, size, window and speed-ups.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

from benchmarks.report import write_report
from millstream.core.client_messages import MAX_LEAD_S
from millstream.core.config import MAX_FPS, MIN_FPS
from millstream.core.errors import LoadError
from millstream.core.server_messages import ChunkHeader
from millstream.load.host import serve
from millstream.load.playout import WatchedPlayout
from millstream.load.saturate import MAX_CHUNK_FRAMES, find_rate
from millstream.load.visitor import Visitor, VisitRefused

SERVER_OPTIONS = ("model", "weights", "size", "window", "fast", "precision", "device")
"""As `millstream serve` and `millstream bench stream` have them."""
FORMATS = ("raw", "jpeg", "mp4")
CROWDS = (1, 2, 4, 8)
WARM_UP = 4
"""Chunks of a stream that do not count: its window fills."""
GENEROUS = 1.5
"""Factor on the rate of `bench stream`: more than any number of streams is expected to get together."""
SLOWER = 0.95
"""Factor on a rate that is no longer admitted."""
BETWEEN_ASKS_S = 0.05
"""Seconds between requests: keeps below the rate limit of one connection."""


def bench_stream(words: list[str], chunks: int) -> dict[str, Any]:
    """In a process of its own, so that the server finds the device as it was."""
    command = [
        sys.executable,
        "-m",
        "millstream",
        "bench",
        "stream",
        *words,
        "--no-floor",
        "--chunks",
        str(chunks),
        "--json",
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    measured: dict[str, Any] = json.loads(done.stdout)["measured"]
    return measured


async def unpaced(url: str, *, fps: float, format: str, chunks: int) -> dict[str, float]:
    """One stream that never waits for its viewer."""
    count = WARM_UP + chunks
    async with Visitor(url, format=format) as visitor:
        begun = time.monotonic()
        await visitor.ask(fps=fps, lead_s=min(60.0, count * MAX_CHUNK_FRAMES / fps))
        first = await visitor.next_chunk()
        first_s = time.monotonic() - begun
        arrived = [(first, begun + first_s)]
        for _ in range(count - 1):
            arrived.append((await visitor.next_chunk(), time.monotonic()))
    counted = arrived[WARM_UP:]
    passed_s = counted[-1][1] - arrived[WARM_UP - 1][1]
    made_s = statistics.median(header.total_ms / 1000 for header, _ in counted)
    return {
        "fps": sum(pictures(header) for header, _ in counted) / passed_s,
        "first_chunk_s": first_s,
        "chunk_s": made_s,
    }


def pictures(header: ChunkHeader) -> int:
    """Return the number of pictures that came with a chunk; a server that cannot keep up omits some."""
    return header.frames if header.sizes else 0


async def watch(visitor: Visitor, until: float) -> WatchedPlayout:
    """Record what a viewer sees until the given time."""
    seen = WatchedPlayout()
    while time.monotonic() < until:
        header = await visitor.next_chunk()
        seen.arrive(time.monotonic(), header.frames, header.fps, pictures=bool(header.sizes))
    return seen


async def all_unpaced(
    url: str, *, people: int, device_fps: float, format: str, learn_s: float, seconds: float
) -> float:
    """Frames a second of so many streams together, none of which waits for its viewer, after the server had
    time to learn."""
    lasts_s = learn_s + seconds
    fps = min(
        MAX_FPS, GENEROUS * device_fps / people * lasts_s / MAX_LEAD_S
    )  # so slow that the lead is not used up

    async def rate(visitor: Visitor, begin: float) -> float:
        frames = 0
        times = list[float]()
        while (now := time.monotonic()) < begin + seconds or len(times) < 2:
            header = await visitor.next_chunk()
            if now > begin:
                frames += pictures(header) if times else 0
                times.append(time.monotonic())
        return frames / (times[-1] - times[0])

    async with AsyncExitStack() as visitors:
        inside = [await visitors.enter_async_context(Visitor(url, format=format)) for _ in range(people)]
        for visitor in inside:
            await ask(visitor, fps, MAX_LEAD_S)
        begin = time.monotonic() + learn_s
        return sum(await asyncio.gather(*(rate(visitor, begin) for visitor in inside)))


async def crowd(url: str, *, people: int, at_most: float, format: str, seconds: float) -> dict[str, float]:
    """The highest rate at which so many are let in, and what they see at it."""
    fps = await find_rate(url, sessions=people, at_most=at_most)
    async with AsyncExitStack() as visitors:
        inside = [await visitors.enter_async_context(Visitor(url, format=format)) for _ in range(people)]
        promised_fps = sum([await ask(visitor, fps) for visitor in inside])
        until = time.monotonic() + seconds
        found = await asyncio.gather(*(watch(visitor, until) for visitor in inside))
    continuity = [playout.continuity(until) or 0.0 for playout in found]
    return {"people": people, "promised_fps": promised_fps, "continuity": min(continuity)}


async def ask(visitor: Visitor, fps: float, lead_s: float | None = None) -> float:
    """For a rate that was let in a moment ago, or one that still is: chunks do not take the same from second
    to second."""
    while True:
        try:
            await visitor.ask(fps=fps, lead_s=lead_s)
            return fps
        except VisitRefused as refused:
            fps *= SLOWER
            if fps < MIN_FPS:
                raise LoadError(f"no rate is slow enough to be let in: {refused}") from refused
            await asyncio.sleep(BETWEEN_ASKS_S)


async def through_server(words: list[str], options: argparse.Namespace, bench_fps: float) -> dict[str, Any]:
    streams = dict[str, dict[str, float]]()
    crowds = list[dict[str, float]]()
    async with serve([*words, "--batch", str(options.batch)]) as host:
        least = (WARM_UP + options.chunks) * MAX_CHUNK_FRAMES / MAX_LEAD_S
        slow = min(
            max(bench_fps / 4, least), MAX_FPS
        )  # let in, and all of it within the lead: nobody waits for it to play
        for format in options.formats:
            streams[format] = await unpaced(host.url, fps=slow, format=format, chunks=options.chunks)
            say(f"{format}: {streams[format]['fps']:.1f} frames a second")
        for people in options.people:
            at_most = min(1.05 * bench_fps / people, MAX_FPS)
            found = await crowd(
                host.url, people=people, at_most=at_most, format="jpeg", seconds=options.seconds
            )
            found["unpaced_fps"] = await all_unpaced(
                host.url,
                people=people,
                device_fps=bench_fps,
                format="jpeg",
                learn_s=options.learn,
                seconds=options.seconds,
            )
            crowds.append(found)
            line = (
                "{people} viewers: {unpaced_fps:.1f} made, {promised_fps:.1f} promised, continuity "
                "{continuity:.4f}"
            )
            say(line.format(**found))
    return {"one_unpaced_stream": streams, "crowds": crowds}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in SERVER_OPTIONS:
        parser.add_argument(f"--{name}", default="brook" if name == "model" else None)
    parser.add_argument("--chunks", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument(
        "--learn", type=float, default=5.0, help="seconds that several streams run before they are counted"
    )
    parser.add_argument("--people", type=int, nargs="*", default=CROWDS)
    parser.add_argument("--formats", nargs="*", default=FORMATS)
    parser.add_argument(
        "--batch", type=int, default=1, help="sessions that may share their model calls, as serve has it"
    )
    parser.add_argument("--report", default="served")
    options = parser.parse_args()
    asked = {name: getattr(options, name) for name in SERVER_OPTIONS}
    words = [word for name, value in asked.items() if value is not None for word in (f"--{name}", value)]
    bench = bench_stream(words, options.chunks)
    say(f"bench stream: {bench['fps']:.1f} frames a second")
    served = asyncio.run(through_server(words, options, bench["fps"]))
    shares = {
        "unpaced": {
            format: each["fps"] / bench["fps"] for format, each in served["one_unpaced_stream"].items()
        },
        "unpaced_together": {each["people"]: each["unpaced_fps"] / bench["fps"] for each in served["crowds"]},
        "promised": {each["people"]: each["promised_fps"] / bench["fps"] for each in served["crowds"]},
    }
    bench_figures = {"fps": bench["fps"], "first_frame_s": bench["first_frame_s"]["warm"]}
    configuration = {**asked, "batch": options.batch}
    write_report(
        options.report,
        configuration,
        {"bench_stream": bench_figures, **served, "share_of_bench_stream": shares},
    )


if __name__ == "__main__":
    main()
