"""The command line: how options are spelled. `commands/` does the work."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from millstream import __version__
from millstream.cli.bench import bench
from millstream.cli.course import course
from millstream.cli.fleet import fleet
from millstream.cli.options import PlacedOptions, Schedule, StreamOptions, grouped
from millstream.cli.parts import Limits, Lora, Overwrite, Quiet, TopologyName, Weights, parse_lora, plain_errors
from millstream.cli.plan import plan
from millstream.cli.profile import profile
from millstream.cli.serve import serve
from millstream.cli.train import train
from millstream.cli.tune import tune
from millstream.cli.usage import UsageError, usage_line
from millstream.core.errors import ConfigError
from millstream.core.examples import DEFAULT_PROMPT
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
app.command()(serve)
app.command()(tune)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
@grouped
def generate(
    prompt: Annotated[str, typer.Argument(help="What the stream shows.")] = DEFAULT_PROMPT,
    *,
    on: PlacedOptions,
    stream: StreamOptions,
    out: Annotated[Path, typer.Option("--out", "-o", help="clip.mp4, .webm, .gif, or a folder for PNGs.")] = Path(
        "out/clip.mp4"
    ),
    seconds: Annotated[float | None, typer.Option(help="Length of the clip; 5 if nothing is said.", show_default=False)] = None,
    chunks: Annotated[int | None, typer.Option(help="Length in chunks instead.", show_default=False)] = None,
    schedule: Schedule = None,
    events: Annotated[Path | None, typer.Option(help="Timeline of controls, JSON.", show_default=False)] = None,
    journal: Annotated[
        Path | None, typer.Option(help="Write a journal that replays to the same bits.", show_default=False)
    ] = None,
    video: Annotated[Path | None, typer.Option("--input", "-i", help="A video to restyle.", show_default=False)] = None,
    stream_batch: Annotated[
        int, typer.Option(help="Chunks of the stream under way at once; above 1 the video is approximate.")
    ] = 1,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Turn a prompt, or a video, into video, chunk by chunk.

    [bold]Try[/]: millstream generate "a red balloon over the hills at dusk" --seconds 4

    [bold]Steer it[/]: --events timeline.json, where the file holds
    [{"at": 2, "type": "prompt", "prompt": "a white boat on the sea at dawn", "mode": "recompute"}].
    Types: prompt (mode cut, recompute, keep or blend), cut, steps, seed, noise_scale, window, kv_bias, stop.

    [bold]Repeat it[/]: --journal run.jsonl, then millstream replay run.jsonl --check
    """
    from millstream.commands.generate import GenerateRequest
    from millstream.commands.generate import generate as run

    with plain_errors():
        if video is None and (stream.noise_scale is not None or stream.motion_gain is not None):
            raise ConfigError("--noise-scale and --motion-gain act on an input video; give one with --input")
        request = GenerateRequest(
            options=on.options(),
            prompt=prompt,
            out=out,
            schedule=schedule,
            changes=stream.changes(),
            seconds=seconds,
            chunks=chunks,
            events=events,
            journal=journal,
            video=video,
            stream_batch=stream_batch,
            overwrite=overwrite,
            quiet=quiet,
        )
        run(request)
        typer.echo(out)


@app.command()
def replay(
    journal: Annotated[Path, typer.Argument(help="A journal that generate or serve wrote.")],
    check: Annotated[
        bool, typer.Option("--check", help="Compare every chunk with the journal; exit 1 if one differs.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the video again.", show_default=False)] = None,
    weights: Weights = None,
    video: Annotated[
        Path | None, typer.Option("--input", "-i", help="The input video, if it has moved.", show_default=False)
    ] = None,
    snapshot: Annotated[
        Path | None, typer.Option(help="What its session went on from, if that has moved.", show_default=False)
    ] = None,
    device: Annotated[str | None, typer.Option(help="Another device than the journal's.", show_default=False)] = None,
    fast: Annotated[str, typer.Option(help="auto is what the journal was made with; else as generate has it.")] = "auto",
    precision: Annotated[str, typer.Option("--precision", "--dtype", help="auto is the journal's.")] = "auto",
    topology: TopologyName = "local",
    mesh_limits: Limits = "",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Run a journal again: the same controls, the same noise, the same bits.

    Bits are promised on the same kind of device with the same number of threads and the same speed-ups; otherwise they may
    differ in rounding.
    """
    from millstream.commands.replay import run_replay

    with plain_errors():
        differing = run_replay(
            journal,
            check=check,
            out=out,
            weights=weights or [],
            video=video,
            start=snapshot,
            device=device,
            fast=fast,
            precision=precision,
            topology=topology,
            limits=mesh_limits,
            overwrite=overwrite,
            quiet=quiet,
        )
        if check:
            typer.echo(f"{differing} chunks differ" if differing else "identical")
        if out is not None:
            typer.echo(out)
    if check and differing:
        raise typer.Exit(1)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="A checkpoint file or folder: original Wan, diffusers, .pt, .safetensors.")],
    target: Annotated[Path, typer.Argument(help="Folder to write sharded safetensors and a config to.")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Which model it is, if shapes do not tell.", show_default=False)
    ] = None,
    lora: Lora = None,
    ema: Annotated[bool, typer.Option(help="Prefer averaged weights where a file has both.")] = True,
) -> None:
    """Rewrite weights in our layout, and name every key that is missing, unexpected or of another shape.

    Call it once per file to gather DiT, VAE and text encoder in one folder.
    """
    from millstream.models.weights.convert import convert as run

    with plain_errors():
        report = run(source, target, model=model, loras=[(Path(p), s) for p, s in map(parse_lora, lora or [])], prefer_ema=ema)
        for line in report.lines():
            typer.echo(line)


@app.command()
def doctor(
    data: Annotated[Path, typer.Option(help="Folder that a server would keep things in.")] = Path("out/serve"),
    port: Annotated[int, typer.Option(help="Where it would listen.", min=0, max=65535)] = 8000,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say what software, hardware, codecs and weights are here, what is missing and how to get it.

    Exits with 1 where something is missing that nothing works without.
    """
    from millstream.commands.doctor import checks

    with plain_errors():
        findings = checks.examine(data=data, port=port)
    if as_json:
        typer.echo(json.dumps(checks.as_json(findings), indent=2))
    else:
        for finding in findings:
            typer.echo(finding.line)
    if not checks.is_fit(findings):
        raise typer.Exit(1)


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
