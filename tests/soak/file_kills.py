"""Servers killed while they record, save and take uploads: files are whole or absent, and what was promised
is there.

    python -m tests.soak.file_kills --kills 100

Each server is killed (SIGKILL) at a random moment of several sessions that are recorded, saved again and
again, and beside which snapshots are uploaded again and again. The next one, on the same folder, must find
what clients were told is kept, and the journals with every chunk they saw; recordings play to their last
fragment; nothing else is left. Then it is killed in turn.

Servers are forked from a process that has imported everything, which is most of what a start takes; from
there on each is `millstream serve` as people run it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import httpx2
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from millstream.commands.main import app
from millstream.core.files import drafts
from millstream.session.journal import read_journal
from tests.server.full_disk import SLOW
from tests.server.kept_files import files, film_frames, not_whole, num_drafts
from tests.server.serve_process import wait_until_ready
from tests.server.serving import Client, wait_until
from tests.server.test_serve import TINY
from tests.soak.report import write_report

PEOPLE = 3
"""Each with a session, a recording, saves and uploads, and an address of its own: what one may ask for is
counted by those."""
LONGEST_S = 6.0
"""From everybody's first chunk to the kill."""
PAUSE_S = 0.2
"""Between two saves, and for an upload: in the longest session there are fewer than a shelf holds."""
PIECES = 8
BUSY_S = 120.0
"""For everybody to be let in, on a machine that does something else as well."""


@dataclass
class Person:
    """Has a session recorded and saved, and uploads what was saved first, until the server is gone."""

    url: str
    address: str
    journal: str = ""
    recording: str = ""
    """Not promised to be kept: it was not over."""
    chunks: int = 0
    snapshots: list[str] = field(default_factory=list)

    def live(self) -> None:
        address = self.url.replace("http", "ws") + "/v1/stream"
        with (
            suppress(ConnectionClosed),
            connect(address, max_size=None, source_address=(self.address, 0)) as connection,
        ):
            client = Client(connection)
            client.hear("hello")
            self.journal = client.start(**SLOW)["journal"]
            client.say({"type": "record", "on": True})
            uploads: threading.Thread | None = None
            try:
                while True:
                    self._heed(client, client.next())
                    if self.snapshots and uploads is None:
                        uploads = threading.Thread(target=self._upload, args=(self.snapshots[0],))
                        uploads.start()
            finally:
                if uploads is not None:
                    uploads.join()

    def _heed(self, client: Client, heard: dict[str, Any]) -> None:
        if heard["type"] == "chunk":
            self.chunks += 1
            if self.chunks == 1:  # before it there is little to save
                client.say({"type": "save"})
        elif heard["type"] == "recording":
            self.recording = heard["url"].rsplit("/", 1)[1]
        elif heard["type"] == "saved":
            self.snapshots.append(heard["snapshot"])
        if heard["type"] in ("saved", "error"):  # also after one that came too soon for the server
            time.sleep(PAUSE_S)
            client.say({"type": "save"})

    def _upload(self, name: str) -> None:
        elsewhere = httpx2.HTTPTransport(local_address=self.address)
        with (
            suppress(httpx2.TransportError),
            httpx2.Client(base_url=self.url, transport=elsewhere, timeout=60) as http,
        ):
            snapshot = http.get(f"/v1/snapshots/{name}").content
            while True:
                answer = http.post("/v1/snapshots", content=_slowly(snapshot))
                if answer.status_code == 201:
                    self.snapshots.append(answer.json()["name"])
                else:
                    assert answer.status_code == 429, answer.text


def _slowly(data: bytes) -> Iterator[bytes]:
    """So that one is under way most of the time."""
    size = len(data) // PIECES + 1
    for begin in range(0, len(data), size):
        time.sleep(PAUSE_S / PIECES)
        yield data[begin : begin + size]


class Living(Protocol):
    chunks: int
    """That it has seen."""

    def live(self) -> None:
        """Until the server is gone."""


def people_at(url: str) -> list[Person]:
    return [Person(url, f"127.0.0.{number + 2}") for number in range(PEOPLE)]


def live_until_killed(
    people: Sequence[Living], kill: Callable[[], None], *, num_chunks: int, after_s: float
) -> None:
    """People of a server that is killed so long after everybody has so many chunks."""
    lives = [threading.Thread(target=person.live) for person in people]
    for life in lives:
        life.start()
    wait_until(
        lambda: all(person.chunks >= num_chunks for person in people),
        f"everybody has {num_chunks} chunks",
        patience_s=BUSY_S,
    )
    time.sleep(after_s)
    kill()
    for life in lives:
        life.join()


