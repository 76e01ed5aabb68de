"""`millstream serve` and `millstream bench`: how their options are spelled. Loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.cli_parts import (
    Device,
    ExchangeGroups,
    Lora,
    TopologyName,
    VAEDevices,
    Weights,
    parse_devices,
    parse_lora,
    plain_errors,
)
from millstream.core.errors import ConfigError

bench = typer.Typer(name="bench", no_args_is_help=True, rich_markup_mode="rich", help="Measure a server from outside.")


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
    batch: Annotated[
        int,
        typer.Option(help="Sessions that may share model calls, where that is faster; above 1 they replay to rounding only."),
    ] = 1,
    lead: Annotated[
        float | None, typer.Option(help="Seconds ahead of the viewer; two chunks if nothing is said.", show_default=False)
    ] = None,
    abandon: Annotated[float, typer.Option(help="Seconds after which a session that nobody watches is ended.")] = 120.0,
    idle: Annotated[float, typer.Option(help="Seconds after which a session that stands still moves to host memory.")] = 60.0,
    max_life: Annotated[
        float | None, typer.Option(help="Seconds any session may live; for ever if nothing is said.", show_default=False)
    ] = None,
    max_chunks: Annotated[
        int | None, typer.Option(help="Chunks any session may make; no end if nothing is said.", min=1, show_default=False)
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines for programs.")] = False,
    device: Device = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads.", min=1, show_default=False)] = None,
    topology: TopologyName = "local",
    exchange_groups: ExchangeGroups = 1,
    vae_devices: VAEDevices = None,
    plan: Annotated[
        Path | None,
        typer.Option(help="What plan --json wrote: model, topology, batch, size, window and steps.", show_default=False),
    ] = None,
) -> None:
    """Serve live streams to browsers and programs, each person with a session of their own.

    Prints the address once it listens. [bold]Try[/]: millstream serve --weights random
    """
    with plain_errors():
        from millstream.commands.serve import HubLimits, ServeRequest
        from millstream.commands.serve import serve as run

        stream = None
        if plan is not None:
            from millstream.commands.plan_use import settings_of

            if (model, topology, batch) != ("brook", "local", 1):
                raise ConfigError("--plan says what --model, --topology and --batch are; leave them out")
            planned = settings_of(plan)
            model, topology, batch, stream = planned.model, str(planned.topology), planned.batch, planned.stream
            if planned.replicas > 1:
                typer.echo(f"the plan counts on {planned.replicas} replicas; this is one of them", err=True)
        request = ServeRequest(
            model=model,
            stream=stream,
            weights=weights or [],
            loras=[parse_lora(text) for text in lora or []],
            host=host,
            port=port,
            data=data,
            memory_gib=memory,
            share=share,
            max_waiting=max_waiting,
            batch=batch,
            lead_s=lead,
            limits=HubLimits(abandon_s=abandon, idle_s=idle, max_life_s=max_life, max_chunks=max_chunks),
            api_key=api_key,
            insecure=insecure,
            origins=tuple(allow_origin or ()),
            ice_servers=tuple(ice_server or ()),
            log_json=log_json,
            device=device,
            dtype=dtype,
            threads=threads,
            topology=topology,
            head_groups=exchange_groups,
            vae_devices=parse_devices(vae_devices),
        )
        run(request)


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
