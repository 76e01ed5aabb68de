"""One replica: `millstream serve` as a process of its own, which has a port of its own and ends with the
process that started it.

Knows no Ray; `fleet/on_ray.py` makes an actor of it.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.core.errors import MillstreamError
from millstream.core.files import Draft, sweep
from millstream.fleet.config import ReplicaTable
from millstream.fleet.membership import Membership
from millstream.fleet.replica_link import ReplicaAddress
from millstream.server.sessions.shared_files import SharedFiles

LAST_WORDS = 2000
"""Letters kept of the error output of a server that did not come up."""
GRACE_S = 10.0
PAST_GRACE_S = 5.0
"""For a server to end in where its table says nothing, and from then on until it ends wherever it stands."""


@dataclass(frozen=True, slots=True)
class ReplicaStart:
    """All that an actor needs to start its server, again and again."""

    pool: str
    table: ReplicaTable
    secret: bytes
    storage: str
    keep: int
    host: str
    """An address to listen on; empty: the node's own."""
    version: str
    keys: Mapping[str, Any]

    @property
    def patience_s(self) -> float:
        """For its server to end by itself."""
        return float(self.table.serve.get("grace", GRACE_S)) + PAST_GRACE_S

    def command(self, host: str, data: Path) -> list[str]:
        options: dict[str, Any] = {
            "host": host,
            "port": 0,
            "model": self.table.model,
            "topology": self.table.topology,
            "keep": self.keep,
            "grace": GRACE_S,
            "data": str(data),
        }
        if self.table.weights is not None:
            options["weights"] = self.table.weights
        if self.table.fps is not None:
            options["fps"] = self.table.fps
        options |= {name.replace("_", "-"): value for name, value in self.table.serve.items()}
        return [sys.executable, "-m", "millstream", "serve", *_spelled(options)]


def _spelled(options: Mapping[str, Any]) -> list[str]:
    """As on the command line."""
    words: list[str] = []
    for name, value in options.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, bool):
                words += [f"--{name}"] if each else []
            else:
                words += [f"--{name}", str(each)]
    return words


class ReplicaServer:
    """The actor: one server's process, from start to end. When that dies, so does the actor, and Ray starts
    it again."""

    def __init__(self, start: ReplicaStart, own_address: Callable[[], str]) -> None:
        self._start = start
        self._replica_id = f"{start.pool}-{secrets.token_hex(3)}"
        self._url = ""
        self._is_told = False
        """True once it is to end."""
        home = Path(tempfile.gettempdir()) / f"millstream-replicas-{os.getuid()}"
        home.mkdir(mode=0o700, exist_ok=True)
        sweep(home)  # of replicas that were killed
        self._data = Draft(home)
        host = start.host or own_address()
        member = Membership(
            secret=start.secret,
            replica_id=self._replica_id,
            pool=start.pool,
            storage=start.storage,
            node=socket.gethostname(),
            version=start.version,
            keys=dict(start.keys),
        )
        self._errors = self._data.path / "errors.txt"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                start.command(host, self._data.path),
                stdin=subprocess.PIPE,  # which closes when this process is no more
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | member.environment(),
                text=True,
            )
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def address(self) -> ReplicaAddress | None:
        """None until it listens."""
        return ReplicaAddress(self._replica_id, self._start.pool, self._url) if self._url else None

    def secret(self) -> bytes:
        return self._start.secret

    def patience_s(self) -> float:
        return self._start.patience_s

    def pid(self) -> int:
        """Return the process id of the server."""
        return self._process.pid

    def last_words(self) -> str:
        """Return the end of its server's error output, and the file and host that have all of it."""
        words = (
            self._errors.read_text(errors="replace")[-LAST_WORDS:].strip() if self._errors.exists() else ""
        )
        return f"{words or 'it has said nothing yet'} (all of it: {self._errors} on {socket.gethostname()})"

    def stop(self) -> None:
        """End it as a server is ended. Nothing of it stays on the node."""
        self._is_told = True
        self._process.terminate()
        try:
            self._process.wait(self._start.patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._watcher.join(PAST_GRACE_S)
        self._data.remove()

    def _watch(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            self._url = self._process.stdout.readline().strip()
            for _ in self._process.stdout:  # so that it never waits to be read
                pass
        self._process.wait()
        if self._is_told:
            return
        words = self._errors.read_text(errors="replace")[-LAST_WORDS:].strip()
        print(
            f"the server of {self._replica_id} has ended with {self._process.returncode}: {words}",
            file=sys.stderr,
            flush=True,
        )
        if not self._url:
            leave_words(self._start, words)
        self._data.remove()
        os._exit(1)


def leave_words(start: ReplicaStart, words: str) -> None:
    """Why a server did not come up, where the gateway finds it: this node may be another's tomorrow."""
    with suppress(MillstreamError):
        SharedFiles.at(start.storage).write(words_place(start.pool), words.encode())


def words_place(pool: str) -> str:
    """In what all servers share."""
    return f"starts/{pool}.txt"
