"""`millstream serve`: one model, many viewers, until it is told to stop.

The classes below are its options, and each is a table of docs/serving.md. Loads no torch before the options
are read.
"""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, get_type_hints

import typer

from millstream.commands.config_file import ConfigFile, InFile
from millstream.commands.options import PastOptions, PlacedOptions, parse_fps, with_options
from millstream.commands.usage import plain_errors
from millstream.core.config import GIB, StreamConfig, pixel_frames
from millstream.core.engine_config import EngineConfig
from millstream.core.errors import ConfigError, EngineFailed
from millstream.core.examples import EXAMPLES
from millstream.core.presets import find_model
from millstream.core.rewind import NO_REWIND, RewindConfig

if TYPE_CHECKING:
    import socket

    import torch
    from starlette.applications import Starlette

    from millstream.engine.engine import Engine
    from millstream.fleet.membership import Membership
    from millstream.server.access.auth import Access
    from millstream.server.access.keys import Keyring
    from millstream.server.app import AppConfig
    from millstream.server.sessions.file_store import FileStore
    from millstream.server.sessions.hub import HubLimits
    from millstream.server.sessions.model_card import ModelCard
    from millstream.server.sessions.shared_files import SharedFiles
    from millstream.server.transport.peers import IceServer
    from millstream.serving.service import Service

log = logging.getLogger(__name__)

MEMORY_SHARE = 0.5
"""Share of what is free once the model is loaded; the rest is for activations, frames and other programs."""
SHARED_CORES = 1.4
"""Times what a chunk took on a CPU, until one was made beside those who watch, and after one was late: a
browser on the same two cores was seen to make it a quarter more."""
STOP_S = 5
"""For requests under way where the farewell has failed."""
LAST_S = 5.0
"""Beyond the grace: for a mesh to leave, and for what cannot be hurried."""
KEYS = "keys"
"""The tables of a configuration file: `[keys.NAME]`."""


@dataclass(frozen=True, kw_only=True)
class DoorOptions:
    """Set where the server listens, and which clients it lets in."""

    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="0 for any that is free.", min=0, max=65535)] = 8000
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="MILLSTREAM_API_KEY",
            help="What clients must know; needed on other --hosts.",
            show_default=False,
        ),
    ] = field(default=None, repr=False)
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Let in every client that reaches the address, pages that make their name point here among "
            "them.",
        ),
    ] = False
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            help="Certificate, PEM, with those between it and a known one: speak HTTPS.", show_default=False
        ),
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(help="Its private key, PEM, not encrypted.", show_default=False)
    ] = None
    ice_server: Annotated[
        list[str] | None,
        typer.Option(
            help="For WebRTC from afar: stun:HOST:PORT or turn:HOST:PORT,USER,CREDENTIAL.", show_default=False
        ),
    ] = None
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="A page elsewhere that may use this; repeat for several.", show_default=False),
    ] = None
    allow_output: Annotated[
        list[str] | None,
        typer.Option(
            help="Where streams may be sent: rtmp://live.example.org, srt://*:9000, v4l2://video10, ndi://*. "
            "Repeatable.",
            show_default=False,
        ),
    ] = None
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            help="A reverse proxy's address: its X-Forwarded-For names the client. Else all behind it are "
            "one client.",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CapacityOptions:
    """Set how many sessions it runs at once."""

    memory: Annotated[
        float | None,
        typer.Option(
            help="GiB for all sessions; half of what is free if nothing is said.", show_default=False
        ),
    ] = None
    fps: Annotated[
        str,
        typer.Option(
            help="Where a client names none: auto is what the device keeps, up to the rate the model was "
            "made for."
        ),
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
            help="Sessions that may share model calls, where that is faster; above 1 they replay to rounding "
            "only.",
            min=1,
        ),
    ] = 1
    look_ahead: Annotated[
        bool,
        typer.Option(help="Make what is being typed, or asked for the next chunk, while the device is idle."),
    ] = False
    lead: Annotated[
        float | None,
        typer.Option(help="Seconds ahead of the viewer; two chunks if nothing is said.", show_default=False),
    ] = None


