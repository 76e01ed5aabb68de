"""A fleet on Ray, measured as its people meet it: first picture, relays, moves, kills, connects, refusals.

    python -m benchmarks.fleet
    python -m benchmarks.fleet --moves 200 --kills 50 --gateway-kills 10 --people 20 --connects 1000
    python -m benchmarks.fleet --trace trace.json

`millstream fleet up` with three replicas of a tiny model on this machine. People stream through it, steered alike at the same
chunks, so that each must be shown the same bits as one whom nothing happened to. Meanwhile sessions are moved, servers and the
gateway are killed (SIGKILL). A person counts what comes twice, what is missing, what differs, and which acknowledged control
did not apply where it was told to; a gap is from one chunk to the next, against what was buffered when it began.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from benchmarks.report import write_report
from millstream.client.async_client import AsyncClient, connect_async
from millstream.client.connection import Connection
from millstream.client.reading import Pictures
from millstream.core.controls import SetPrompt
from millstream.core.errors import ClientError, MillstreamError
from millstream.core.messages import VERSION, Ask, End, ErrorMessage, Hello, MovedMessage, Start, View
from millstream.fleet import on_ray
from millstream.fleet.trace import FleetTrace, write_trace

TOML = """
port = {port}
keep = 4
placement = "spread"
[replicas.tiny]
model = "wan-tiny"
weights = "random"
minimum = 3
maximum = 3
cpus = 0.5
start = 30
[replicas.tiny.serve]
device = "cpu"
dtype = "float32"
threads = 1
"""
PROMPTS = ("a calm sea", "a storm", "a lighthouse", "a desert")
STEER_EVERY = 5
"""Chunks."""
READY_S = 300.0
BACK_S = 120.0
TRACING = ("trace", "trace_s", "visitors", "stay", "seed")
"""Options of a recording."""


@dataclass
class Person:
    """One stream, steered at the same chunks as everybody's."""

    fps: float
    client: AsyncClient = field(init=False)
    digests: dict[int, str] = field(default_factory=dict)
    arrivals: list[float] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """From chunk to chunk, and what was buffered when it began."""
    twice: int = 0
    missing: int = 0
    asked: dict[str, int] = field(default_factory=dict)
    applied: dict[str, int] = field(default_factory=dict)
    dry_at: float = 0.0
    failed: str = ""

    async def live(self, url: str, until: asyncio.Event) -> None:
        try:
            async with connect_async(url, format="raw") as self.client:
                await self.client.start(Ask(prompt=PROMPTS[0], fps=self.fps, seed=7))
                steering = asyncio.ensure_future(self.steer())
                while not until.is_set():
                    chunk = await self.client.next_chunk()
                    assert chunk is not None, "it ended by itself"
                    self.take(chunk.index, hashlib.sha256(chunk.frames.tobytes()).hexdigest(), chunk.header.frames / chunk.fps)
                    self.applied |= {receipt.control_id: receipt.chunk_index for receipt in chunk.header.receipts}
                steering.cancel()
        except (ClientError, AssertionError) as error:
            self.failed = str(error)

    def take(self, index: int, digest: str, media_s: float) -> None:
        now, expected = time.monotonic(), max(self.digests, default=-1) + 1
        if index < expected:
            self.twice += 1
            return
        self.missing += index - expected
        self.digests[index] = digest
        if self.arrivals:
            self.gaps.append((now - self.arrivals[-1], max(0.0, self.dry_at - self.arrivals[-1])))
        self.arrivals.append(now)
        self.dry_at = max(self.dry_at, now) + media_s

    async def steer(self) -> None:
        """Always some chunks ahead, so that everybody's prompts change at the same ones."""
        number = 1
        while True:
            chunk = STEER_EVERY * number
            while max(self.digests, default=-1) < chunk - STEER_EVERY:
                await asyncio.sleep(0.05)
            receipt = await self.client.steer(SetPrompt(prompt=PROMPTS[number % len(PROMPTS)], mode="cut"), at_chunk=chunk)
            self.asked[receipt.control_id] = receipt.chunk_index
            number += 1

    @property
    def lost_controls(self) -> int:
        """Acknowledged for a chunk that was shown, and not applied there."""
        shown = max(self.digests, default=-1)
        return sum(self.applied.get(name) != chunk for name, chunk in self.asked.items() if chunk <= shown)


def differing(people: list[Person]) -> int:
    """Chunks of which not everybody was shown the same bits."""
    indices = {index for person in people for index in person.digests}
    return sum(len({person.digests[index] for person in people if index in person.digests}) > 1 for index in indices)


