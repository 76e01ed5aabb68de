"""`millstream serve`: one model, many people, until it is told to stop."""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import typer

from millstream.commands.engine_from_options import check_or_join, load_engine, resolve
from millstream.commands.memory import free_bytes, plain_out_of_memory, session_bytes, total_bytes
from millstream.core.client_messages import MAX_LEAD_S
from millstream.core.config import GIB, StreamConfig, pixel_frames
from millstream.core.engine_config import EngineOptions
from millstream.core.errors import ConfigError, EngineFailed
from millstream.core.examples import EXAMPLES
from millstream.core.presets import find_model
from millstream.engine.device_choice import choose_device
from millstream.engine.engine import Engine, stream_config
from millstream.parallel.tiles import choose_grid
from millstream.serving.admission_types import AdmissionConfig
from millstream.serving.service import Service
from millstream.session.pacing import Pace
from millstream.video.live_source import parse_source

try:
    import uvicorn
    from starlette.applications import Starlette

    from millstream.fleet import member as fleet_member
    from millstream.fleet.membership import Membership
    from millstream.server.access.auth import Access, access_for, check_proxies
    from millstream.server.access.budgets import ClientRates
    from millstream.server.access.keys import Keyring
    from millstream.server.app import AppConfig, create_app
    from millstream.server.logs import set_up_logging
    from millstream.server.protocol.osc import bind_osc
    from millstream.server.sessions.archive import Archive
    from millstream.server.sessions.file_store import FileStore
    from millstream.server.sessions.hub import HubLimits, ModelCard, SessionHub
    from millstream.server.sessions.shared_files import SharedFiles
    from millstream.server.sessions.sources import Sources
    from millstream.server.transport.peers import IceServer
    from millstream.server.transport.sockets import CONNECTIONS, ImpatientHTTP, ImpatientWebSocket, PoliteServer, listen
    from millstream.server.transport.tls import check_certificate
except ModuleNotFoundError as missing:
    raise ConfigError(f"serving needs {missing.name}: pip install 'millstream[serve]'") from None

log = logging.getLogger(__name__)

MEMORY_SHARE = 0.5
"""Of what is free once the model is loaded: the rest is for activations, pictures and everybody else."""
SHARED_CORES = 1.4
"""Times what a chunk took on a CPU, until one was made beside those who watch, and after one was late: a browser on the same
two cores was seen to make it a quarter more."""
STOP_S = 5
"""For requests under way where the farewell has failed."""
LAST_S = 5.0
"""Beyond the grace: for a mesh to leave, and for what nobody can hurry."""
NO_LIMITS = ClientRates(requests=(1e9, 1e9), saves=(1e9, 1e9), uploads=(1e9, 1e9), offers=(1e9, 1e9))


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeRequest:
    options: EngineOptions
    host: str = "127.0.0.1"
    port: int = 8000
    data: Path = Path("out/serve")
    stream: StreamConfig | None = None
    """What a session is unless it asks for something else; None: the model's own."""
    schedule: str | None = None
    """A published one, laid over that."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Single settings, laid over both."""
    memory_gib: float | None = None
    """For all sessions together; None: half of what is free."""
    fps: float | Literal["auto"] = "auto"
    """What a session plays at unless it asks for something else."""
    share: float = 0.98
    longest_chunk_s: float = 30.0
    max_waiting: int = 16
    batch: int = 1
    """Sessions that may share model calls."""
    look_ahead: bool = False
    """Whether idle time goes into chunks that may be asked for."""
    lead_s: float | None = None
    limits: HubLimits = field(default_factory=HubLimits)
    api_key: str | None = field(default=None, repr=False)
    keyring: Keyring | None = None
    """Of keys with names, instead of that one."""
    insecure: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    origins: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    """Addresses whose word is taken for who asks."""
    ice_servers: tuple[str, ...] = ()
    osc: str | None = None
    """Where to listen for OSC: PORT or HOST:PORT."""
    sources: tuple[str, ...] = ()
    """Videos that sessions may restyle: NAME=FILE or NAME=ADDRESS."""
    log_json: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"--share must be above 0 and at most 1, got {self.share:g}")
        sizes = {"--memory": self.memory_gib, "--longest-chunk": self.longest_chunk_s, "--lead": self.lead_s}
        for option, size in sizes.items():
            if size is not None and not 0 < size < math.inf:
                raise ConfigError(f"{option} must be above 0, got {size:g}")
        if self.lead_s is not None and self.lead_s > MAX_LEAD_S:
            raise ConfigError(f"--lead may be {MAX_LEAD_S:g} seconds at most, got {self.lead_s:g}")
        if not 0 < self.limits.grace_s < math.inf:
            raise ConfigError(f"--grace must be seconds above 0 that have an end, got {self.limits.grace_s:g}")
        if self.osc is not None and self.keyring is not None:
            raise ConfigError("--osc steers sessions without a key's name, and here each has one: leave it or the keys out")
        patience = {"--abandon": self.limits.abandon_s, "--idle": self.limits.idle_s, "--max-life": self.limits.max_life_s}
        for option, seconds in patience.items():
            if seconds is not None and not seconds > 0:
                raise ConfigError(f"{option} must be above 0 seconds, got {seconds:g}")


