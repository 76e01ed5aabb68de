"""What the files of the command line share: options, how values are spelled, and how errors are said."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from millstream.core.config import MAX_FPS, MIN_FPS
from millstream.core.errors import ConfigError, MillstreamError

# Options that more than one command has.
Weights = Annotated[
    list[str] | None,
    typer.Option(
        "--weights",
        "-w",
        help="Folder or file, in any layout we know; repeat for several. Or [bold]random[/] (-whole: its text encoder too).",
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")]
TopologyName = Annotated[
    str, typer.Option("--topology", help="Who works where: local, front+1, front+tp2, front+sp2, front+pp2, front+pp2xtp2.")
]
VAEDevices = Annotated[
    str | None,
    typer.Option(
        "--vae-devices",
        help="The VAE's own device, cuda:1, or several that share each picture: cuda:0,cuda:1.",
        show_default=False,
    ),
]
ExchangeGroups = Annotated[
    int, typer.Option("--exchange-groups", help="With spN: groups that heads travel in, each while the next is projected.")
]
Limits = Annotated[
    str,
    typer.Option(
        "--mesh-limits",
        help="Seconds that ranks are waited for, where weights or chunks take long: start=900,hang=300.",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no table.")]
Lora = Annotated[
    list[str] | None,
    typer.Option("--lora", help="LoRA file to merge, with a scale after a colon: style.safetensors:0.8", show_default=False),
]


def parse_numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(step) for step in text.split(","))
    except ValueError:
        raise ConfigError(f"expected numbers with commas between them, for example 1000,750,500,250, got {text!r}") from None


def parse_lora(text: str) -> tuple[str, float]:
    path, colon, scale = text.rpartition(":")
    try:
        return (path, float(scale)) if colon else (text, 1.0)
    except ValueError:
        return text, 1.0


def parse_devices(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(name.strip() for name in text.split(","))


@contextmanager
def plain_errors() -> Iterator[None]:
    """One line and an exit code for what a person can mend; anything else is a bug and keeps its traceback."""
    try:
        yield
    except MillstreamError as error:
        if _is_mine_to_say(str(error)):
            typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt as interrupt:
        typer.echo(str(interrupt) or "stopped", err=True)
        raise typer.Exit(130) from None


def _is_mine_to_say(line: str) -> bool:
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return True
    from millstream.commands.said_once import is_first_to_say

    return is_first_to_say(line)


def parse_fps(text: str) -> float:
    """A frame rate as it is typed."""
    try:
        fps = float(text)
    except ValueError:
        fps = math.nan
    if not MIN_FPS <= fps <= MAX_FPS:
        raise ConfigError(f"--fps must be auto or between {MIN_FPS:g} and {MAX_FPS:g}, got {text}")
    return fps
