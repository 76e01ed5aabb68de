"""A disk that is filled while a server writes on it, and people who are watching meanwhile.

The real thing where mounting is allowed: a small tmpfs, filled by a ballast file. Elsewhere the server's
files may not grow past a size, set from outside while it runs, which fails its writes in the same places with
another error.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx2
from websockets.sync.client import connect

from tests.server.serving import Client

DISK_BYTES = 64 * 2**20
MAX_ROOM_BYTES = 8192
"""Left free at random below this: a few lines of a journal."""
SLOW = {"fps": 2.0, "lead_s": 60.0}
"""So slow that a busy machine can promise it; the first chunks still come as quickly as they are made."""


class Disk(Protocol):
    def fill(self, room_bytes: int) -> None: ...

    def free(self) -> None: ...


@dataclass
class MountedDisk:
    folder: Path

    def fill(self, room_bytes: int) -> None:
        with self._ballast.open("wb", buffering=0) as file:
            with suppress(OSError):
                while file.write(bytes(2**20)):
                    pass
            file.truncate(max(0, file.tell() - room_bytes))

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    @property
    def _ballast(self) -> Path:
        return self.folder / "ballast"


@dataclass
class LimitedDisk:
    pid: int

    def fill(self, room_bytes: int) -> None:
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (room_bytes, resource.RLIM_INFINITY))

    def free(self) -> None:
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@contextmanager
def mounted(folder: Path) -> Iterator[MountedDisk | None]:
    """A small disk at `folder`; None where it may not be."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True, check=False).returncode != 0:
        yield None
        return
    try:
        yield MountedDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a session's people went through while the disk was full."""

    told: tuple[int, ...]
    """How often each of them heard that the journal ends."""
    told_of_recording: tuple[int, ...]
    """The same of the recording, where the disk failed it."""
    told_of_keeping: tuple[int, ...]
    """How often each of them heard that its state is not kept for a restart, where the server keeps
    states."""
    chunks_after: int
    """That came after they were told."""
    upload: int
    """How one was answered."""
    saved_meanwhile: str
    saved_afterwards: str
    """The types or codes of the answers."""
    ended: str


def live_through(address: str, disk: Disk, rng: random.Random) -> Outcome:
    """A session with an owner and somebody who watches, on a disk that fills at a random moment and is freed
    again."""
    with ExitStack() as stack:
        owner, viewer = (
            Client(stack.enter_context(connect(address.replace("http", "ws") + "/v1/stream", max_size=None)))
            for _ in range(2)
        )
        owner.hear("hello")
        live = owner.start(**SLOW)
        viewer.say({"type": "view", "version": 1, "view": live["view"], "formats": ["jpeg"]})
        owner.hear("chunk")
        owner.say({"type": "record", "on": True})
        owner.hear("recording", on=True)
        time.sleep(rng.uniform(0.0, 0.5))
        disk.fill(rng.randrange(MAX_ROOM_BYTES))
        stack.callback(disk.free)
        owner.say({"type": "save"})
        upload = httpx2.post(f"{address}/v1/snapshots", content=rng.randbytes(2**18), timeout=60).status_code
        for person in (owner, viewer):
            while not _notes(person, "journal"):
                person.next()
        after = [owner.hear("chunk") for _ in range(2)]
        owner.say({"type": "record", "on": False})
        disk.free()
        owner.say({"type": "ping", "t": 1.0})
        owner.hear("pong")
        saved_meanwhile = _answer_to_save(owner)
        before = len(owner.heard)
        owner.say({"type": "save"})
        while not (saved_afterwards := _answer_to_save(owner, before)):
            owner.next()
        owner.say({"type": "stop"})
        ended = owner.hear("ended")["cause"]
        viewer.hear("ended")
    return Outcome(
        told=tuple(len(_notes(person, "journal")) for person in (owner, viewer)),
        told_of_recording=tuple(len(_notes(person, "recording")) for person in (owner, viewer)),
        told_of_keeping=tuple(len(_notes(person, "not kept for a restart")) for person in (owner, viewer)),
        chunks_after=len(after),
        upload=upload,
        saved_meanwhile=saved_meanwhile,
        saved_afterwards=saved_afterwards,
        ended=ended,
    )


def _notes(person: Client, about: str) -> list[str]:
    return [
        message["message"]
        for message in person.heard
        if message["type"] == "note" and about in message["message"]
    ]


def _answer_to_save(person: Client, since: int = 0) -> str:
    """`saved`, or the code of the error."""
    for message in person.heard[since:]:
        if message["type"] == "saved":
            return "saved"
        if message["type"] == "error" and message["code"] != "bad_state":
            return str(message["code"])
    return ""
