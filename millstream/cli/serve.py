"""`millstream serve`: how its options are spelled. Loads no torch."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.config_file import ConfigFile, InFile
from millstream.cli.options import PastOptions, PlacedOptions, Schedule, grouped
from millstream.cli.parts import parse_fps, plain_errors
from millstream.core.config import GIB, StreamConfig
from millstream.core.engine_config import EngineOptions
from millstream.core.errors import ConfigError
from millstream.core.rewind import NO_REWIND, RewindConfig

if TYPE_CHECKING:
    from millstream.server.access.keys import Keyring

KEYS = "keys"
"""The tables of a configuration file: `[keys.NAME]`."""


@dataclass(frozen=True, kw_only=True)
class DoorOptions:
    """Where it listens, and who may come in."""

    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="0 for any that is free.", min=0, max=65535)] = 8000
    api_key: Annotated[
        str | None,
        typer.Option(envvar="MILLSTREAM_API_KEY", help="What clients must know; needed on other --hosts.", show_default=False),
    ] = None
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Let anybody in who can reach the address, pages that make their name point here among them."
        ),
    ] = False
    tls_cert: Annotated[
        Path | None,
        typer.Option(help="Certificate, PEM, with those between it and a known one: speak HTTPS.", show_default=False),
    ] = None
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, PEM, not encrypted.", show_default=False)] = None
    ice_server: Annotated[
        list[str] | None,
        typer.Option(help="For WebRTC from afar: stun:HOST:PORT or turn:HOST:PORT,USER,CREDENTIAL.", show_default=False),
    ] = None
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="A page elsewhere that may use this; repeat for several.", show_default=False)
    ] = None
    allow_output: Annotated[
        list[str] | None,
        typer.Option(
            help="Where streams may be sent: rtmp://live.example.org, srt://*:9000, v4l2://video10, ndi://*. Repeatable.",
            show_default=False,
        ),
    ] = None

    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            help="A reverse proxy's address: its X-Forwarded-For says who asks. Else everybody behind it is one client.",
            show_default=False,
        ),
    ] = None

    def request(self) -> dict[str, Any]:
        """Fields of a ServeRequest."""
        return dict(
            host=self.host,
            port=self.port,
            api_key=self.api_key,
            insecure=self.insecure,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            ice_servers=tuple(self.ice_server or ()),
            origins=tuple(self.allow_origin or ()),
            proxies=tuple(self.trusted_proxy or ()),
        )


@dataclass(frozen=True, kw_only=True)
class RoomOptions:
    """How many it takes at once."""

    memory: Annotated[
        float | None, typer.Option(help="GiB for all sessions; half of what is free if nothing is said.", show_default=False)
    ] = None
    fps: Annotated[
        str,
        typer.Option(help="Where a client names none: auto is what the device keeps, up to the rate the model was made for."),
        InFile(float | str),
    ] = "auto"
    share: Annotated[float, typer.Option(help="How much of the device may be promised, 0 to 1.")] = 0.98
    longest_chunk: Annotated[
        float,
        typer.Option(help="Seconds that one chunk may take, for others wait; the model's own may always."),
    ] = 30.0
    max_waiting: Annotated[int, typer.Option(help="Places in line; 0 refuses at once.", min=0)] = 16
    batch: Annotated[
        int,
        typer.Option(
            help="Sessions that may share model calls, where that is faster; above 1 they replay to rounding only.", min=1
        ),
    ] = 1
    look_ahead: Annotated[
        bool, typer.Option(help="Make what is being typed, or asked for the next chunk, while the device is idle.")
    ] = False
    lead: Annotated[
        float | None, typer.Option(help="Seconds ahead of the viewer; two chunks if nothing is said.", show_default=False)
    ] = None

    def request(self) -> dict[str, Any]:
        """Fields of a ServeRequest."""
        return dict(
            memory_gib=self.memory,
            fps="auto" if self.fps == "auto" else parse_fps(self.fps),
            share=self.share,
            longest_chunk_s=self.longest_chunk,
            max_waiting=self.max_waiting,
            batch=self.batch,
            look_ahead=self.look_ahead,
            lead_s=self.lead,
        )


@dataclass(frozen=True, kw_only=True)
class LifeOptions:
    """How long a session may go on, and the server once it is told to stop."""

    abandon: Annotated[float, typer.Option(help="Seconds after which a session that nobody watches is ended.")] = 120.0
    idle: Annotated[float, typer.Option(help="Seconds after which a session that stands still moves to host memory.")] = 60.0
    max_life: Annotated[
        float | None, typer.Option(help="Seconds any session may live; for ever if nothing is said.", show_default=False)
    ] = None
    max_chunks: Annotated[
        int | None, typer.Option(help="Chunks any session may make; no end if nothing is said.", min=1, show_default=False)
    ] = None

    keep: Annotated[
        int | None,
        typer.Option(
            help="Keep every session's state after so many chunks: attach brings it back when the server was started anew.",
            min=1,
            show_default=False,
        ),
    ] = None

    grace: Annotated[
        float, typer.Option(help="Seconds to end in once it is told to stop: chunks, recordings, what is kept.")
    ] = 10.0
    rewind: Annotated[
        int,
        typer.Option(help="States kept of each session, to fork or rewind it there; 0: none.", min=0),
    ] = 8
    rewind_every: Annotated[int, typer.Option(help="Chunks from one kept state to the next.", min=1)] = 4
    rewind_memory: Annotated[
        float, typer.Option(help="GiB for the kept states of one session; fewer are kept where they are larger.", min=0)
    ] = 0.25

    def rewind_config(self) -> RewindConfig:
        if not self.rewind:
            return NO_REWIND
        if self.rewind_memory == math.inf:
            raise ConfigError("--rewind-memory is GiB for one session's states, got inf")
        return RewindConfig(states=self.rewind, every=self.rewind_every, max_bytes=int(self.rewind_memory * GIB))

    def limits(self) -> dict[str, Any]:
        """Fields of HubLimits."""
        return dict(
            abandon_s=self.abandon,
            idle_s=self.idle,
            max_life_s=self.max_life,
            max_chunks=self.max_chunks,
            keep_chunks=self.keep,
            grace_s=self.grace,
        )


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """What it takes in besides what clients say: docs/inputs.md."""

    osc: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Steer sessions by OSC to this UDP port; of this machine alone, unless HOST is named.",
            show_default=False,
        ),
        InFile(int | str),
    ] = None
    source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PLACE",
            help="A video that sessions may restyle: a file, looped, or an http, rtmp, rtsp or srt address. Repeatable.",
            show_default=False,
        ),
    ] = None

    def request(self) -> dict[str, Any]:
        """Fields of a ServeRequest."""
        return dict(osc=self.osc, sources=tuple(self.source or ()))


def read_config(path: str) -> ConfigFile:
    with plain_errors():
        return ConfigFile.read(path, option="--config", page="docs/serving.md")


def settle_config(context: typer.Context, config: ConfigFile | None) -> ConfigFile | None:
    """Before any other option is looked at."""
    if config is not None:
        with plain_errors():
            config.settle(context, serve.__annotations__, tables=[KEYS])
    return config


Config = Annotated[
    ConfigFile | None,
    typer.Option(
        parser=read_config,
        callback=settle_config,
        is_eager=True,
        metavar="FILE",
        help="All of these in a file, and keys with names: docs/serving.md. What is said here wins over it.",
        show_default=False,
    ),
]


def keyring_of(config: ConfigFile) -> Keyring | None:
    """Of the keys that have a name."""
    from millstream.server.access.keys import Keyring, KeyTable

    if KEYS not in config.content:
        return None
    keyring = Keyring()
    config.each_table(KEYS, KeyTable, keyring.add_table)
    if not keyring.names:
        raise config.refusal((KEYS,), "there are none; add one as [keys.NAME]")
    if keyring.is_read_only:
        raise config.refusal((KEYS,), "all are read-only, so nobody could open a session; add one that is not")
    return keyring


def planned(path: Path, on: PlacedOptions, room: RoomOptions) -> tuple[PlacedOptions, RoomOptions, StreamConfig]:
    """The same as a plan has them, and its stream."""
    from millstream.commands.plan.use import settings_of

    settings = settings_of(path)
    if settings.replicas > 1:
        typer.echo(f"the plan counts on {settings.replicas} replicas; this is one of them", err=True)
    precision = settings.precision if on.precision == "auto" else on.precision
    on = replace(on, model=settings.model, topology=str(settings.topology), precision=precision)
    return on, replace(room, batch=settings.batch), settings.stream


def with_rewind(options: EngineOptions, rewind: RewindConfig) -> EngineOptions:
    return replace(options, engine=replace(options.engine, rewind=rewind))


@grouped
def serve(
    context: typer.Context,
    *,
    on: PlacedOptions,
    shape: PastOptions,
    schedule: Schedule = None,
    doors: DoorOptions,
    room: RoomOptions,
    lives: LifeOptions,
    inputs: InputOptions,
    data: Annotated[Path, typer.Option(help="Folder for recordings, journals and saved sessions.")] = Path("out/serve"),
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines for programs.")] = False,
    plan: Annotated[
        Path | None,
        typer.Option(
            help="What plan --json wrote: model, topology, precision, batch, size, window and steps.", show_default=False
        ),
    ] = None,
    config: Config = None,
) -> None:
    """Serve live streams to browsers and programs, each person with a session of their own.

    Prints the address once it listens. [bold]Try[/]: millstream serve
    """
    with plain_errors(), config.located(context) if config is not None else nullcontext():
        from millstream.commands.serve import ServeRequest
        from millstream.commands.serve import serve as run
        from millstream.server.sessions.hub import HubLimits
        from millstream.server.sessions.outputs.destinations import Destination

        stream = None
        if plan is not None:
            if (on.model, on.topology, room.batch) != ("brook", "local", 1) or shape.changes() or schedule:
                raise ConfigError("--plan says what --model, --topology, --batch and the stream are; leave them out")
            on, room, stream = planned(plan, on, room)
        request = ServeRequest(
            options=with_rewind(on.options(), lives.rewind_config()),
            **doors.request(),
            **room.request(),
            **inputs.request(),
            stream=stream,
            schedule=schedule,
            changes=shape.changes(),
            data=data,
            limits=HubLimits(
                **lives.limits(), destinations=tuple(Destination.parse(each) for each in doors.allow_output or ())
            ),
            keyring=None if config is None else keyring_of(config),
            log_json=log_json,
        )
        run(request)
