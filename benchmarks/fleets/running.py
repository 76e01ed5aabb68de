"""A fleet of three small replicas on this machine, by `millstream fleet up` or without Ray, and what its gateway says."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from benchmarks.local_fleet import TINY, LocalFleet, local_fleet

TOML = """
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
class Fleet:
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
        """Replicas that somebody is on."""
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
class FleetOfProcesses(Fleet):
    """Without Ray."""

    here: LocalFleet

    def order(self, method: str, *args: str) -> None:
        self.here.call(lambda: getattr(self.here.fleet, method)(*args))

    def trace(self) -> bytes:
        recorder = self.here.fleet.notes.recorder
        assert recorder is not None, "nothing is recorded"
        return msgspec.json.encode(self.here.call(lambda: recorder.trace(time.monotonic())))


@contextmanager
def fleet_of_processes(folder: Path, *, more: Sequence[str] = ()) -> Iterator[Fleet]:
    toml = TOML.format(port=0, keep=KEEP, more="")
    with local_fleet(toml, folder, options=(*TINY, "--size", "32x32", *more)) as here:
        fleet = FleetOfProcesses(here.url, here)
        fleet.wait()
        yield fleet


@contextmanager
def fleet_up(folder: Path, *, port: int, more: str = "", address: str = "") -> Iterator[Fleet]:
    """On a Ray of its own, or on a cluster that is there; `more` options for its servers."""
    with brought_up(folder, TOML.format(port=port, keep=KEEP, more=more), address=address) as fleet:
        yield fleet


@contextmanager
def brought_up(folder: Path, toml: str, *, address: str = "") -> Iterator[Fleet]:
    """By the command that people use."""
    (folder / "fleet.toml").write_text(toml)
    command = [sys.executable, "-m", "millstream", "fleet", "up", str(folder / "fleet.toml")]
    command += ["--address", address] if address else []
    errors = folder / "errors.txt"
    with errors.open("wb") as said, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as process:
        try:
            assert process.stdout is not None
            url = next((line.strip() for line in process.stdout if line.startswith("http://")), "")
            assert url, f"it did not come up: {errors.read_text()[-2000:]}"
            fleet = Fleet(url)
            fleet.wait()
            yield fleet
        finally:
            process.terminate()
            process.wait(READY_S)
