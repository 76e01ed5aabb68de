"""The command line: how options are spelled. `commands/` does the work."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from millstream import __version__
from millstream.cli_parts import parse_lora, parse_numbers, parse_size, plain_errors
from millstream.cli_plan import plan
from millstream.core.errors import ConfigError

app = typer.Typer(
    name="millstream",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Streams video out of causal diffusion transformers while people steer it.",
)
train = typer.Typer(name="train", no_args_is_help=True, help="Train the small model that comes with Millstream.")
app.add_typer(train)
bench = typer.Typer(name="bench", no_args_is_help=True, help="Measure a server from outside.")
app.add_typer(bench)
app.add_typer(plan)


class Positions(str, Enum):
    absolute = "absolute"
    windowed = "windowed"


class Anchor(str, Enum):
    off = "off"
    latent = "latent"
    decoded = "decoded"


DEFAULT_PROMPT = "a red balloon drifts over green hills at dawn"

# Options that more than one command has.
Weights = Annotated[
    list[str] | None,
    typer.Option(
        "--weights",
        "-w",
        help="Folder or file, in any layout we know; repeat for several. Or [bold]random[/].",
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no table.")]
Lora = Annotated[
    list[str] | None,
    typer.Option("--lora", help="LoRA file to merge, with a scale after a colon: style.safetensors:0.8", show_default=False),
]


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
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Run a journal again: the same controls, the same noise, the same bits.

    Bits are promised on the same kind of device with the same number of threads; elsewhere they may differ in rounding.
    """
    from millstream.commands.replay import run_replay

    with plain_errors():
        differing = run_replay(
            journal, check=check, out=out, weights=weights or [], video=video, device=device, overwrite=overwrite, quiet=quiet
        )
        if check:
            typer.echo(f"{differing} chunks differ" if differing else "identical")
        if out is not None:
            typer.echo(out)
    if check and differing:
        raise typer.Exit(1)


@app.command()
def serve(
    model: Annotated[str, typer.Option("--model", "-m", help="A registered model; see [bold]millstream doctor[/].")] = "brook",
    weights: Weights = None,
    lora: Lora = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 for any that is free.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="MILLSTREAM_API_KEY", help="What clients must know; needed on other --hosts.", show_default=False),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Let anybody in who can reach the address.")] = False,
    ice_server: Annotated[
        list[str] | None,
        typer.Option(help="For WebRTC from afar: stun:HOST:PORT or turn:HOST:PORT,USER,CREDENTIAL.", show_default=False),
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="A page elsewhere that may use this; repeat for several.", show_default=False)
    ] = None,
    data: Annotated[Path, typer.Option(help="Folder for recordings, journals and saved sessions.")] = Path("out/serve"),
    memory: Annotated[
        float | None, typer.Option(help="GiB for all sessions; half of what is free if nothing is said.", show_default=False)
    ] = None,
    share: Annotated[float, typer.Option(help="How much of the device may be promised, 0 to 1.")] = 0.9,
    max_waiting: Annotated[int, typer.Option(help="Places in line; 0 refuses at once.")] = 16,
    lead: Annotated[
        float | None, typer.Option(help="Seconds ahead of the viewer; two chunks if nothing is said.", show_default=False)
    ] = None,
    abandon: Annotated[float, typer.Option(help="Seconds after which a session that nobody watches is ended.")] = 120.0,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines for programs.")] = False,
    device: Device = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads.", min=1, show_default=False)] = None,
) -> None:
    """Serve live streams to browsers and programs, each person with a session of their own.

    Prints the address once it listens. [bold]Try[/]: millstream serve --weights random
    """
    with plain_errors():
        from millstream.commands.serve import ServeRequest
        from millstream.commands.serve import serve as run

        request = ServeRequest(
            model=model,
            weights=weights or [],
            loras=[parse_lora(text) for text in lora or []],
            host=host,
            port=port,
            data=data,
            memory_gib=memory,
            share=share,
            max_waiting=max_waiting,
            lead_s=lead,
            abandon_s=abandon,
            api_key=api_key,
            insecure=insecure,
            origins=tuple(allow_origin or ()),
            ice_servers=tuple(ice_server or ()),
            log_json=log_json,
            device=device,
            dtype=dtype,
            threads=threads,
        )
        run(request)


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


