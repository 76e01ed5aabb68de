"""Fleets on this machine, for tests and measurements: by `millstream fleet up`, or without Ray.

Without Ray, replicas are `millstream serve` in child processes and the gateway runs on a thread; everything
but `fleet/on_ray.py` is as people run it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import uvicorn

from millstream.fleet.config import FleetConfig, read_fleet
from millstream.fleet.fleet import LiveFleet
from millstream.fleet.gateway import create_gateway
from millstream.fleet.membership import Membership
from millstream.fleet.replica_link import ReplicaAddress
from millstream.server.access.auth import Access
from millstream.server.transport.sockets import ImpatientWebSocket, listen

TINY = (
    "--model",
    "wan-tiny",
    "--weights",
    "random",
    "--device",
    "cpu",
    "--dtype",
    "float32",
    "--threads",
    "1",
)


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
        alive = [
            name for name, process in self.processes.items() if process.poll() is None and name in self.urls
        ]
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
        keep = str(self.config.table.keep)
        data = str(self.storage / name)
        with open(self.storage / f"{name}.log", "wb") as errors:
            process = self.processes[name] = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "millstream",
                    "serve",
                    "--port",
                    "0",
                    "--keep",
                    keep,
                    "--data",
                    data,
                    *self.options,
                ],
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

    async def last_words(self, pool: str) -> str:
        logs = sorted(self.storage.glob(f"{pool}-*.log"), key=lambda path: path.stat().st_mtime)
        return f"{logs[-1].read_text()[-2000:]} (all of it: {logs[-1]})" if logs else ""

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
def local_fleet(
    toml: str, folder: Path | None = None, *, options: Sequence[str] = TINY
) -> Iterator[LocalFleet]:
    with tempfile.TemporaryDirectory() as own:
        storage = folder or Path(own)
        path = storage / "fleet.toml"
        path.write_text(toml)
        config = read_fleet(path)
        secret = secrets.token_bytes(32)
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
    options: dict[str, Any] = dict(loop="asyncio", log_config=None, lifespan="on", ws_max_size=2**24)
    options["ws"] = ImpatientWebSocket  # text that is none is a traceback of uvicorn's own otherwise
    server = uvicorn.Server(uvicorn.Config(app, **options))
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


THREE_REPLICAS = """
port = {port}
keep = {keep}
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
size = "32x32"
{more}
"""
KEEP = 4
READY_S = 900.0
"""Generous: others may use the machine too."""


@dataclass
class RunningFleet:
    url: str

    def standing(self) -> dict[str, Any]:
        standing: dict[str, Any] = httpx2.get(f"{self.url}/v1/fleet", timeout=30).json()
        return standing

    def order(self, method: str, *args: str) -> None:
        """Have the gateway do something."""
        _gateway("order", method, list(args))

    def trace(self) -> bytes:
        """Since `record` was ordered."""
        return bytes(_gateway("trace"))

    def gateway_pid(self) -> int:
        return int(_gateway("pid"))

    def ready(self) -> list[dict[str, Any]]:
        return [each for each in self.standing()["replicas"] if each["state"] == "ready"]

    def busy(self) -> list[dict[str, Any]]:
        """Replicas that have a session."""
        return [each for each in self.ready() if each["sessions"]]

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in self.standing()["events"] if event["kind"] in kinds]

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


def _gateway(method: str, *args: Any) -> Any:
    from millstream.fleet import on_ray

    return on_ray.ask_gateway(method, *args)


@dataclass
class FleetOfProcesses(RunningFleet):
    """Without Ray."""

    here: LocalFleet

    def order(self, method: str, *args: str) -> None:
        self.here.call(lambda: getattr(self.here.fleet, method)(*args))

    def trace(self) -> bytes:
        recorder = self.here.fleet.notes.recorder
        assert recorder is not None, "nothing is recorded"
        return msgspec.json.encode(self.here.call(lambda: recorder.trace(time.monotonic())))


@contextmanager
def fleet_of_processes(folder: Path, *, more: Sequence[str] = ()) -> Iterator[RunningFleet]:
    toml = THREE_REPLICAS.format(port=0, keep=KEEP, more="")
    with local_fleet(toml, folder, options=(*TINY, "--size", "32x32", *more)) as here:
        fleet = FleetOfProcesses(here.url, here)
        fleet.wait()
        yield fleet


@contextmanager
def fleet_up(folder: Path, *, port: int, more: str = "", address: str = "") -> Iterator[RunningFleet]:
    """On a Ray of its own, or on a cluster that is there; `more` options for its servers."""
    with brought_up(folder, THREE_REPLICAS.format(port=port, keep=KEEP, more=more), address=address) as fleet:
        yield fleet


@contextmanager
def brought_up(folder: Path, toml: str, *, address: str = "") -> Iterator[RunningFleet]:
    """By the command that people use."""
    (folder / "fleet.toml").write_text(toml)
    command = [sys.executable, "-m", "millstream", "fleet", "up", str(folder / "fleet.toml")]
    command += ["--address", address] if address else []
    errors = folder / "errors.txt"
    with (
        errors.open("wb") as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            url = next((line.strip() for line in process.stdout if line.startswith("http://")), "")
            assert url, f"it did not come up: {errors.read_text()[-2000:]}"
            fleet = RunningFleet(url)
            fleet.wait()
            yield fleet
        finally:
            process.terminate()
            process.wait(READY_S)
