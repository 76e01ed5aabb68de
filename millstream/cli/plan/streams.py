"""`millstream plan`, `plan scale` and `plan calibrate`: how their options are spelled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.options import ShapeOptions, grouped
from millstream.cli.parts import plain_errors
from millstream.cli.plan.options import Json, PlannedOptions, PromisedOptions, plan


@plan.callback()
@grouped
def search(
    *,
    context: typer.Context,
    on: PromisedOptions,
    shape: ShapeOptions,
    most: Annotated[
        str | None, typer.Option("--max", help="The largest that holds: size, window, sessions or batch.", show_default=False)
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report with plots, one file.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Calculate what fits, how fast it is and which topology to choose, before anything is rented or loaded.

    [bold]Try[/]: millstream plan --model wan2.1-t2v-14b --gpus 4xH200 --size 320x576 --fps 24
    [bold]Or[/]: millstream plan --gpus any --size 480p --sessions 4

    Exit code 1 means that no plan holds the promise; the nearest are shown, with what is in the way.
    """
    if context.invoked_subcommand is not None:
        return
    from millstream.commands.plan.run import PlanRequest, run_plan

    with plain_errors():
        holds = run_plan(PlanRequest(**on.request(shape)), most=most, html=html, as_json=as_json)
    if not holds:
        raise typer.Exit(1)


@plan.command()
@grouped
def scale(
    *,
    on: PlannedOptions,
    shape: ShapeOptions,
    html: Annotated[Path | None, typer.Option(help="Write the curves, one file.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """What more devices buy, from 1 to 1,024: how quick one stream gets, how many all carry, where it stalls and why.

    [bold]Try[/]: millstream plan scale --model wan2.1-t2v-14b --gpus H100 --size 480p --software compiled
    """
    from millstream.commands.plan.run import PlanRequest
    from millstream.commands.plan.scale import run_plan_scale

    with plain_errors():
        run_plan_scale(PlanRequest(**on.request(shape)), html=html, as_json=as_json)


@plan.command()
def calibrate(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Another file than this machine's profile.", show_default=False)
    ] = None,
) -> None:
    """Measure this machine: products, attention, convolutions, copies, launches, and collectives between its ranks.

    Plans use it from then on: for [bold]--gpus here[/], and for a device of the same name. Takes under a minute.
    """
    with plain_errors():
        from millstream.commands.plan.calibrate import calibrate as run
        from millstream.commands.plan.run import profile_path, show_device

        path = out or profile_path()
        show_device(run(device_name=device, out=path))
        typer.echo(path)
