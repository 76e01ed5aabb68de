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
from rich.text import Text

from millstream.commands.wide_console import WIDTH
from millstream.core.errors import ConfigError, MillstreamError
from millstream.fleet import on_ray
from millstream.fleet.config import FleetConfig, read_fleet
from millstream.server.sessions.shared_files import SharedFiles

HERE = "auto"
"""A cluster that runs on this machine."""
POLL_S = 2.0
GONE_AFTER = 3
"""Looks in a row that find no fleet."""


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
        wait_until_told(FleetWatch())
    finally:
        on_ray.take_down()


def needed_cpus(config: FleetConfig) -> float:
    """A laptop's processors are shared by as many replicas as its fleet may have."""
    return sum(table.maximum * table.cpus for table in config.replicas.values())


def wait_until_told(watch: FleetWatch) -> None:
    """By Ctrl-C or SIGTERM, or until the fleet was taken down elsewhere."""
    told = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: told.set())
    while not told.wait(POLL_S):
        if watch.is_over():
            typer.echo("the fleet was taken down elsewhere", err=True)
            return
        for line in watch.failed_starts():
            typer.echo(line, err=True)


class FleetWatch:
    """State of `fleet up` while it waits: is the fleet still up, and which failed starts were printed."""

    def __init__(self) -> None:
        self._last = 0.0
        """When what was printed last happened."""
        self._missed = 0

    def is_over(self) -> bool:
        """Ray starts again what dies, so it is looked more than once."""
        self._missed = 0 if on_ray.is_up() else self._missed + 1
        return self._missed >= GONE_AFTER

    def failed_starts(self) -> list[str]:
        """Return one line for each failed start that was not returned before."""
        try:
            events = on_ray.ask_gateway("status")["events"]
        except MillstreamError:  # it is being started again
            return []
        new = [event for event in events if event["at"] > self._last and event["kind"] == "start failed"]
        self._last = max((event["at"] for event in new), default=self._last)
        return [event["words"] for event in new]


def status(address: str | None, as_json: bool) -> None:
    on_ray.connect(address or HERE)
    standing = on_ray.ask_gateway("status")
    if as_json:
        typer.echo(json.dumps(standing, indent=2))
        return
    console = Console(
        width=max(WIDTH, Console().width)
    )  # a terminal wraps what is longer; an address is never cut
    console.print(_replicas(standing))
    for pool, figures in standing["metrics"]["pools"].items():
        console.print(
            f"{pool}: {figures['ready']} ready, {figures['starting']} starting, {figures['draining']} "
            "draining; "
            f"{figures['sessions']} sessions, {figures['waiting']} waiting, {figures['promised']:.0%} "
            "promised"
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
            Text(each["url"]),  # an address in brackets is no markup
            str(len(each["sessions"])),
            f"{each.get('promised', 0):.0%}",
            str(each.get("misses", 0)),
        )
    return table


def drain(replica_id: str, address: str | None) -> None:
    on_ray.connect(address or HERE)
    on_ray.ask_gateway("order", "drain", [replica_id])
    typer.echo(
        f"{replica_id} takes no more sessions; its sessions move, then it ends: millstream fleet status "
        "shows how far it is"
    )


def scale(pool: str, minimum: int, maximum: int | None, address: str | None) -> None:
    if maximum is not None and maximum < minimum:
        raise ConfigError(f"at most {maximum} replicas cannot be fewer than at least {minimum}")
    on_ray.connect(address or HERE)
    most = maximum or max(minimum, 1)
    on_ray.ask_gateway("order", "resize", [pool, minimum, most])
    typer.echo(f"{pool}: {minimum} to {most} replicas from now on; {_standing_of(pool)}")


def deploy(pool: str, version: str, address: str | None) -> None:
    on_ray.connect(address or HERE)
    on_ray.ask_gateway("order", "deploy", [pool, version])
    typer.echo(f"{pool}: replicas are replaced one by one by others of {version!r}; {_standing_of(pool)}")


def down(address: str | None) -> None:
    on_ray.connect(address or HERE)
    if not on_ray.is_up():
        raise ConfigError("no fleet runs here; start one with millstream fleet up")
    typer.echo(f"the gateway and {on_ray.take_down()} replicas have ended")


def _standing_of(pool: str) -> str:
    figures = on_ray.ask_gateway("status")["metrics"]["pools"][pool]
    return f"{figures['ready']} ready, {figures['starting']} starting, {figures['draining']} draining"
