"""`millstream plan`: how its options are spelled. Loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from millstream.cli_parts import parse_numbers, parse_size, plain_errors

plan = typer.Typer(
    name="plan",
    invoke_without_command=True,
    subcommand_metavar="[COMMAND]",
    help="Calculate what fits, how fast it is and which topology to choose, before anything is rented or loaded.",
    rich_markup_mode="rich",
)

Model = Annotated[
    str,
    typer.Option("--model", "-m", help="A registered model, a checkpoint's folder, or layers=30,width=1536,heads=12,ffn=8960."),
]
Gpus = Annotated[str, typer.Option(help="How many of what: 4xH200, RTX4090, 1024xH100, laptop-cpu; or here, once calibrated.")]
Profile = Annotated[
    Path | None, typer.Option(help="Another calibration than this machine's.", show_default=False, dir_okay=False)
]


@plan.callback()
def search(
    context: typer.Context,
    model: Model = "wan2.1-t2v-1.3b",
    gpus: Gpus = "1xH200",
    size: Annotated[str | None, typer.Option(help="HEIGHTxWIDTH, multiples of 16.", show_default=False)] = None,
    fps: Annotated[float | None, typer.Option(help="Frames a second promised to each session.", show_default=False)] = None,
    sessions: Annotated[int, typer.Option(help="Streams at the same time.")] = 1,
    first_frame: Annotated[
        float | None, typer.Option(help="Seconds until the first frame, at most.", show_default=False)
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Latent frames a chunk sees, its own included.", show_default=False)
    ] = None,
    steps: Annotated[str | None, typer.Option(help="Noise levels, high to low: 1000,750,500,250.", show_default=False)] = None,
    schedule: Annotated[
        str | None, typer.Option(help="self-forcing, krea, streamdiffusion-v2 or longlive.", show_default=False)
    ] = None,
    precision: Annotated[str, typer.Option(help="Of products: native (bf16) or fp8.")] = "native",
    software: Annotated[
        str | None,
        typer.Option(help="Whose kernels: reference, eager, compiled, fused or processor; eager on GPUs.", show_default=False),
    ] = None,
    batch: Annotated[int, typer.Option(help="Sessions that share their model calls.")] = 1,
    video_in: Annotated[bool, typer.Option("--video-in", help="Video to video: pictures are encoded too.")] = False,
    topology: Annotated[
        str | None, typer.Option(help="Only this one: local, front+1, tp2, front+pp2xtp2.", show_default=False)
    ] = None,
    price: Annotated[
        float | None, typer.Option(help="Dollars per device and hour, instead of an assumed price.", show_default=False)
    ] = None,
    most: Annotated[
        str | None, typer.Option("--max", help="The largest that holds: size, window, sessions or batch.", show_default=False)
    ] = None,
    profile: Profile = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Calculate what fits, how fast it is and which topology to choose, before anything is rented or loaded.

    [bold]Try[/]: millstream plan --model wan2.1-t2v-14b --gpus 4xH200 --size 320x576 --fps 24

    Exit code 1 means that no plan holds the promise; the nearest are shown, with what is in the way.
    """
    if context.invoked_subcommand is not None:
        return
    from millstream.commands.plan import PlanRequest, run_plan

    with plain_errors():
        height, width = parse_size(size) if size is not None else (None, None)
        changes: dict[str, Any] = dict(
            height=height, width=width, fps=fps, window=window, steps=parse_numbers(steps) if steps is not None else None
        )
        request = PlanRequest(
            model=model,
            gpus=gpus,
            changes={name: value for name, value in changes.items() if value is not None},
            schedule=schedule,
            sessions=sessions,
            first_frame_s=first_frame,
            precision=precision,
            software=software,
            batch=batch,
            video_in=video_in,
            topology=topology,
            price=price,
            profile=profile,
        )
        holds = run_plan(request, most=most, as_json=as_json)
    if not holds:
        raise typer.Exit(1)


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
        from millstream.commands.plan import profile_path, show_device
        from millstream.commands.plan_calibrate import calibrate as run

        path = out or profile_path()
        show_device(run(device_name=device, out=path))
        typer.echo(path)
