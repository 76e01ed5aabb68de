"""`millstream fleet`: how its options are spelled. Loads no torch and no Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.commands.options import with_options

fleet = typer.Typer(
    name="fleet", no_args_is_help=True, help="Many servers behind one address, on Ray: docs/fleet.md."
)

Address = Annotated[
    str | None,
    typer.Option(
        help="A Ray cluster: HOST:PORT, ray://HOST:PORT or auto; this machine's if nothing is said.",
        show_default=False,
    ),
]
Pool = Annotated[str, typer.Argument(help="Which replicas, as [replicas.NAME] calls them.")]


@fleet.command()
@with_options
def up(
    config: Annotated[
        Path, typer.Argument(help="fleet.toml: models, topologies, how many, who may use them.")
    ],
    address: Address = None,
) -> None:
    """Start a fleet, or bring one that runs to this configuration; prints its address.

    Without [bold]--address[/] it starts a Ray of its own on this machine, and runs until it is told to stop.
    """
    from millstream.commands.fleet import control

    control.up(config, address)


@fleet.command()
@with_options
def status(
    address: Address = None,
    json: Annotated[bool, typer.Option("--json", help="For programs: all that is known.")] = False,
) -> None:
    """Replicas, sessions, the line, and what happened last."""
    from millstream.commands.fleet import control

    control.status(address, json)


@fleet.command()
@with_options
def drain(
    replica: Annotated[str, typer.Argument(help="As status calls it.")], address: Address = None
) -> None:
    """Move everybody off a replica, then end it. Nobody is cut off."""
    from millstream.commands.fleet import control

    control.drain(replica, address)


@fleet.command()
@with_options
def scale(
    pool: Pool,
    minimum: Annotated[int, typer.Argument(help="Replicas at least.", min=0)],
    maximum: Annotated[int | None, typer.Argument(help="At most; as many if nothing is said.", min=1)] = None,
    address: Address = None,
) -> None:
    """How many replicas there may be."""
    from millstream.commands.fleet import control

    control.scale(pool, minimum, maximum, address)


@fleet.command()
@with_options
def deploy(
    pool: Pool,
    version: Annotated[str, typer.Argument(help="A name for what is installed now.")],
    address: Address = None,
) -> None:
    """Replace replicas one by one by others of a new version. Nobody is cut off."""
    from millstream.commands.fleet import control

    control.deploy(pool, version, address)


@fleet.command()
@with_options
def manifest(
    config: Annotated[Path, typer.Argument(help="fleet.toml.")],
    image: Annotated[str, typer.Option(help="A container with Millstream and Ray in it.")],
) -> None:
    """Print the manifest from which KubeRay runs the fleet on Kubernetes, for kubectl apply -f -."""
    from millstream.commands.fleet import files

    files.print_manifest(config, image)


@fleet.command()
@with_options
def dashboard() -> None:
    """A dashboard for Grafana, to be imported."""
    from millstream.commands.fleet import files

    files.print_dashboard()


@fleet.command()
@with_options
def down(address: Address = None) -> None:
    """End the gateway and every replica."""
    from millstream.commands.fleet import control

    control.down(address)
