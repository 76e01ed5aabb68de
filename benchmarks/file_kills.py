"""Servers killed while they record, save and take uploads: files are whole or absent, and what was promised is there.

    python -m benchmarks.file_kills --kills 100

Each server is killed (SIGKILL) at a random moment of a session that is recorded, saved again and again, and beside which a
snapshot is uploaded again and again. The next one, on the same folder, must find what clients were told is kept, and the
journal with every chunk they saw; a recording plays to its last fragment; nothing else is left.
"""

from __future__ import annotations

import argparse
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from benchmarks.report import write_report
from millstream.runtime.journal import read_journal
from tests.server.full_disk import SLOW
from tests.server.kept_files import files, film_frames, not_whole, num_drafts
from tests.server.serve_process import server_process
from tests.server.serving import Client
from tests.server.test_serve import TINY

LONGEST_S = 12.0
"""Of a session, from its first chunk to the kill."""
PAUSE_S = 0.2
"""Between two saves, and for an upload: in the longest session there are fewer than a shelf holds."""
PIECES = 8


@dataclass
class Promised:
    """What people of a server that was killed had been told."""

    journal: str = ""
    recording: str = ""
    """Not promised to be kept: it was not over."""
    chunks: int = 0
    snapshots: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the next server made of it."""

    lost: tuple[str, ...]
    not_whole: tuple[str, ...]
    drafts_left: int
    recorded_frames: int
    """0 where the recording had no whole fragment yet."""
    restart_s: float


def live_until_killed(data: Path, *, num_chunks: int, after_s: float) -> Promised:
    """So long after its people have so many chunks."""
    promised = Promised()
    with server_process(*TINY, "--data", str(data)) as (process, url):
        with connect(url.replace("http", "ws") + "/v1/stream", max_size=None) as connection:
            client = Client(connection)
            client.hear("hello")
            promised.journal = client.start(**SLOW)["journal"]
            client.hear("chunk")
            client.say({"type": "record", "on": True})
            promised.recording = client.hear("recording")["url"].rsplit("/", 1)[1]
            client.say({"type": "save"})
            saved = client.hear("saved")["snapshot"]
            snapshot = httpx2.get(f"{url}/v1/snapshots/{saved}", timeout=60).content
            client.say({"type": "save"})
            uploads = threading.Thread(target=_upload_until_gone, args=(url, snapshot, promised.snapshots))
            uploads.start()
            killer = threading.Timer(after_s, process.send_signal, [signal.SIGKILL])
            with suppress(ConnectionClosed):
                while _num_chunks(client) < num_chunks:
                    _save_again(client, client.next())
                killer.start()
                while True:
                    _save_again(client, client.next())
            killer.join()
            uploads.join()
        process.wait()
    promised.chunks = _num_chunks(client)
    promised.snapshots += [message["snapshot"] for message in client.heard if message["type"] == "saved"]
    return promised


def _num_chunks(client: Client) -> int:
    return sum(message["type"] == "chunk" for message in client.heard)


def _save_again(client: Client, heard: dict[str, Any]) -> None:
    """Also after one that came too soon for the server."""
    if heard["type"] in ("saved", "error"):
        time.sleep(PAUSE_S)
        client.say({"type": "save"})


def _upload_until_gone(url: str, snapshot: bytes, kept: list[str]) -> None:
    with suppress(httpx2.TransportError), httpx2.Client(timeout=60) as http:
        while True:
            answer = http.post(f"{url}/v1/snapshots", content=_slowly(snapshot))
            if answer.status_code == 201:
                kept.append(answer.json()["name"])
            else:
                assert answer.status_code == 429, answer.text


def _slowly(data: bytes) -> Iterator[bytes]:
    """So that one is under way most of the time."""
    size = len(data) // PIECES + 1
    for begin in range(0, len(data), size):
        time.sleep(PAUSE_S / PIECES)
        yield data[begin : begin + size]


def find_after(data: Path, promised: Promised) -> Found:
    begun = time.monotonic()
    with server_process(*TINY, "--data", str(data)) as (_, url):
        restart_s = time.monotonic() - begun
        wanted = [f"/v1/snapshots/{name}" for name in promised.snapshots] + [f"/v1/journals/{promised.journal}"]
        lost = [path for path in wanted if httpx2.get(url + path, timeout=60).status_code != 200]
        recording = data / "recordings" / f"{promised.recording}.mp4"
        is_found = httpx2.get(f"{url}/v1/recordings/{promised.recording}", timeout=60).status_code == 200
        journal = data / "journals" / f"{promised.journal}.jsonl"
        if is_found != recording.is_file():
            lost.append(str(recording))
        if journal.is_file() and len(read_journal(journal).chunks) < promised.chunks:
            lost.append(f"chunks of {journal}")
        return Found(
            lost=tuple(lost),
            not_whole=tuple(not_whole(data)),
            drafts_left=num_drafts(data),
            recorded_frames=film_frames(recording) if recording.is_file() else 0,
            restart_s=restart_s,
        )


def run(kills: int, seed: int) -> list[Found]:
    rng, found = random.Random(seed), []
    for _ in range(kills):
        with tempfile.TemporaryDirectory(prefix="millstream-file-kills-") as folder:
            data = Path(folder) / "data"
            found.append(find_after(data, live_until_killed(data, num_chunks=1, after_s=rng.uniform(0.0, LONGEST_S))))
            print(f"{len(list(files(data)))} files, {found[-1]}", flush=True)
    return found


def report(found: Sequence[Found]) -> dict[str, object]:
    return {
        "kept_files_lost": [name for each in found for name in each.lost],
        "files_not_whole": [name for each in found for name in each.not_whole],
        "drafts_left": sum(each.drafts_left for each in found),
        "recordings_found": sum(each.recorded_frames > 0 for each in found),
        "recorded_frames": sum(each.recorded_frames for each in found),
        "longest_restart_s": round(max(each.restart_s for each in found), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = run(options.kills, options.seed)
    configuration = {"model": "wan-tiny", "kills": options.kills, "seed": options.seed, "longest_session_s": LONGEST_S, **SLOW}
    write_report("file_kills", configuration, report(found))


if __name__ == "__main__":
    main()