@train.command()
def data(
    preview: Annotated[bool, typer.Option("--preview", help="Write a contact sheet, a clip and captions.")] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the preview.")] = Path("out/data"),
    seed: Annotated[int, typer.Option(help="Which scenes.")] = 0,
    count: Annotated[int, typer.Option(help="How many scenes.")] = 8,
    seconds: Annotated[float, typer.Option(help="Length of the clip.")] = 4.0,
    size: Annotated[str, typer.Option(help="HEIGHTxWIDTH of a scene, multiples of 16.")] = "256x256",
    held_out: Annotated[bool, typer.Option("--held-out", help="Only combinations that training never sees.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """The painted world that the small model learns: what is in it, or with --preview what it looks like."""
    from millstream.commands.train_data import PreviewRequest, print_summary
    from millstream.commands.train_data import preview as run

    with plain_errors():
        if not preview:
            print_summary()
            return
        request = PreviewRequest(
            out=out,
            seed=seed,
            count=count,
            seconds=seconds,
            size=parse_size(size),
            held_out=held_out,
            overwrite=overwrite,
        )
        for path in run(request):
            typer.echo(path)


@train.command()
def brook(
    recipe: Annotated[Path | None, typer.Option(help="Another run than the one that ships, TOML.", show_default=False)] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="Every stage in miniature, under two minutes on a CPU.")] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run; one that was begun goes on.")] = Path(
        "out/brook"
    ),
    until: Annotated[str | None, typer.Option(help="Stop after this stage.", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the stages and what they hold in memory.")] = False,
    device: Device = "auto",
) -> None:
    """Train Brook from nothing: VAE, teacher, few-step student, self-forcing, and the classifier that judges it.

    Leaves brook.safetensors and classifier.safetensors in the run's folder. Interrupt it when you like: the same command
    goes on from the last checkpoint, to the same bits.
    """
    from millstream.commands.train_brook import run_train_brook

    with plain_errors():
        run_train_brook(recipe=recipe, smoke=smoke, out=out, device=device, until=until, dry_run=dry_run)


@train.command(name="eval")
def evaluate(
    weights: Annotated[str, typer.Option("--weights", "-w", help="The model to judge: bundled, or a file.")] = "bundled",
    classifier: Annotated[
        Path | None, typer.Option(help="The judge, if not the one that comes with the package.", show_default=False)
    ] = None,
    count: Annotated[int, typer.Option(help="Prompts of each kind, seen and held out.")] = 16,
    seconds: Annotated[str, typer.Option(help="Moments at which streams are judged: 2,10,30,120 shows drift.")] = "2",
    response_pairs: Annotated[int, typer.Option(help="Prompt switches in each of the four modes; 0 for none.")] = 8,
    steps: Annotated[
        int | None, typer.Option(help="Steps a chunk instead of the model's own.", min=1, max=16, show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the figures as JSON too.", show_default=False)] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for pictures of the figures.", show_default=False)] = None,
    device: Device = "auto",
) -> None:
    """Judge a trained Brook: adherence per attribute, distance to renders, drift, crispness, flicker, and how soon a switched
    prompt shows.

    A few minutes on two CPU cores as it stands. [bold]The whole[/]: --count 256 --seconds 2,10,30,120 --response-pairs 64
    """
    from millstream.commands.train_eval import EvalRequest, run_train_eval

    with plain_errors():
        request = EvalRequest(
            weights=weights,
            classifier=classifier,
            count=count,
            seconds=parse_numbers(seconds),
            response_pairs=response_pairs,
            steps=steps,
            device=device,
            out=out,
            plots=plots,
        )
        run_train_eval(request)


@bench.command()
def load(
    sessions: Annotated[int, typer.Option(help="People at once, each with a session: 1 to 64.")] = 4,
    seconds: Annotated[float, typer.Option(help="How long they stay, at most 3600.")] = 60.0,
    url: Annotated[
        str | None,
        typer.Option(help="A server on this machine, ws://127.0.0.1:8000; without it one is started.", show_default=False),
    ] = None,
    fps: Annotated[float, typer.Option(help="Frames a second that each asks for.")] = 16.0,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="For the server that is started.", show_default=False)
    ] = None,
    weights: Weights = None,
    script: Annotated[str, typer.Option(help="What kind of people: calm, busy or rude.")] = "calm",
    connects: Annotated[int, typer.Option(help="Short visits afterwards, at most 1000.")] = 0,
    seed: Annotated[int, typer.Option(help="The same seed acts the same.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the figures as JSON too.", show_default=False)] = None,
    gate: Annotated[bool, typer.Option("--gate", help="Exit 1 if a limit is missed, continuity 0.99 among them.")] = False,
) -> None:
    """Put scripted people on a server over real sockets: they switch prompts, cut, pause, leave and come back.

    Tells for each of them how continuous the picture was, how soon the first frame came and how soon a control showed;
    and what the server's memory did. Only for servers on this machine.
    """
    with plain_errors():
        if url is not None and (model is not None or weights):
            raise ConfigError("--model and --weights are for a server that is started here; leave them out with --url")
        from millstream.commands.bench_load import run_bench_load
        from millstream.load.run import LoadRequest

        started_with = (
            *(("--model", model) if model else ()),
            *(word for path in weights or [] for word in ("--weights", path)),
        )
        request = LoadRequest(
            sessions=sessions,
            seconds=seconds,
            fps=fps,
            script=script,
            connects=connects,
            seed=seed,
            url=url,
            server_options=started_with,
        )
        missed = run_bench_load(request, as_json=as_json, out=out, gate=gate)
    if missed:
        raise typer.Exit(1)


def main() -> None:
    app()
