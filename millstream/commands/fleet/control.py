"""`millstream fleet up, status, drain, scale, deploy, down`: a fleet on Ray, from the command line."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from millstream.core.errors import ConfigError
from millstream.fleet import on_ray
from millstream.fleet.config import FleetConfig, read_fleet
from millstream.server.sessions.shared_files import SharedFiles

HERE = "auto"
"""A cluster that runs on this machine."""
POLL_S = 1.0


def up(path: Path, address: str | None) -> None:
    """On a cluster that is there it stays up; on one of its own, until it is told to stop."""
    config = read_fleet(path)
    if address is None:
        SharedFiles.at(on_ray.storage_of(config))  # said here, rather than by each replica
    on_ray.connect(address, num_cpus=max(float(os.cpu_count() or 1), needed_cpus(config)))
    typer.echo(on_ray.bring_up(config))
    if address is not None:
        return
    try:
        wait_until_told()
    finally:
        on_ray.take_down()


def needed_cpus(config: FleetConfig) -> float:
    """A laptop's processors are shared by as many replicas as its fleet may have."""
    return sum(table.maximum * table.cpus for table in config.replicas.values())


def wait_until_told() -> None:
    """By Ctrl-C or SIGTERM."""
    told = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: told.set())
    while not told.wait(POLL_S):
        pass


def status(address: str | None, as_json: bool) -> None:
    on_ray.connect(address or HERE)
    standing = on_ray.ask_gateway("status")
    if as_json:
        typer.echo(json.dumps(standing, indent=2))
        return
    console = Console()
    console.print(_replicas(standing))
    for pool, figures in standing["metrics"]["pools"].items():
        console.print(
            f"{pool}: {figures['ready']} ready, {figures['starting']} starting, {figures['draining']} draining; "
            f"{figures['sessions']} sessions, {figures['waiting']} waiting, {figures['promised']:.0%} promised"
        )
    for event in standing["events"][-8:]:
        at = time.strftime("%H:%M:%S", time.localtime(event["at"]))
        console.print(f"{at} {event['kind']} {event['replica_id']}: {event['words']}", markup=False)


def _replicas(standing: dict[str, Any]) -> Table:
    table = Table("replica", "state", "node", "address", "sessions", "promised", "misses")
    for each in standing["replicas"]:
        table.add_row(
            each["id"],
            each["state"],
            each.get("node", ""),
            each["url"],
            str(len(each["sessions"])),
            f"{each.get('promised', 0):.0%}",
            str(each.get("misses", 0)),
        )
    return table


def drain(replica_id: str, address: str | None) -> None:
    on_ray.connect(address or HERE)
    on_ray.ask_gateway("order", "drain", [replica_id])


def scale(pool: str, minimum: int, maximum: int | None, address: str | None) -> None:
    if maximum is not None and maximum < minimum:
        raise ConfigError(f"at most {maximum} replicas cannot be fewer than at least {minimum}")
    on_ray.connect(address or HERE)
    on_ray.ask_gateway("order", "resize", [pool, minimum, maximum or max(minimum, 1)])


def deploy(pool: str, version: str, address: str | None) -> None:
    on_ray.connect(address or HERE)
    on_ray.ask_gateway("order", "deploy", [pool, version])


def down(address: str | None) -> None:
    on_ray.connect(address or HERE)
    on_ray.take_down()