def check_lead(lead_s: float | None, stream: StreamConfig, fps: float | Literal["auto"]) -> None:
    """That there is time to make a chunk in."""
    try:
        Pace(fps=stream.fps if fps == "auto" else fps, chunk_frames=pixel_frames(1, stream.frames_per_chunk), lead_s=lead_s)
    except ConfigError as error:
        raise ConfigError(f"--lead: {error}") from None


def check_memory(memory_gib: float | None, device: torch.device) -> None:
    """That there is as much at all."""
    has_gib = total_bytes(device) / GIB
    if memory_gib is not None and memory_gib > has_gib:
        raise ConfigError(f"--memory {memory_gib:g} GiB is more than {device} has, which is {has_gib:.1f} GiB")


def serve(request: ServeRequest) -> None:
    """Everything that can be refused is refused before a model is loaded; listening comes last."""
    check_proxies(request.proxies)
    check_certificate(request.tls_cert, request.tls_key)
    keyring = request.keyring
    member = Membership.from_environment()
    access = (
        fleet_member.access_by_ticket(member)
        if member is not None
        else access_for(
            request.host, api_key=request.api_key, insecure=request.insecure, origins=request.origins, keyring=keyring
        )
    )
    ice_servers = tuple(IceServer.parse(text) for text in request.ice_servers)
    asked = request.options.engine
    stream = stream_config(request.stream or find_model(asked.model).stream, request.schedule, **request.changes)
    check_lead(request.lead_s, stream, request.fps)
    engine_config = resolve(request.options)
    check_memory(request.memory_gib, choose_device(engine_config.device))
    check_or_join(engine_config)
    choose_grid(stream.latent_size, len(asked.vae_devices) or 1)
    shared = None if member is None else SharedFiles.at(member.storage)
    store = FileStore(request.data, shared=shared)
    stores = key_stores(request.data, keyring.names if keyring else member.keys if member else (), shared)
    sources = Sources.of(parse_source(text) for text in request.sources)
    osc = None if request.osc is None else bind_osc(request.osc, insecure=request.insecure)
    listener = listen(request.host, request.port)
    set_up_logging(as_json=request.log_json)
    with listener, plain_out_of_memory(), load_engine(engine_config, stream) as engine:
        log.info("fast: %s", engine.speed)
        if osc is not None:
            log.info("OSC at %s:%d", *osc.socket.getsockname()[:2])
        service = _service(request, engine, stream)
        card = replace(model_card(engine, request.lead_s, stream, request.fps), moves=member is not None, sources=sources)
        make_hub = partial(SessionHub, service, card, archive=Archive(engine, store), stores=stores, limits=request.limits)
        app = create_app(make_hub, replace(app_config(access, ice_servers, member), osc=osc))
        service.start(warm_up=[stream])
        run_until_told(app, listener, service, request)


