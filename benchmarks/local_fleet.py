"""A fleet without Ray, for tests and measurements: `millstream serve` in processes of this machine, the gateway on a thread.

Everything but `fleet/on_ray.py` is as people run it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from millstream.fleet.config import FleetConfig, read_fleet
from millstream.fleet.fleet import LiveFleet
from millstream.fleet.gateway import create_gateway
from millstream.fleet.membership import Membership
from millstream.fleet.replica_link import ReplicaAddress
from millstream.server.access.auth import Access
from millstream.server.transport.sockets import listen

TINY = ("--model", "wan-tiny", "--weights", "random", "--device", "cpu", "--dtype", "float32", "--threads", "1")


@dataclass(eq=False)
class LocalReplicas:
    """`Replicas` as child processes."""

    config: FleetConfig
    secret: bytes
    storage: Path
    options: Sequence[str] = TINY
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)

    async def running(self) -> list[ReplicaAddress]:
        alive = [name for name, process in self.processes.items() if process.poll() is None and name in self.urls]
        return [ReplicaAddress(name, name.rpartition("-")[0], self.urls[name]) for name in alive]

    async def start(self, pool: str, version: str) -> None:
        name = f"{pool}-{secrets.token_hex(3)}"
        member = Membership(
            secret=self.secret,
            replica_id=name,
            pool=pool,
            storage=str(self.storage / "shared"),
            node="here",
            version=version,
            keys=dict(self.config.keys),
        )
        keep, data = str(self.config.table.keep), str(self.storage / name)
        with open(self.storage / f"{name}.log", "wb") as errors:
            process = self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "millstream", "serve", "--port", "0", "--keep", keep, "--data", data, *self.options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | member.environment(),
            )
        assert process.stdout is not None
        self.urls[name] = (await asyncio.to_thread(process.stdout.readline)).strip()

    async def stop(self, replica_id: str) -> None:
        self.processes[replica_id].terminate()
        await asyncio.to_thread(self.processes[replica_id].wait, 20)

    def kill(self, replica_id: str) -> None:
        self.processes[replica_id].kill()
        self.processes[replica_id].wait()

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate()


@dataclass(eq=False)
class LocalFleet:
    url: str
    fleet: LiveFleet
    replicas: LocalReplicas
    loop: asyncio.AbstractEventLoop

    def call(self, work: Any) -> Any:
        """Do something on the gateway's event loop."""
        done: Any = asyncio.run_coroutine_threadsafe(_call(work), self.loop)
        return done.result(60)

    def place_of(self, session_id: str) -> str:
        return str(self.call(lambda: self.fleet.policy.place_of(session_id)))

    @property
    def ready(self) -> list[str]:
        return [each.replica_id for each in self.call(self.fleet.ready)]


async def _call(work: Any) -> Any:
    return work()


@contextmanager
def local_fleet(toml: str, folder: Path | None = None, *, options: Sequence[str] = TINY) -> Iterator[LocalFleet]:
    with tempfile.TemporaryDirectory() as own:
        storage = folder or Path(own)
        path = storage / "fleet.toml"
        path.write_text(toml)
        config, secret = read_fleet(path), secrets.token_bytes(32)
        replicas = LocalReplicas(config, secret, storage, options)
        try:
            with gateway(config, replicas, secret) as running:
                yield running
        finally:
            replicas.close()


@contextmanager
def gateway(config: FleetConfig, replicas: LocalReplicas, secret: bytes) -> Iterator[LocalFleet]:
    fleet = LiveFleet(config, replicas, secret)
    app = create_gateway(fleet, Access(keyring=config.keyring))
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, loop="asyncio", log_config=None, lifespan="on", ws_max_size=2**26))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.serve([listener])), daemon=True)
    thread.start()
    try:
        yield LocalFleet(f"http://127.0.0.1:{listener.getsockname()[1]}", fleet, replicas, loop)
    finally:
        server.should_exit = True
        thread.join(20)
        loop.close()
        listener.close()