def told(people: list[Person]) -> dict[str, Any]:
    return {
        "people": len(people),
        "chunks": sum(len(person.digests) for person in people),
        "acknowledged_controls": sum(len(person.asked) for person in people),
        "acknowledged_controls_lost": sum(person.lost_controls for person in people),
        "chunks_twice": sum(person.twice for person in people),
        "chunks_missing": sum(person.missing for person in people),
        "chunks_differing": differing(people),
        "did_not_come_back": [person.failed for person in people if person.failed],
    }


def quantile(values: list[float], share: float) -> float | None:
    ordered = sorted(values)
    return None if not ordered else ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass
class Fleet:
    url: str

    def standing(self) -> dict[str, Any]:
        standing: dict[str, Any] = httpx2.get(f"{self.url}/v1/fleet", timeout=30).json()
        return standing

    def ready(self) -> list[dict[str, Any]]:
        return [each for each in self.standing()["replicas"] if each["state"] == "ready"]

    def wait(self, count: int = 3) -> float:
        begun = time.monotonic()
        while time.monotonic() < begun + READY_S:
            try:
                if len(self.ready()) >= count:
                    return time.monotonic() - begun
            except (httpx2.HTTPError, ValueError):
                pass
            time.sleep(0.5)
        raise AssertionError(f"{count} replicas were not ready within {READY_S:g} s: {self.standing()}")


