"""`millstream fleet manifest, dashboard`: files for Kubernetes and Grafana. Needs no Ray."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from millstream.fleet.config import read_fleet
from millstream.fleet.dashboard import dashboard
from millstream.fleet.kuberay import manifest


def print_manifest(path: Path, image: str) -> None:
    typer.echo(json.dumps(manifest(read_fleet(path, secrets=False), image), indent=2))


def print_dashboard() -> None:
    typer.echo(json.dumps(dashboard(), indent=2))
