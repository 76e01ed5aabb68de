"""`millstream tune`: how its options are spelled. Loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.parts import Device, plain_errors


def tune(
    path: Annotated[Path, typer.Argument(metavar="RECIPE", help="TOML: model, rewards, algorithm, steps.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the run; one that was begun goes on. By default named as the recipe is."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the recipe, print what it would do.")] = False,
    device: Device = "auto",
) -> None:
    """Improve a model by what its streams are worth: rollouts, rewards, GRPO or PPO, and a judge that is held back.

    Stop it when you like (Ctrl-C or SIGTERM): the same command goes on to the same bits. Leaves weights that serve takes,
    curves of reward and judge, and clips of every evaluation.
    """
    from millstream.commands.tune import run_tune

    with plain_errors():
        written = run_tune(path, out=out, device=device, dry_run=dry_run)
        if written is not None:
            typer.echo(written)
