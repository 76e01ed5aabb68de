"""A small fleet on threads of one process: real servers with a small model, the real gateway, real sockets;
no Ray."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millstream.client.sync_client import Client
from millstream.fleet.config import read_fleet
from millstream.fleet.local_fleet import LocalFleet, gateway
from millstream.fleet.member import access_by_ticket, routes
from millstream.fleet.membership import RATES, Membership
from millstream.fleet.replica_link import ReplicaAddress
from millstream.fleet.tickets import issue
from millstream.server.app import AppConfig
from millstream.server.sessions.shared_files import SharedFiles
from tests.server.serving import Serving, serving, wait_until

TOML = """
keep = {keep}
placement = "{placement}"
{keys}
[replicas.tiny]
model = "wan-tiny"
minimum = 0
maximum = 4
idle = 3600
"""


@dataclass(eq=False)
class Threads:
    """`Replicas` that are there already."""

    addresses: list[ReplicaAddress] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)

    async def running(self) -> list[ReplicaAddress]:
        return [address for address in self.addresses if address.replica_id not in self.stopped]

    async def start(self, pool: str, version: str) -> None:
        pass

    async def stop(self, replica_id: str) -> None:
        self.stopped.append(replica_id)

    async def last_words(self, pool: str) -> str:
        return "cannot read weights.safetensors\n(all of it: /tmp/errors.txt)"


@dataclass
class SmallFleet:
    running: LocalFleet
    servers: dict[str, Serving]
    threads: Threads
    secret: bytes
    shared: Path
    """Where its states are."""

    def show(self) -> None:
        """Have the gateway see its servers, and wait until they are ready."""
        self.threads.addresses += [
            ReplicaAddress(name, "tiny", each.url()) for name, each in self.servers.items()
        ]
        wait_until(lambda: set(self.servers) <= set(self.running.ready), "all replicas are ready")

    @property
    def url(self) -> str:
        return self.running.url

    def drain(self, replica_id: str) -> None:
        self.running.call(lambda: self.running.fleet.drain(replica_id))

    def place_of(self, session_id: str) -> str:
        return self.running.place_of(session_id)

    def sessions_on(self, replica_id: str) -> tuple[str, ...]:
        """As the gateway sees it."""
        found: tuple[str, ...] = self.running.call(lambda: self.running.fleet.policy.sessions_on(replica_id))
        return found

    def ticket(self, to: str, session: str, **changes: Any) -> str:
        """One that the gateway would give, to a replica; or of which something is changed."""
        told = dict(
            secret=self.secret, right="own", session_id=session, replica_id=to, key="", now=time.time()
        )
        return issue(**told | changes)


@contextmanager
def small_fleet(
    folder: Path,
    names: Sequence[str] = ("tiny-a", "tiny-b"),
    *,
    keep: int = 100,
    late: bool = False,
    placement: str = "pack",
    keys: str = "",
    **options: Any,
) -> Iterator[SmallFleet]:
    """Members of one fleet behind its gateway, all ready; `late` ones once they are shown to it. `keys` are
    its tables."""
    (folder / "fleet.toml").write_text(TOML.format(keep=keep, placement=placement, keys=keys))
    config = read_fleet(folder / "fleet.toml")
    secret = secrets.token_bytes(32)
    shared = str(folder / "shared")
    with ExitStack() as stack:
        servers = {}
        for name in names:
            member = Membership(
                secret=secret,
                replica_id=name,
                pool="tiny",
                storage=shared,
                node="here",
                keys=dict(config.keys),
            )
            app = AppConfig(access=access_by_ticket(member), routes=routes(member), rates=RATES)
            files = SharedFiles.at(shared)
            one = serving(
                folder / name, app, shared=files, keep_chunks=keep, key_names=config.keys, **options
            )
            servers[name] = stack.enter_context(one)
        threads: Any = Threads()
        fleet = SmallFleet(
            stack.enter_context(gateway(config, threads, secret)), servers, threads, secret, folder / "shared"
        )
        if not late:
            fleet.show()
        yield fleet


def digests(client: Client, count: int) -> dict[int, str]:
    """The pictures of the next chunks, by index."""
    return {chunk.index: hashlib.sha256(chunk.frames.tobytes()).hexdigest() for chunk in client.chunks(count)}
