"""The command line: the commands together, and how the program ends."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from millstream import __version__
from millstream.commands.bench.group import bench
from millstream.commands.convert import convert
from millstream.commands.course import course
from millstream.commands.doctor.checks import doctor
from millstream.commands.fleet.group import fleet
from millstream.commands.generate import generate
from millstream.commands.plan.group import plan
from millstream.commands.profile.group import profile
from millstream.commands.replay import replay
from millstream.commands.serve import serve
from millstream.commands.train.group import train, tune
from millstream.commands.usage import UsageError, usage_line
from millstream.core.errors import ConfigError
from millstream.core.torch_settings import settle_torch

app = typer.Typer(
    name="millstream",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Streams video out of causal diffusion transformers while people steer it.",
)
app.add_typer(train)
app.add_typer(plan)
app.add_typer(profile)
app.add_typer(bench)
app.add_typer(fleet)
app.add_typer(course)
for command in (serve, tune, generate, replay, convert, doctor):
    app.command()(command)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    try:
        settle_torch(os.environ)
    except ConfigError as error:
        sys.exit(f"error: {error}")
    try:
        sys.exit(app(standalone_mode=False))
    except UsageError as error:
        if line := usage_line(error):
            typer.echo(f"error: {line}", err=True)
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit("stopped")