def under_way(data: Path) -> Counter[str]:
    """Count the files that a dead server was writing, by kind."""
    return Counter({folder.name: len(list(drafts(folder))) for folder in data.iterdir()})


@dataclass(frozen=True, kw_only=True)
class Found:
    """Files of a killed server as the next server found them."""

    kept: int
    lost: tuple[str, ...]
    not_whole: tuple[str, ...]
    drafts_left: int
    recorded_frames: tuple[int, ...]
    """Frames of each recording that had a whole fragment."""


def find_after(url: str, data: Path, people: Sequence[Person]) -> Found:
    lost = list[str]()
    frames = list[int]()
    with httpx2.Client(base_url=url, timeout=60) as http:
        for person in people:
            wanted = [f"/v1/snapshots/{name}" for name in person.snapshots] + [
                f"/v1/journals/{person.journal}"
            ]
            lost += [path for path in wanted if http.get(path).status_code != 200]
            recording = data / "recordings" / f"{person.recording}.mp4"
            if (http.get(f"/v1/recordings/{person.recording}").status_code == 200) != recording.is_file():
                lost.append(str(recording))
    for person in people:
        journal = data / "journals" / f"{person.journal}.jsonl"
        if journal.is_file() and len(read_journal(journal).chunks) < person.chunks:
            lost.append(f"chunks of {journal}")
        recording = data / "recordings" / f"{person.recording}.mp4"
        if recording.is_file():
            frames.append(film_frames(recording))
    return Found(
        kept=len(list(files(data))),
        lost=tuple(lost),
        not_whole=tuple(not_whole(data)),
        drafts_left=num_drafts(data),
        recorded_frames=tuple(frames),
    )


FORKS = multiprocessing.get_context("forkserver")
IMPORTED = ["millstream.commands.serve", "tests.server.test_serve"]


@contextmanager
def forked_server(data: Path, *options: str) -> Iterator[tuple[Callable[[], None], str]]:
    """How to kill it, and its address once it is ready."""
    said, says = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=_serve, args=(data, says, options))
    process.start()
    says.close()
    try:
        with os.fdopen(os.dup(said.fileno())) as words:
            url = words.readline().strip()
        wait_until_ready(url)
        yield process.kill, url
    finally:
        process.kill()
        process.join()


def _serve(data: Path, says: Connection, options: Sequence[str]) -> None:
    os.dup2(says.fileno(), 1)
    app(["serve", *TINY, "--port", "0", "--data", str(data), *options])


def run(kills: int, seed: int) -> tuple[list[Counter[str]], list[Found], list[float]]:
    """Return the files under way at each kill, those found after it, and the seconds from kill to kill."""
    rng = random.Random(seed)
    interrupted = list[Counter[str]]()
    found = list[Found]()
    took_s = list[float]()
    people: list[Person] = []
    with tempfile.TemporaryDirectory(prefix="millstream-file-kills-") as folder:
        data = Path(folder) / "data"
        while len(found) < kills:
            begun = time.monotonic()
            with forked_server(data) as (kill, url):
                if people:
                    found.append(find_after(url, data, people))
                    print(f"{len(found)}: {interrupted[-1]}, {found[-1]}", flush=True)
                    for path in files(data):  # looked at
                        path.unlink()
                if len(found) < kills:
                    people = people_at(url)
                    live_until_killed(people, kill, num_chunks=1, after_s=rng.uniform(0.0, LONGEST_S))
                    interrupted.append(under_way(data))
                    took_s.append(time.monotonic() - begun)
    return interrupted, found, took_s


def report(
    interrupted: Sequence[Counter[str]], found: Sequence[Found], took_s: Sequence[float]
) -> dict[str, object]:
    return {
        "kills": len(found),
        "under_way_at_the_kills": dict(sum(interrupted, Counter[str]())),
        "kills_with_a_snapshot_under_way": sum(each["snapshots"] > 0 for each in interrupted),
        "files_found": sum(each.kept for each in found),
        "kept_files_lost": [name for each in found for name in each.lost],
        "files_not_whole": [name for each in found for name in each.not_whole],
        "drafts_left": sum(each.drafts_left for each in found),
        "recordings_found": sum(len(each.recorded_frames) for each in found),
        "recorded_frames": sum(sum(each.recorded_frames) for each in found),
        "seconds_a_kill": round(sum(took_s) / len(took_s), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    FORKS.set_forkserver_preload(IMPORTED)
    measured = report(*run(options.kills, options.seed))
    about = {
        "model": "wan-tiny",
        "kills": options.kills,
        "seed": options.seed,
        "people": PEOPLE,
        "longest_session_s": LONGEST_S,
    }
    write_report("file_kills", about | SLOW, measured)


if __name__ == "__main__":
    main()
