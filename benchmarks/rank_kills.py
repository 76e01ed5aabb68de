"""Ranks of a served mesh killed at random moments, a third of them while the mesh is being brought back from the kill before.

    python -m benchmarks.rank_kills --kills 1000

`millstream serve` as people run it, and people at its sockets who never stop steering. Every control that was acknowledged must
be applied, no recovery may hang, readiness must tell the truth, and the server must hold as many descriptors and threads at
the end as at the beginning. What is measured is the time from a kill to the next chunk after the mesh is back. Stopped
half-way, it writes what it has.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from benchmarks.report import write_report
from tests.dist.meshes import ranks_of
from tests.server.serve_process import wait_until_ready
from tests.server.serving import PATIENCE_S, START, Client

TOPOLOGY = "front+tp2"
FPS = 8.0
VIEWERS = 3
STEER_S = 0.4
"""Between two controls of one person."""
IN_A_ROW = 4
"""Kills, from one that met a sound mesh to the last that met the same recovery; a mesh is given up after twice as many."""
HANG_S = 60.0
GOAL_P95_S = 4.0
SEED = 18
WRITTEN_EVERY = 100
PROMPTS = ("a white boat on the sea at dawn", "rain over the hills", "a lantern in the snow")


@dataclass
class Person:
    """At one socket: steers all the time, and remembers what it was told."""

    url: str
    seed: int
    queued: set[str] = field(default_factory=set)
    applied: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    """Controls that it was told are not taken."""
    chunks: int = 0
    last_chunk_at: float = field(default_factory=time.monotonic)
    ended: list[str] = field(default_factory=list)
    """Why sessions were over before it left; each time it starts again."""
    leaving: threading.Event = field(default_factory=threading.Event)

    def live(self) -> None:
        while not self.leaving.is_set():
            try:
                with self._connected() as client:
                    self.ended.append(self._listen(client))
            except (ConnectionClosed, TimeoutError) as error:
                self.ended.append(f"{type(error).__name__}: {error}")
            self.leaving.wait(STEER_S)

    @property
    def owed(self) -> set[str]:
        """Controls that it was told are queued, and not that they were applied."""
        return self.queued - self.applied

    @contextmanager
    def _connected(self) -> Iterator[Client]:
        address = f"{self.url.replace('http', 'ws')}/v1/stream"
        with connect(address, max_size=None, open_timeout=PATIENCE_S) as connection:
            client = Client(connection)
            client.hear("hello")
            client.say(START | {"prompt": PROMPTS[0], "seed": self.seed, "fps": FPS, "formats": ["jpeg"]})
            yield client

    def _listen(self, client: Client) -> str:
        """Until the session is over; says why."""
        is_live = False
        while True:
            message = client.next()
            client.heard.clear()
            if message["type"] == "live":
                is_live = True
                threading.Thread(target=self._steer, args=(client,), daemon=True).start()
            elif message["type"] == "receipt":
                (self.queued if message["state"] == "queued" else self.applied).add(message["control_id"])
            elif message["type"] == "chunk":
                self.chunks, self.last_chunk_at = self.chunks + 1, time.monotonic()
            elif message["type"] == "ended":
                return str(message["reason"])
            elif message["type"] == "error" and is_live:
                self.refused.append(message["message"])
            elif message["type"] == "error":
                return str(message["message"])

    def _steer(self, client: Client) -> None:
        chance = random.Random(self.seed)
        with suppress(ConnectionClosed):
            while not self.leaving.wait(STEER_S):
                control = {"type": "prompt", "prompt": chance.choice(PROMPTS), "mode": "keep"}
                client.say({"type": "control", "control": control | {"id": f"{self.seed}-{time.monotonic_ns()}"}})


@dataclass
class Server:
    pid: int
    url: str

    def trouble(self) -> str:
        """What /readyz says is wrong; empty when it says ready."""
        connection = HTTPConnection(self.url.removeprefix("http://"), timeout=PATIENCE_S)
        try:
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        return "" if answer.status == 200 else text

    def held(self) -> tuple[int, int]:
        """Descriptors and threads."""
        return len(os.listdir(f"/proc/{self.pid}/fd")), len(os.listdir(f"/proc/{self.pid}/task"))


@contextmanager
def serving(model: str, weights: str) -> Iterator[Server]:
    options = ["--model", model, "--weights", weights, "--device", "cpu", "--dtype", "float32", "--topology", TOPOLOGY]
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "millstream", "serve", "--port", "0", "--data", data, *options]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for this program
        ) as process:
            try:
                assert process.stdout is not None
                url = process.stdout.readline().strip()
                wait_until_ready(url)
                yield Server(process.pid, url)
            finally:
                process.terminate()
                process.wait(PATIENCE_S)


class Hang(Exception):
    """Something did not happen within `HANG_S`."""


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + HANG_S
    while not holds():
        if time.monotonic() > deadline:
            raise Hang(f"{what} did not come about within {HANG_S:g} s")
        time.sleep(0.02)


@dataclass
class Run:
    """What has happened so far."""

    server: Server
    people: list[Person]
    chance: random.Random = field(default_factory=lambda: random.Random(SEED))
    back_s: list[float] = field(default_factory=list)
    """Of every kill, until the next chunk after the mesh was back."""
    during: int = 0
    """Kills that met a mesh which was being brought back."""
    held: list[tuple[int, int]] = field(default_factory=list)
    """After every recovery."""
    hangs: list[str] = field(default_factory=list)

    def one_recovery(self, most: int) -> None:
        """Kills, each of which but the first meets the recovery from those before; then wait until chunks come."""
        time.sleep(self.chance.uniform(0.0, 0.6))
        times = [self._kill()]
        until(self.server.trouble, "a word on the loss")
        while len(times) < min(most, IN_A_ROW) and self.chance.random() < self._eagerness(len(times)):
            time.sleep(self.chance.uniform(0.0, 0.5))
            if not self.server.trouble():
                break
            times.append(self._kill())
            self.during += 1
        until(lambda: not self.server.trouble(), "a mesh")
        before = [person.chunks for person in self.people]
        until(lambda: any(now.chunks > then for now, then in zip(self.people, before, strict=True)), "a chunk")
        now = time.monotonic()
        self.back_s += [now - killed for killed in times]
        self.held.append(self.server.held())
        for person in self.people:
            if now - person.last_chunk_at > HANG_S:
                raise Hang(f"a chunk of session {person.seed}, while others had theirs, did not come within {HANG_S:g} s")

    def _eagerness(self, now: int) -> float:
        """How likely the next kill is to meet this recovery, so that a third do."""
        return 0.6 if 3 * self.during < len(self.back_s) + now else 0.2

    def _kill(self) -> float:
        while True:
            with suppress(ProcessLookupError, IndexError):
                os.kill(self.chance.choice(ranks_of(self.server.pid)), signal.SIGKILL)
                return time.monotonic()
            time.sleep(0.005)  # between two meshes

    def write(self, model: str, *, over: bool) -> None:
        ordered = sorted(self.back_s)
        descriptors, threads = ([each[index] for each in self.held] for index in (0, 1))
        write_report(
            "rank_kills",
            {"topology": TOPOLOGY, "model": model, "viewers": VIEWERS, "seed": SEED, "load_average": os.getloadavg()[0]},
            {
                "kills": len(ordered),
                "of_them_during_a_recovery": self.during,
                "recovered_s": {
                    "median": round(statistics.median(ordered), 2),
                    "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 2),
                    "longest": round(ordered[-1], 2),
                },
                "goal_p95_s": GOAL_P95_S,
                "chunks": sum(person.chunks for person in self.people),
                "controls_acknowledged": sum(len(person.queued) for person in self.people),
                "controls_refused": dict(Counter(words for person in self.people for words in person.refused)),
                "controls_lost": sum(len(person.owed) for person in self.people) if over else "counted at the end",
                "sessions_ended": [reason for person in self.people for reason in person.ended],
                "hangs": self.hangs,
                "descriptors": {"first": descriptors[0], "last": descriptors[-1], "most": max(descriptors)},
                "threads": {"first": threads[0], "last": threads[-1], "most": max(threads)},
            },
        )


def kill_ranks(kills: int, model: str, weights: str) -> None:
    with serving(model, weights) as server:
        run = Run(server, [Person(server.url, seed=number + 1) for number in range(VIEWERS)])
        for person in run.people:
            threading.Thread(target=person.live, daemon=True).start()
        until(lambda: all(person.chunks for person in run.people), "everybody's first chunk")
        try:
            while len(run.back_s) < kills:
                written = len(run.back_s) // WRITTEN_EVERY
                run.one_recovery(kills - len(run.back_s))
                print(f"{len(run.back_s)} kills, the last back after {run.back_s[-1]:.1f} s, held {run.held[-1]}", flush=True)
                if len(run.back_s) // WRITTEN_EVERY > written:
                    run.write(model, over=False)
        except Hang as hang:
            run.hangs.append(str(hang))
        except KeyboardInterrupt:
            print("stopped; this is what there is")
        finish(run, model)


def finish(run: Run, model: str) -> None:
    """Nobody steers any more, and what was acknowledged has time to be applied."""
    for person in run.people:
        person.leaving.set()
    with suppress(Hang):
        until(lambda: not any(person.owed for person in run.people), "the last controls")
    if run.back_s:
        run.write(model, over=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill ranks of a served mesh at random moments.")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--model", default="wan-tiny")
    parser.add_argument("--weights", default="random:3")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    kill_ranks(options.kills, options.model, options.weights)


if __name__ == "__main__":
    main()
