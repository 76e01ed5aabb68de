"""`plan simulate` and `plan fleet`: how their options are spelled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.options import ShapeOptions, grouped
from millstream.cli.parts import plain_errors
from millstream.cli.plan.options import Gpus, Json, PlannedOptions, plan


@dataclass(frozen=True, kw_only=True)
class CrowdedOptions(PlannedOptions):
    """The same, on enough devices that several replicas share the people."""

    gpus: Gpus = "8xH200"


@plan.command()
@grouped
def simulate(
    *,
    on: CrowdedOptions,
    shape: ShapeOptions,
    arrivals: Annotated[float, typer.Option(help="People a minute.")] = 6.0,
    stay: Annotated[float, typer.Option(help="Seconds they stay, on average.")] = 120.0,
    minutes: Annotated[float, typer.Option(help="How long it goes on.")] = 10.0,
    failures: Annotated[
        float | None, typer.Option(help="Hours between failures of a replica; never if nothing is said.", show_default=False)
    ] = None,
    recovery: Annotated[float, typer.Option(help="Seconds until a failed replica is back.")] = 30.0,
    max_waiting: Annotated[int, typer.Option(help="Places in line; 0 turns away at once.")] = 16,
    spread: Annotated[float, typer.Option(help="How much chunk times vary: deviation over mean.")] = 0.03,
    seed: Annotated[int, typer.Option(help="The same seed gives the same run.")] = 0,
    as_json: Json = False,
) -> None:
    """A plan with people on it: they arrive, are admitted or wait, watch and leave; replicas queue, jitter and fail.

    [bold]Try[/]: millstream plan simulate --gpus 400xH100 --arrivals 300 --failures 24 --minutes 5
    """
    from millstream.commands.plan.run import PlanRequest
    from millstream.commands.plan.simulate import run_plan_simulate
    from millstream.planner.simulate import Scenario

    with plain_errors():
        scenario = Scenario(
            arrivals_per_minute=arrivals,
            stay_s=stay,
            seconds=60 * minutes,
            hours_between_failures=failures,
            recovery_s=recovery,
            max_waiting=max_waiting,
            spread=spread,
            seed=seed,
        )
        run_plan_simulate(PlanRequest(**on.request(shape)), scenario, as_json=as_json)


@plan.command()
def fleet(
    file: Annotated[Path, typer.Argument(help="A fleet.toml; or a recorded trace, .json, to run again.", dir_okay=False)],
    gpus: Annotated[str, typer.Option(help="What replicas run on: a card, or here, once calibrated.")] = "H100",
    sessions: Annotated[int, typer.Option(help="Streams at the same time at the peak.")] = 1000,
    night: Annotated[float, typer.Option(help="Streams at the other end of the day, as a share of that.")] = 0.3,
    stay: Annotated[float, typer.Option(help="Seconds people stay, on average.")] = 1800.0,
    patience: Annotated[float, typer.Option(help="Seconds they wait in line, on average, before they give up.")] = 120.0,
    hours: Annotated[float, typer.Option(help="How long it goes on, from midnight.")] = 24.0,
    failures: Annotated[float, typer.Option(help="Hours between deaths of a replica, and of a node.")] = 720.0,
    start: Annotated[float, typer.Option(help="Seconds until a replica that is started is ready.")] = 120.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same run.")] = 0,
    html: Annotated[
        Path | None, typer.Option(help="Write the day and what promises cost, one file; takes minutes.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """A day of a fleet on paper, by the policy that runs real ones: what it costs, who waits, what deaths and moves do.

    [bold]Try[/]: millstream plan fleet fleet.toml --gpus B200 --sessions 1000
    """
    from millstream.commands.plan.fleet import run_plan_fleet
    from millstream.fleet.day import Day
    from millstream.fleet.trace import Times

    with plain_errors():
        day = Day(
            sessions=sessions,
            night=night,
            stay_s=stay,
            patience_s=patience,
            seconds=3600 * hours,
            hours_between_deaths=failures,
            seed=seed,
        )
        run_plan_fleet(file, day, gpus=gpus, times=Times(start_s=start), html=html, as_json=as_json)