def app_config(access: Access, ice_servers: tuple[IceServer, ...], member: Membership | None) -> AppConfig:
    """A member of a fleet has its gateway keep clients to their limits: to it, all who come by that are one."""
    if member is None:
        return AppConfig(access=access, ice_servers=ice_servers)
    fleet_member.end_with_parent()
    return AppConfig(access=access, ice_servers=ice_servers, rates=NO_LIMITS, routes=fleet_member.routes(member))


def key_stores(folder: Path, names: Iterable[str], shared: SharedFiles | None = None) -> dict[str, FileStore]:
    """What each key with a name keeps, apart from all others."""
    apart = {name: None if shared is None else shared.under(f"keys/{name}") for name in names}
    return {name: FileStore(folder / "keys" / name, shared=place) for name, place in apart.items()}


def run_until_told(app: Starlette, listener: socket.socket, service: Service, request: ServeRequest) -> None:
    """Serve until SIGTERM or Ctrl-C, then stop within bounded time. Raises `EngineFailed` if the engine ended before that."""

    def leave(*_: object) -> None:
        """What is left to do once everything has stopped: uvicorn sends the signal again."""
        _exit_around(service)
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)
    config = uvicorn.Config(
        app,
        loop="asyncio",  # whatever else is installed
        http=ImpatientHTTP,
        ws=ImpatientWebSocket,
        ws_max_size=8 * 2**20,
        ws_ping_interval=20.0,
        ws_ping_timeout=20.0,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS.total,
        proxy_headers=bool(request.proxies),
        forwarded_allow_ips=list(request.proxies),
        ssl_certfile=request.tls_cert,
        ssl_keyfile=request.tls_key,
        timeout_graceful_shutdown=STOP_S,
    )
    host, port = listener.getsockname()[:2]
    scheme = "http" if request.tls_cert is None else "https"
    typer.echo(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")

    def begin_to_stop() -> None:
        """Whatever hangs, there is an end: it then says where each thread stands."""
        faulthandler.dump_traceback_later(request.limits.grace_s + LAST_S, exit=True)

    server = PoliteServer(config, lambda: app.state.server.hub.farewell(), begin_to_stop)

    def give_up() -> None:
        begin_to_stop()
        server.should_exit = True

    service.on_failure = give_up
    server.run(sockets=[listener])
    if service.failure is not None:
        raise EngineFailed("the engine has failed and everybody was told; the log says why. Start the server again")
    _exit_around(service)


def _exit_around(service: Service) -> None:
    """One model call that takes longer than anybody waits: Python could not end while it goes on."""
    if not service.has_ended:
        logging.shutdown()
        os._exit(0)


def model_card(
    engine: Engine,
    lead_s: float | None = None,
    stream: StreamConfig | None = None,
    fps: float | Literal["auto"] = "auto",
) -> ModelCard:
    return ModelCard(
        name=engine.spec.name,
        stream=stream or engine.spec.stream,
        unknown_words=engine.model.text.embedder.unknown,
        examples=EXAMPLES,
        fps=fps,
        lead_s=lead_s,
    )


def _declared_bytes(engine: Engine, config: StreamConfig) -> int:
    """Of a session, with the states that it keeps to be rewound."""
    one = session_bytes(engine.spec, config, engine.dtype, engine.speed)
    return one * (1 + engine.config.rewind.num_states(one))


def _service(request: ServeRequest, engine: Engine, stream: StreamConfig) -> Service:
    free = free_bytes(engine.device) - engine.visiting_bytes
    budget = int(request.memory_gib * GIB) if request.memory_gib else int(MEMORY_SHARE * free)
    if request.memory_gib and budget < (one := _declared_bytes(engine, stream)):
        raise ConfigError(f"--memory {request.memory_gib:g} GiB holds no session, which takes {one / GIB:.2f} GiB: give more")
    return Service(
        engine,
        admission=AdmissionConfig(
            memory_bytes=budget,
            share=request.share,
            max_waiting=request.max_waiting,
            longest_chunk_s=request.longest_chunk_s,
            margin=SHARED_CORES if engine.device.type == "cpu" else 1.0,
        ),
        session_bytes=partial(_declared_bytes, engine),
        batch=request.batch,
        look_ahead=request.look_ahead,
    )