@contextmanager
def fleet_up(folder: Path, *, port: int) -> Iterator[Fleet]:
    (folder / "fleet.toml").write_text(TOML.format(port=port))
    command = [sys.executable, "-m", "millstream", "fleet", "up", str(folder / "fleet.toml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            url = next(line.strip() for line in process.stdout if line.startswith("http://"))
            fleet = Fleet(url)
            fleet.wait()
            yield fleet
        finally:
            process.terminate()
            process.wait(60)


async def first_pictures(fleet: Fleet, count: int) -> dict[str, Any]:
    """What the gateway adds before a session is with its replica, and to each chunk where it passes them on."""
    added, first, start = [], [], Start(version=VERSION, prompt="sea", fps=4.0, follow=True)
    for _ in range(count):
        begun = time.monotonic()
        connection = await Connection.open(fleet.url)
        assert isinstance(await connection.hear(), Hello)
        await connection.say(start)
        there = await sent_on(connection)
        added.append(time.monotonic() - begun)
        await there.hear()
        await there.say(start)
        while not isinstance(await there.hear(), Pictures):
            pass
        first.append(time.monotonic() - begun)
        await there.say(End())
        await there.close()
        await asyncio.sleep(0.5)
    return {
        "added_by_the_gateway_ms": 1000 * statistics.median(added),
        "added_p95_ms": 1000 * (quantile(added, 0.95) or 0),
        "first_picture_ms": 1000 * statistics.median(first),
        "relay_adds_a_chunk_ms": await relayed(fleet, 3 * count),
    }


async def relayed(fleet: Fleet, count: int) -> float:
    """The same chunks at two viewers of one session, one through the gateway: how much later they come there."""
    async with connect_async(fleet.url, format="raw") as owner:
        live = await owner.start(Ask(prompt="sea", fps=12.0))
        direct, through = await viewer(fleet, live.view, follow=True), await viewer(fleet, live.view, follow=False)
        at: list[dict[int, float]] = [{}, {}]

        async def watch(connection: Connection, seen: dict[int, float]) -> None:
            while len(seen) < count:
                heard = await connection.hear()
                index = getattr(getattr(heard, "header", None), "index", None)
                if index is not None:
                    seen[index] = time.monotonic()

        await asyncio.gather(watch(direct, at[0]), watch(through, at[1]))
        await asyncio.gather(direct.close(), through.close())
    both = sorted(set(at[0]) & set(at[1]))[1:]  # each gets the last chunk at once when it comes
    return 1000 * statistics.median(at[1][index] - at[0][index] for index in both)


async def viewer(fleet: Fleet, view: str, *, follow: bool) -> Connection:
    opening = View(version=VERSION, view=view, formats=("raw",), follow=follow)
    connection = await Connection.open(fleet.url)
    await connection.hear()
    await connection.say(opening)
    if not follow:
        return connection
    there = await sent_on(connection)
    await there.hear()
    await there.say(opening)
    return there


async def sent_on(connection: Connection) -> Connection:
    """To where the gateway says."""
    moved = await connection.hear()
    assert isinstance(moved, MovedMessage), f"not sent anywhere: {moved}"
    await connection.close()
    return await Connection.open(moved.url, ticket=moved.ticket)


async def disturbed(fleet: Fleet, people: list[Person], disturb: Any, count: int, pause_s: float) -> list[float]:
    """Live, and have something happen so many times; how long each took until everybody saw a new chunk again."""
    until, back = asyncio.Event(), []
    living = [asyncio.ensure_future(person.live(fleet.url, until)) for person in people]
    while any(len(person.digests) < 3 and not person.failed for person in people):
        await asyncio.sleep(0.1)
    for _ in range(count):
        await asyncio.to_thread(fleet.wait)
        seen, begun = [len(person.digests) for person in people], time.monotonic()
        await asyncio.to_thread(disturb)
        waiting = list(range(len(people)))
        while waiting and time.monotonic() < begun + BACK_S:
            await asyncio.sleep(0.02)
            for number in [n for n in waiting if len(people[n].digests) > seen[n] or people[n].failed]:
                waiting.remove(number)
                back.append(time.monotonic() - begun)
        await asyncio.sleep(pause_s)
    until.set()
    await asyncio.gather(*living)
    return back


def move_one(fleet: Fleet) -> None:
    """Somebody's session, to another replica."""
    ready = fleet.ready()
    source = random.choice([each for each in ready if each["sessions"]])
    target = random.choice([each for each in ready if each["id"] != source["id"]])
    session = random.choice(source["sessions"])["session"]
    moves = fleet.standing()["events"]
    before = sum(event["kind"].startswith("move") for event in moves)
    on_ray.ask_gateway("order", "move", [session, target["id"]])
    give_up = time.monotonic() + BACK_S
    while (
        sum(event["kind"].startswith("move") for event in fleet.standing()["events"]) == before and time.monotonic() < give_up
    ):
        time.sleep(0.05)


def kill_one(fleet: Fleet) -> None:
    """A replica that somebody is on."""
    pid = random.choice([each for each in fleet.ready() if each["sessions"]])["pid"]
    os.kill(pid, signal.SIGKILL)


def kill_gateway() -> None:
    os.kill(on_ray.ask_gateway("pid"), signal.SIGKILL)


async def connects(fleet: Fleet, count: int) -> dict[str, Any]:
    """Evenly over their share of a minute: each is greeted, let in and sent to a replica."""
    took, errors = list[float](), list[str]()
    async with connect_async(fleet.url, format="raw") as owner:
        view = (await owner.start(Ask(prompt="sea", fps=4.0))).view

        async def one(delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            begun = time.monotonic()
            try:
                connection = await Connection.open(fleet.url)
                await connection.hear()
                await connection.say(View(version=VERSION, view=view, follow=True))
                moved = await connection.hear()
                took.append(time.monotonic() - begun)
                if not isinstance(moved, MovedMessage):
                    errors.append(str(moved)[:200])
                await connection.close()
            except MillstreamError as error:
                errors.append(str(error)[:200])

        await asyncio.gather(*(one(60.0 * number / 1000) for number in range(count)))
    return {"count": count, "a_minute": 1000, "errors": errors[:5], "num_errors": len(errors), "p99_ms": _ms(took, 0.99)}


async def refusals(fleet: Fleet, count: int) -> dict[str, Any]:
    """One after another, of what no replica has room for."""
    took = []
    connection = await Connection.open(fleet.url)
    await connection.hear()
    for _ in range(count):
        begun = time.monotonic()
        await connection.say(Start(version=VERSION, prompt="sea", fps=240.0, strict=True, follow=True))
        heard = await connection.hear()
        assert isinstance(heard, ErrorMessage), f"let in: {heard}"
        took.append(time.monotonic() - begun)
        await asyncio.sleep(0.02)
    await connection.close()
    return {"count": count, "median_ms": _ms(took, 0.5), "p99_ms": _ms(took, 0.99), "said": heard.message}


def _ms(seconds: list[float], share: float) -> float | None:
    found = quantile(seconds, share)
    return None if found is None else 1000 * found


async def visit(fleet: Fleet, at: float, stay_s: float, fps: float) -> None:
    """Somebody who comes, waits for a place if need be, stays and goes."""
    await asyncio.sleep(at)
    with suppress(ClientError):
        async with connect_async(fleet.url, format="jpeg") as client:
            await client.start(Ask(prompt="sea", fps=fps, strict=True, wait=True))
            give_up = time.monotonic() + stay_s
            while time.monotonic() < give_up:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(client.next_chunk(), max(0.0, give_up - time.monotonic()))


async def a_while(fleet: Fleet, options: argparse.Namespace) -> None:
    """People come and go; one replica is killed and one drained."""
    draw = random.Random(options.seed)
    visits = [(draw.uniform(0, options.trace_s), draw.expovariate(1 / options.stay)) for _ in range(options.visitors)]
    coming = [asyncio.ensure_future(visit(fleet, at, stay_s, options.fps)) for at, stay_s in visits]
    await asyncio.sleep(options.trace_s / 3)
    os.kill(random.choice(fleet.ready())["pid"], signal.SIGKILL)
    await asyncio.sleep(options.trace_s / 3)
    on_ray.ask_gateway("order", "drain", [random.choice(fleet.ready())["id"]])
    await asyncio.gather(*coming)


def record_trace(fleet: Fleet, options: argparse.Namespace) -> None:
    """For `python -m benchmarks.fleet_sim --trace FILE`."""
    on_ray.ask_gateway("order", "record", [])
    time.sleep(1.0)  # so that every replica has reported
    asyncio.run(a_while(fleet, options))
    trace = msgspec.json.decode(on_ray.ask_gateway("trace"), type=FleetTrace)
    write_trace(trace, options.trace)
    print(f"{len(trace.arrivals)} visits, {trace.seen.moves} moves, {trace.seen.restored} restored: {options.trace}")


def people_of(options: argparse.Namespace) -> list[Person]:
    return [Person(options.fps) for _ in range(options.people)]


def measure(fleet: Fleet, options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"first_picture": asyncio.run(first_pictures(fleet, options.pictures))}
    found["connects"] = asyncio.run(connects(fleet, options.connects))
    found["refusals"] = asyncio.run(refusals(fleet, options.refusals))
    print(found, file=sys.stderr, flush=True)
    people = people_of(options)
    asyncio.run(disturbed(fleet, people, lambda: move_one(fleet), options.moves, 0.5))
    moves = [event["seconds"] for event in fleet.standing()["events"] if event["kind"] == "move"]
    stalls = [gap for person in people for gap in person.gaps if gap[0] > gap[1]]
    found["moves"] = told(people) | {
        "moves": len(moves),
        "failed": sum(event["kind"] == "move failed" for event in fleet.standing()["events"]),
        "move_s_p50": quantile(moves, 0.5),
        "move_s_p99": quantile(moves, 0.99),
        "gap_s_p99": quantile([gap for person in people for gap, _ in person.gaps], 0.99),
        "buffered_s_median": quantile([lead for person in people for _, lead in person.gaps], 0.5),
        "gaps_longer_than_what_was_buffered": len(stalls),
        "longest_stall_s": max((gap - lead for gap, lead in stalls), default=0.0),
    }
    people = people_of(options)
    back = asyncio.run(disturbed(fleet, people, lambda: kill_one(fleet), options.kills, 1.0))
    found["kills_of_replicas"] = told(people) | {
        "kills": options.kills,
        "back_s_p50": quantile(back, 0.5),
        "back_s_p95": quantile(back, 0.95),
    }
    fleet.wait()
    people = people_of(options)
    back = asyncio.run(disturbed(fleet, people, kill_gateway, options.gateway_kills, 5.0))
    found["kills_of_the_gateway"] = told(people) | {"kills": options.gateway_kills, "next_chunk_s_p95": quantile(back, 0.95)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=3)
    parser.add_argument("--moves", type=int, default=10)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--gateway-kills", type=int, default=1)
    parser.add_argument("--connects", type=int, default=200)
    parser.add_argument("--refusals", type=int, default=50)
    parser.add_argument("--pictures", type=int, default=5)
    parser.add_argument("--fps", type=float, default=2.0, help="Low, for three replicas share a machine.")
    parser.add_argument("--port", type=int, default=8471)
    parser.add_argument("--trace", type=Path, help="Record this instead: people who come and go, a kill and a drain.")
    parser.add_argument("--trace-s", type=float, default=120.0)
    parser.add_argument("--visitors", type=int, default=12)
    parser.add_argument("--stay", type=float, default=30.0, help="Seconds, on average.")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder, fleet_up(Path(folder), port=options.port) as fleet:
        on_ray.connect("auto")
        try:
            if options.trace is not None:
                record_trace(fleet, options)
                return
            measured = measure(fleet, options)
        finally:
            on_ray.disconnect()
    asked = {name: value for name, value in vars(options).items() if name not in TRACING}
    write_report("fleet", asked | {"replicas": 3, "keep": 4, "load_average": os.getloadavg()}, measured)


if __name__ == "__main__":
    main()