@dataclass(frozen=True, kw_only=True)
class LifeOptions:
    """Set how long a session may run, and how long the server takes to stop."""

    abandon: Annotated[
        float, typer.Option(help="Seconds after which a session without viewers is ended.")
    ] = 120.0
    idle: Annotated[
        float, typer.Option(help="Seconds after which a paused session moves to host memory.")
    ] = 60.0
    max_life: Annotated[
        float | None,
        typer.Option(help="Seconds any session may live; for ever if nothing is said.", show_default=False),
    ] = None
    max_chunks: Annotated[
        int | None,
        typer.Option(
            help="Chunks any session may make; no end if nothing is said.", min=1, show_default=False
        ),
    ] = None
    keep: Annotated[
        int | None,
        typer.Option(
            help="Keep every session's state after so many chunks: attach brings it back when the server was "
            "started anew.",
            min=1,
            show_default=False,
        ),
    ] = None
    grace: Annotated[
        float,
        typer.Option(help="Seconds to end in once it is told to stop: chunks, recordings, what is kept."),
    ] = 10.0
    rewind: Annotated[
        int,
        typer.Option(help="States kept of each session, to fork or rewind it there; 0: none.", min=0),
    ] = 8
    rewind_every: Annotated[int, typer.Option(help="Chunks from one kept state to the next.", min=1)] = 4
    rewind_memory: Annotated[
        float,
        typer.Option(
            help="GiB for the kept states of one session; fewer are kept where they are larger.", min=0
        ),
    ] = 0.25

    def rewind_config(self) -> RewindConfig:
        if not self.rewind:
            return NO_REWIND
        if self.rewind_memory == math.inf:
            raise ConfigError("--rewind-memory is GiB for one session's states, got inf")
        return RewindConfig(
            states=self.rewind, every=self.rewind_every, max_bytes=int(self.rewind_memory * GIB)
        )


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Inputs of the server besides clients' messages: docs/inputs.md."""

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
            help="A video that sessions may restyle: a file, looped, or an http, rtmp, rtsp or srt address. "
            "Repeatable.",
            show_default=False,
        ),
    ] = None


def read_config(path: str) -> ConfigFile:
    with plain_errors():
        return ConfigFile.read(path, option="--config", page="docs/serving.md")


