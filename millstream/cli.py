"""The command line: how options are spelled. `commands/` does the work."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from millstream import __version__
from millstream.cli_bench import overlap, quality, stream
from millstream.cli_parts import (
    Device,
    ExchangeGroups,
    Lora,
    Overwrite,
    Quiet,
    TopologyName,
    VAEDevices,
    Weights,
    parse_devices,
    parse_lora,
    parse_numbers,
    parse_size,
    plain_errors,
)
from millstream.cli_plan import plan
from millstream.cli_profile import profile
from millstream.cli_serve import bench, serve
from millstream.cli_train import train
from millstream.core.errors import ConfigError

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
app.command()(serve)
bench.command()(stream)
bench.command()(quality)
bench.command()(overlap)


class Positions(str, Enum):
    absolute = "absolute"
    windowed = "windowed"


class Anchor(str, Enum):
    off = "off"
    latent = "latent"
    decoded = "decoded"


DEFAULT_PROMPT = "a red balloon drifts over green hills at dawn"


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="What the stream shows.")] = DEFAULT_PROMPT,
    model: Annotated[str, typer.Option("--model", "-m", help="A registered model; see [bold]millstream doctor[/].")] = "brook",
    weights: Weights = None,
    lora: Lora = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="clip.mp4, .webm, .gif, or a folder for PNGs.")] = Path(
        "out/clip.mp4"
    ),
    seconds: Annotated[float | None, typer.Option(help="Length of the clip; 5 if nothing is said.", show_default=False)] = None,
    chunks: Annotated[int | None, typer.Option(help="Length in chunks instead.", show_default=False)] = None,
    size: Annotated[str | None, typer.Option(help="HEIGHTxWIDTH, multiples of 16.", show_default=False)] = None,
    fps: Annotated[float | None, typer.Option(help="Frames a second of the file.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="The same seed and controls give the same video.")] = 0,
    steps: Annotated[str | None, typer.Option(help="Noise levels, high to low: 1000,750,500,250.", show_default=False)] = None,
    schedule: Annotated[
        str | None, typer.Option(help="self-forcing, krea, streamdiffusion-v2 or longlive.", show_default=False)
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Latent frames a chunk sees, its own included.", show_default=False)
    ] = None,
    sink: Annotated[int | None, typer.Option(help="First frames that never leave the window.", show_default=False)] = None,
    positions: Annotated[Positions | None, typer.Option(help="windowed for streams without end.", show_default=False)] = None,
    anchor: Annotated[Anchor | None, typer.Option(help="Rebuild the window before each chunk.", show_default=False)] = None,
    context_noise: Annotated[float | None, typer.Option(help="Noise level the window is kept at.", show_default=False)] = None,
    kv_bias: Annotated[float | None, typer.Option(help="Weight of the past in attention, 0 to 1.", show_default=False)] = None,
    events: Annotated[Path | None, typer.Option(help="Timeline of controls, JSON.", show_default=False)] = None,
    journal: Annotated[
        Path | None, typer.Option(help="Write a journal that replays to the same bits.", show_default=False)
    ] = None,
    video: Annotated[Path | None, typer.Option("--input", "-i", help="A video to restyle.", show_default=False)] = None,
    noise_scale: Annotated[float | None, typer.Option(help="With --input: share of noise, 0 to 1.", show_default=False)] = None,
    motion_gain: Annotated[
        float | None, typer.Option(help="With --input: noise motion adds; 0 is off.", show_default=False)
    ] = None,
    device: Device = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads.", min=1, show_default=False)] = None,
    topology: TopologyName = "local",
    exchange_groups: ExchangeGroups = 1,
    vae_devices: VAEDevices = None,
    stream_batch: Annotated[
        int, typer.Option(help="Chunks of the stream under way at once; above 1 the video is approximate.")
    ] = 1,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Turn a prompt, or a video, into video, chunk by chunk.

    [bold]Try[/]: millstream generate "a kite over the sea" --weights random --seconds 4

    [bold]Steer it[/]: --events timeline.json, where the file holds
    [{"at": 2, "type": "prompt", "prompt": "the same sea in a storm", "mode": "recompute"}].
    Types: prompt (mode cut, recompute, keep or blend), cut, steps, seed, noise_scale, window, kv_bias, stop.

    [bold]Repeat it[/]: --journal run.jsonl, then millstream replay run.jsonl --check
    """
    from millstream.commands.generate import GenerateRequest
    from millstream.commands.generate import generate as run

    with plain_errors():
        if video is None and (noise_scale is not None or motion_gain is not None):
            raise ConfigError("--noise-scale and --motion-gain act on an input video; give one with --input")
        height, width = parse_size(size) if size is not None else (None, None)
        changes: dict[str, Any] = dict(
            height=height,
            width=width,
            fps=fps,
            seed=seed,
            steps=parse_numbers(steps) if steps is not None else None,
            window=window,
            sink=sink,
            positions=positions and positions.value,
            anchor=anchor and anchor.value,
            context_noise=context_noise,
            kv_bias=kv_bias,
            noise_scale=noise_scale,
            motion_gain=motion_gain,
        )
        request = GenerateRequest(
            prompt=prompt,
            model=model,
            weights=weights or [],
            loras=[parse_lora(text) for text in lora or []],
            out=out,
            schedule=schedule,
            changes={name: value for name, value in changes.items() if value is not None},
            seconds=seconds,
            chunks=chunks,
            events=events,
            journal=journal,
            video=video,
            device=device,
            dtype=dtype,
            threads=threads,
            topology=topology,
            head_groups=exchange_groups,
            vae_devices=parse_devices(vae_devices),
            stream_batch=stream_batch,
            overwrite=overwrite,
            quiet=quiet,
        )
        run(request)
        typer.echo(out)


@app.command()
def replay(
    journal: Annotated[Path, typer.Argument(help="A journal that generate wrote.")],
    check: Annotated[
        bool, typer.Option("--check", help="Compare every chunk with the journal; exit 1 if one differs.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the video again.", show_default=False)] = None,
    weights: Weights = None,
    video: Annotated[
        Path | None, typer.Option("--input", "-i", help="The input video, if it has moved.", show_default=False)
    ] = None,
    device: Annotated[str | None, typer.Option(help="Another device than the journal's.", show_default=False)] = None,
    topology: TopologyName = "local",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Run a journal again: the same controls, the same noise, the same bits.

    Bits are promised on the same kind of device with the same number of threads; elsewhere they may differ in rounding.
    """
    from millstream.commands.replay import run_replay

    with plain_errors():
        differing = run_replay(
            journal,
            check=check,
            out=out,
            weights=weights or [],
            video=video,
            device=device,
            topology=topology,
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
def doctor(as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False) -> None:
    """Say what hardware, backends, codecs and weights are here, and what is missing."""
    from rich.console import Console
    from rich.table import Table

    from millstream.commands import doctor as checks

    with plain_errors():
        findings = checks.examine()
    if as_json:
        typer.echo(json.dumps(checks.as_json(findings), indent=2))
        return
    table = Table("", "what", "found", "what to do")
    for finding in findings:
        table.add_row(
            "[green]ok[/]" if finding.ok else "[yellow]--[/]", f"{finding.area} {finding.name}", finding.found, finding.fix
        )
    Console().print(table)


def main() -> None:
    app()
