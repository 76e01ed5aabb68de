"""`millstream plan` and its commands. Loads the planner once one of them runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.commands.options import Device, Json, with_options
from millstream.commands.plan.options import (
    ExplainOptions,
    FleetDayOptions,
    Gpus,
    PlanOptions,
    PlanTrainOptions,
    ScaleOptions,
    SimulateOptions,
)

plan = typer.Typer(
    name="plan",
    invoke_without_command=True,
    subcommand_metavar="[COMMAND]",
    help="Calculate what fits, how fast it is and which topology to choose, before anything is rented or "
    "loaded.",
    rich_markup_mode="rich",
)


@plan.callback()
@with_options
def search(context: typer.Context, options: PlanOptions) -> None:
    """Calculate what fits, how fast it is and which topology to choose, before anything is rented or loaded.

    [bold]Try[/]: millstream plan --model wan2.1-t2v-14b --gpus 4xH200 --size 320x576 --fps 24
    [bold]Or[/]: millstream plan --gpus any --size 480p --sessions 4

    Exit code 1 means that no plan holds the promise; the nearest are shown, with what is in the way.
    """
    if context.invoked_subcommand is not None:
        return
    from millstream.commands.plan.run import run_plan

    if not run_plan(options):
        raise typer.Exit(1)


@plan.command()
@with_options
def scale(options: ScaleOptions) -> None:
    """Show what more devices buy, from 1 to 1,024: how quick one stream gets, how many all carry, where it
    stalls and why.

    [bold]Try[/]: millstream plan scale --model wan2.1-t2v-14b --gpus H100 --size 480p --software compiled
    """
    from millstream.commands.plan.scale import run_plan_scale

    run_plan_scale(options)


@plan.command()
@with_options
def calibrate(
    device: Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Another file than this machine's profile.", show_default=False),
    ] = None,
) -> None:
    """Measure this machine: matmuls, attention, convolutions, copies, launches, and collectives between its
    ranks.

    Plans use it from then on: for [bold]--gpus here[/], and for a device of the same name. Takes under a
    minute.
    """
    from millstream.commands.paths import profile_path
    from millstream.commands.plan.calibrate import calibrate as measure
    from millstream.commands.plan.run import show_device

    path = out or profile_path()
    show_device(measure(device_name=device, out=path))
    typer.echo(path)


@plan.command()
@with_options
def simulate(options: SimulateOptions) -> None:
    """A plan with people on it: they arrive, are admitted or wait, watch and leave; replicas queue, jitter
    and fail.

    [bold]Try[/]: millstream plan simulate --gpus 400xH100 --arrivals 300 --failures 24 --minutes 5
    """
    from millstream.commands.plan.simulate import run_plan_simulate
    from millstream.planner.simulate import Scenario

    scenario = Scenario(
        arrivals_per_minute=options.arrivals,
        stay_s=options.stay,
        seconds=60 * options.minutes,
        hours_between_failures=options.failures,
        recovery_s=options.recovery,
        max_waiting=options.max_waiting,
        spread=options.spread,
        seed=options.seed,
    )
    run_plan_simulate(options, scenario, as_json=options.as_json)


@plan.command()
@with_options
def fleet(options: FleetDayOptions) -> None:
    """A day of a fleet on paper, by the policy that runs real ones: what it costs, who waits, what deaths and
    moves do.

    [bold]Try[/]: millstream plan fleet fleet.toml --gpus B200 --sessions 1000
    """
    from millstream.commands.plan.fleet import run_plan_fleet
    from millstream.fleet.day import Day
    from millstream.fleet.trace import Times

    day = Day(
        sessions=options.sessions,
        night=options.night,
        stay_s=options.stay,
        patience_s=options.patience,
        seconds=3600 * options.hours,
        hours_between_deaths=options.failures,
        seed=options.seed,
    )
    times = Times(start_s=options.start)
    run_plan_fleet(
        options.file, day, gpus=options.gpus, times=times, html=options.html, as_json=options.as_json
    )


@plan.command()
@with_options
def explain(options: ExplainOptions) -> None:
    """A single number with its formula filled in, for checking by hand.

    [bold]Try[/]: millstream plan explain window --model wan2.1-t2v-14b --size 480x832 --window 21
    [bold]Or[/]: millstream plan explain kv --model 70b --context 32768
    """
    from millstream.commands.plan.explain import run_plan_explain

    run_plan_explain(options)


@plan.command()
@with_options
def train(options: PlanTrainOptions) -> None:
    """Can this student be distilled with that teacher and critic on these GPUs, which roles go where, and
    what syncing costs.

    A language model is trained by itself, or with [bold]--reward[/] tuned by four models.
    [bold]Try[/]: millstream plan train --student 70b --gpus 64xH100 --context 8192

    Exit code 1 means that no placement fits.
    """
    from millstream.commands.plan.language import run_plan_language
    from millstream.commands.plan.train import run_plan_train
    from millstream.planner.language.decoders import is_decoder

    of_language = is_decoder(options.student)
    options.refuse_foreign(is_decoder=of_language)
    run = run_plan_language if of_language else run_plan_train
    if not run(options):
        raise typer.Exit(1)


@plan.command()
@with_options
def tune(
    path: Annotated[Path, typer.Argument(metavar="RECIPE", help="Of millstream tune.")],
    gpus: Gpus = "1xH200",
    as_json: Json = False,
) -> None:
    """Plan where rollouts and learning of a tuning by reward run on these GPUs: together, in turns or
    apart.

    Exit code 1 means that no placement fits.
    """
    from millstream.commands.plan.tune import run_plan_tune

    if not run_plan_tune(path, gpus, as_json=as_json):
        raise typer.Exit(1)