def settle_config(context: typer.Context, config: ConfigFile | None) -> ConfigFile | None:
    """Before any other option is looked at."""
    if config is not None:
        with plain_errors():
            config.apply_defaults(context, get_type_hints(ServeOptions, include_extras=True), tables=[KEYS])
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


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Files and logs that the server keeps, and files that it reads its options from."""

    data: Annotated[Path, typer.Option(help="Folder for recordings, journals and saved sessions.")] = Path(
        "out/serve"
    )
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines for programs.")] = False
    plan: Annotated[
        Path | None,
        typer.Option(
            help="What plan --json wrote: model, topology, precision, batch, size, window and steps.",
            show_default=False,
        ),
    ] = None
    config: Config = None


@dataclass(frozen=True, kw_only=True)
class ServeOptions(
    FileOptions, InputOptions, LifeOptions, CapacityOptions, DoorOptions, PastOptions, PlacedOptions
):
    """All that a server is started with."""

    not_of_stream: ClassVar[frozenset[str]] = frozenset({"fps"})

    def engine(self) -> EngineConfig:
        return replace(super().engine(), rewind=self.rewind_config())

    def session_fps(self) -> float | Literal["auto"]:
        """The rate of a session that asks for none."""
        return "auto" if self.fps == "auto" else parse_fps(self.fps)

    def limits(self) -> HubLimits:
        from millstream.server.sessions.hub import HubLimits
        from millstream.server.sessions.outputs.destinations import Destination

        return HubLimits(
            abandon_s=self.abandon,
            idle_s=self.idle,
            max_life_s=self.max_life,
            max_chunks=self.max_chunks,
            keep_chunks=self.keep,
            grace_s=self.grace,
            destinations=tuple(Destination.parse(each) for each in self.allow_output or ()),
        )

    def check(self) -> None:
        """Refuse what no server could do, before anything is loaded."""
        from millstream.core.client_messages import MAX_LEAD_S

        self.session_fps()
        self.rewind_config()
        if not 0 < self.share <= 1:
            raise ConfigError(f"--share must be above 0 and at most 1, got {self.share:g}")
        for option in ("memory", "longest_chunk", "lead"):
            size = getattr(self, option)
            if size is not None and not 0 < size < math.inf:
                raise ConfigError(f"--{option.replace('_', '-')} must be above 0, got {size:g}")
        if self.lead is not None and self.lead > MAX_LEAD_S:
            raise ConfigError(f"--lead may be {MAX_LEAD_S:g} seconds at most, got {self.lead:g}")
        if not 0 < self.grace < math.inf:
            raise ConfigError(f"--grace must be seconds above 0 that have an end, got {self.grace:g}")
        for option in ("abandon", "idle", "max_life"):
            seconds = getattr(self, option)
            if seconds is not None and not seconds > 0:
                raise ConfigError(f"--{option.replace('_', '-')} must be above 0 seconds, got {seconds:g}")

    def with_plan(self) -> tuple[ServeOptions, StreamConfig | None]:
        """Take model, topology, precision, batch and stream from `--plan`, where there is one."""
        if self.plan is None:
            return self, None
        if (
            (self.model, self.topology, self.batch) != ("brook", "local", 1)
            or self.changes()
            or self.schedule
        ):
            raise ConfigError(
                "--plan says what --model, --topology, --batch and the stream are; leave them out"
            )
        from millstream.commands.plan.use import settings_of

        settings = settings_of(self.plan)
        if settings.replicas > 1:
            typer.echo(f"the plan counts on {settings.replicas} replicas; this is one of them", err=True)
        precision = settings.precision if self.precision == "auto" else self.precision
        planned = replace(
            self,
            model=settings.model,
            topology=str(settings.topology),
            precision=precision,
            batch=settings.batch,
        )
        return planned, settings.stream


@with_options
def serve(context: typer.Context, options: ServeOptions) -> None:
    """Serve live streams to browsers and programs, each person with a session of their own.

    Prints the address once it listens. [bold]Try[/]: millstream serve
    """
    with nullcontext() if options.config is None else options.config.located(context):
        options, stream = options.with_plan()
        options.check()
        run_server(options, stream, keyring_of(options.config))


def keyring_of(config: ConfigFile | None) -> Keyring | None:
    """Read the keys that have a name."""
    if config is None or KEYS not in config.content:
        return None
    from millstream.server.access.keys import Keyring, KeyTable

    keyring = Keyring()
    config.each_table(KEYS, KeyTable, keyring.add_table)
    if not keyring.names:
        raise config.refusal((KEYS,), "there are none; add one as [keys.NAME]")
    if keyring.is_read_only:
        raise config.refusal(
            (KEYS,), "all are read-only, so no client could open a session; add one that is not"
        )
    return keyring


def run_server(
    options: ServeOptions, stream: StreamConfig | None = None, keyring: Keyring | None = None
) -> None:
    """Serve until told to stop. What can be refused is refused before a model is loaded; listening comes
    last.

    `stream` is what a session is unless it asks for something else; None is the model's own.
    """
    from millstream.commands.engine_from_options import (
        check_or_join,
        load_engine,
        refuse_experimental,
        resolve,
    )
    from millstream.commands.memory import plain_out_of_memory
    from millstream.engine.device_choice import choose_device
    from millstream.engine.engine import stream_config
    from millstream.parallel.tiles import choose_grid
    from millstream.video.live_source import parse_source

    try:
        from millstream.fleet import member as fleet_member
        from millstream.fleet.membership import Membership
        from millstream.server.access.auth import access_for, check_proxies
        from millstream.server.app import create_app
        from millstream.server.logs import set_up_logging
        from millstream.server.protocol.osc import bind_osc
        from millstream.server.sessions.archive import Archive
        from millstream.server.sessions.file_store import FileStore
        from millstream.server.sessions.hub import SessionHub
        from millstream.server.sessions.shared_files import SharedFiles
        from millstream.server.sessions.sources import Sources
        from millstream.server.transport.listener import raise_descriptor_limit
        from millstream.server.transport.peers import IceServer
        from millstream.server.transport.sockets import listen
        from millstream.server.transport.tls import check_certificate
    except ModuleNotFoundError as missing:
        raise ConfigError(f"serving needs {missing.name}: pip install 'millstream[serve]'") from None

    if options.osc is not None and keyring is not None:
        raise ConfigError(
            "--osc steers sessions without a key's name, and here each has one: leave it or the keys out"
        )
    limits = options.limits()
    fps = options.session_fps()
    check_proxies(tuple(options.trusted_proxy or ()))
    check_certificate(options.tls_cert, options.tls_key)
    member = Membership.from_environment()
    access = (
        fleet_member.access_by_ticket(member)
        if member is not None
        else access_for(
            options.host,
            api_key=options.api_key,
            insecure=options.insecure,
            origins=tuple(options.allow_origin or ()),
            keyring=keyring,
        )
    )
    ice_servers = tuple(IceServer.parse(text) for text in options.ice_server or ())
    stream = stream_config(stream or find_model(options.model).stream, options.schedule, **options.changes())
    check_lead(options.lead, stream, fps)
    engine_config = resolve(options)
    check_memory(options.memory, choose_device(engine_config.device))
    refuse_experimental(engine_config)
    check_or_join(engine_config)
    choose_grid(stream.latent_size, len(engine_config.vae_devices) or 1)
    shared = None if member is None else SharedFiles.at(member.storage)
    store = FileStore(options.data, shared=shared)
    stores = key_stores(options.data, keyring.names if keyring else member.keys if member else (), shared)
    sources = Sources.of(parse_source(text) for text in options.source or ())
    osc = None if options.osc is None else bind_osc(options.osc, insecure=options.insecure)
    listener = listen(options.host, options.port)
    raise_descriptor_limit()
    set_up_logging(as_json=options.log_json)
    with listener, plain_out_of_memory(), load_engine(engine_config, stream) as engine:
        log.info("fast: %s", engine.speed)
        if osc is not None:
            log.info("OSC at %s:%d", *osc.socket.getsockname()[:2])
        service = _service(options, engine, stream)
        card = replace(
            model_card(engine, options.lead, stream, fps), moves=member is not None, sources=sources
        )
        make_hub = partial(
            SessionHub, service, card, archive=Archive(engine, store), stores=stores, limits=limits
        )
        app = create_app(make_hub, replace(app_config(access, ice_servers, member), osc=osc))
        service.start(warm_up=[stream])
        run_until_told(app, listener, service, options)


def check_lead(lead_s: float | None, stream: StreamConfig, fps: float | Literal["auto"]) -> None:
    """Refuse a lead that leaves no time to make a chunk in."""
    from millstream.session.pacing import Pace

    try:
        Pace(
            fps=stream.fps if fps == "auto" else fps,
            chunk_frames=pixel_frames(1, stream.frames_per_chunk),
            lead_s=lead_s,
        )
    except ConfigError as error:
        raise ConfigError(f"--lead: {error}") from None


def check_memory(memory_gib: float | None, device: torch.device) -> None:
    """Refuse more memory than there is at all."""
    from millstream.commands.memory import total_bytes

    has_gib = total_bytes(device) / GIB
    if memory_gib is not None and memory_gib > has_gib:
        raise ConfigError(
            f"--memory {memory_gib:g} GiB is more than {device} has, which is {has_gib:.1f} GiB"
        )


def app_config(access: Access, ice_servers: tuple[IceServer, ...], member: Membership | None) -> AppConfig:
    """A member of a fleet lets in who brings a ticket; the gateway's tickets name the client that it speaks
    for."""
    from millstream.fleet import member as fleet_member
    from millstream.fleet.membership import RATES
    from millstream.server.app import AppConfig

    if member is None:
        return AppConfig(access=access, ice_servers=ice_servers)
    fleet_member.end_with_parent()
    return AppConfig(access=access, ice_servers=ice_servers, rates=RATES, routes=fleet_member.routes(member))


def key_stores(folder: Path, names: Iterable[str], shared: SharedFiles | None = None) -> dict[str, FileStore]:
    """Make a store for each key with a name, apart from all others."""
    from millstream.server.sessions.file_store import FileStore

    apart = {name: None if shared is None else shared.under(f"keys/{name}") for name in names}
    return {name: FileStore(folder / "keys" / name, shared=place) for name, place in apart.items()}


def run_until_told(app: Starlette, listener: socket.socket, service: Service, options: ServeOptions) -> None:
    """Serve until SIGTERM or Ctrl-C, then stop within bounded time. Raises `EngineFailed` if the engine ended
    before that."""
    import uvicorn

    from millstream.server.transport.listener import CONNECTIONS
    from millstream.server.transport.sockets import GracefulServer, ImpatientWebSocket, TimeoutHTTP

    def exit_on_signal(*_: object) -> None:
        """End the process: uvicorn sends the signal again once everything has stopped."""
        _exit_around(service)
        sys.exit(0)

    signal.signal(signal.SIGTERM, exit_on_signal)
    config = uvicorn.Config(
        app,
        loop="asyncio",  # whatever else is installed
        http=TimeoutHTTP,
        ws=ImpatientWebSocket,
        ws_max_size=8 * 2**20,
        ws_ping_interval=20.0,
        ws_ping_timeout=20.0,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS.total,
        proxy_headers=bool(options.trusted_proxy),
        forwarded_allow_ips=list(options.trusted_proxy or ()),
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
        timeout_graceful_shutdown=STOP_S,
    )
    host, port = listener.getsockname()[:2]
    scheme = "http" if options.tls_cert is None else "https"
    typer.echo(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")

    def begin_to_stop() -> None:
        """Whatever hangs, there is an end: it then says where each thread stands."""
        faulthandler.dump_traceback_later(options.grace + LAST_S, exit=True)

    server = GracefulServer(config, lambda: app.state.server.hub.farewell(), begin_to_stop)

    def give_up() -> None:
        begin_to_stop()
        server.should_exit = True

    service.on_failure = give_up
    server.run(sockets=[listener])
    if service.failure is not None:
        raise EngineFailed(
            "the engine has failed and all clients were told; the log says why. Start the server again"
        )
    _exit_around(service)


def _exit_around(service: Service) -> None:
    """One model call that takes longer than any client waits: Python could not end while it goes on."""
    if not service.has_ended:
        logging.shutdown()
        os._exit(0)


def model_card(
    engine: Engine,
    lead_s: float | None = None,
    stream: StreamConfig | None = None,
    fps: float | Literal["auto"] = "auto",
) -> ModelCard:
    from millstream.server.sessions.model_card import ModelCard

    return ModelCard(
        name=engine.spec.name,
        stream=stream or engine.spec.stream,
        read=engine.model.text.embedder.read,
        examples=EXAMPLES,
        fps=fps,
        lead_s=lead_s,
        conditions=engine.spec.conditions,
    )


def _declared_bytes(engine: Engine, config: StreamConfig) -> int:
    """Memory of a session with the states that it keeps to be rewound."""
    from millstream.commands.memory import session_bytes

    one = session_bytes(engine.spec, config, engine.dtype, engine.speed)
    return one * (1 + engine.config.rewind.num_states(one))


def _service(options: ServeOptions, engine: Engine, stream: StreamConfig) -> Service:
    from millstream.commands.memory import free_bytes
    from millstream.serving.admission_types import AdmissionConfig
    from millstream.serving.service import Service

    free = free_bytes(engine.device) - engine.visiting_bytes
    budget = int(options.memory * GIB) if options.memory else int(MEMORY_SHARE * free)
    if options.memory and budget < (one := _declared_bytes(engine, stream)):
        raise ConfigError(
            f"--memory {options.memory:g} GiB holds no session, which takes {one / GIB:.2f} GiB: give more"
        )
    return Service(
        engine,
        admission=AdmissionConfig(
            memory_bytes=budget,
            share=options.share,
            max_waiting=options.max_waiting,
            longest_chunk_s=options.longest_chunk,
            margin=SHARED_CORES if engine.device.type == "cpu" else 1.0,
        ),
        session_bytes=partial(_declared_bytes, engine),
        batch=options.batch,
        look_ahead=options.look_ahead,
    )
