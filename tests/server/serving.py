"""The real application over real sockets, with a small model, and a client that speaks docs/protocol.md."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import uvicorn
from websockets.sync.client import ClientConnection, connect

from millstream.commands.serve import key_stores, model_card
from millstream.core.rewind import RewindConfig
from millstream.engine.engine import Engine
from millstream.server.app import AppConfig, create_app
from millstream.server.sessions.archive import Archive
from millstream.server.sessions.file_store import FileStore, StoreLimits
from millstream.server.sessions.hub import HubLimits, SessionHub
from millstream.server.sessions.shared_files import SharedFiles
from millstream.server.transport.peers import Peers
from millstream.server.transport.sockets import GracefulServer, ImpatientWebSocket, TimeoutHTTP
from millstream.serving.admission_types import AdmissionConfig
from millstream.serving.chunk_times import ChunkTimes, Geometry
from millstream.serving.service import Service

PATIENCE_S = 30.0
SESSION_BYTES = 1000
REWIND = RewindConfig(states=4, every=2, latents=32)
START = {"type": "start", "version": 1, "prompt": "sea", "fps": 24.0}


@dataclass
class Serving:
    address: str
    """HOST:PORT"""
    hub: SessionHub
    peers: Peers

    def url(self, path: str = "") -> str:
        return f"http://{self.address}{path}"

    @contextmanager
    def client(self, *, narrow: bool = False, source: str = "127.0.0.1", **options: Any) -> Iterator[Client]:
        """One that has said hello, from an address; a narrow one's socket holds next to nothing."""
        host, port = self.address.split(":")
        peer = socket.socket()
        if narrow:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            options["max_queue"] = 1
        peer.bind((source, 0))
        peer.connect((host, int(port)))
        url = f"ws://{self.address}/v1/stream"
        with connect(
            url, sock=peer, max_size=None, open_timeout=PATIENCE_S, compression=None, **options
        ) as connection:
            client = Client(connection)
            assert client.hear("hello")["version"] == 1
            yield client

    def socket_url(self, path: str = "") -> str:
        return f"ws://{self.address}{path}"

    def until(self, holds: Callable[[], bool], what: str) -> None:
        wait_until(holds, what)

    def until_empty(self) -> None:
        """Until no session is left, and nothing of what sessions hold."""
        caches = self.hub.service.engine.generator.caches
        wait_until(lambda: not (self.hub.live_sessions or caches or len(self.peers)), "all sessions are gone")


@dataclass
class Client:
    """A person at one socket."""

    connection: ClientConnection
    heard: list[dict[str, Any]] = field(default_factory=list)

    def say(self, message: dict[str, Any] | str | bytes) -> None:
        self.connection.send(json.dumps(message) if isinstance(message, dict) else message)

    def say_at_once(self, *messages: dict[str, Any]) -> None:
        """In one write: the server has all of them before it can answer the first."""
        with self.connection.send_context():
            for message in messages:
                self.connection.protocol.send_text(json.dumps(message).encode())

    def next(self) -> dict[str, Any]:
        """The next message; of a binary one the header, with the parts of its payload."""
        data = self.connection.recv(timeout=PATIENCE_S)
        if isinstance(data, str):
            message: dict[str, Any] = json.loads(data)
        else:
            (size,) = struct.unpack_from("<I", data)
            message = json.loads(data[4 : 4 + size])
            rest = data[4 + size :]
            message["parts"] = [rest] if message["type"] == "init" else _cut(rest, message["sizes"])
        self.heard.append(message)
        return message

    def hear(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The next message of a kind, with these fields; others are passed over."""
        while True:
            message = self.next()
            if message["type"] == kind and all(message.get(name) == value for name, value in fields.items()):
                return message

    def start(self, **changes: Any) -> dict[str, Any]:
        self.say(START | changes)
        answer = self.next()
        while answer["type"] == "stats":
            answer = self.next()
        assert answer["type"] == "live", f"started with {changes} and heard {answer}"
        return answer


def _cut(data: bytes, sizes: list[int]) -> list[bytes]:
    parts = []
    at = 0
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    assert at == len(data), f"{len(data)} bytes for parts of {sizes}"
    return parts


def wait_until(holds: Callable[[], bool], what: str, *, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, f"waited {patience_s:g} s in vain until {what}"
        time.sleep(0.01)


class SteadyTimes(ChunkTimes):
    """Chunks are taken to need a millisecond, however busy the machine: who is let in is then a matter of
    places alone."""

    def add(self, geometry: Geometry, seconds: float, *, is_trial: bool = False) -> None:
        super().add(geometry, 0.001, is_trial=is_trial)


@contextmanager
def serving(
    data: Path | None = None,
    config: AppConfig | None = None,
    *,
    places: int = 32,
    max_waiting: int = 4,
    ping_s: float = 20.0,
    look_ahead: bool = False,
    model: tuple[str, str] = ("wan-tiny", "random"),
    shared: SharedFiles | None = None,
    key_names: Collection[str] = (),
    **limits: Any,
) -> Iterator[Serving]:
    """`model` is a name and where its weights are; `shared`, what it has in common with others of its fleet,
    and `key_names` are those that its gateway knows."""
    torch.set_num_threads(1)
    engine = Engine(model[0], weights=model[1], device="cpu", dtype="float32", rewind=REWIND)
    if engine.spec.name == "wan-tiny":
        engine.spec = replace(
            engine.spec, stream=replace(engine.spec.stream, height=16, width=32)
        )  # half the work
    admission = AdmissionConfig(memory_bytes=places * SESSION_BYTES, max_waiting=max_waiting, share=1.0)
    service = Service(
        engine, admission=admission, session_bytes=lambda config: SESSION_BYTES, look_ahead=look_ahead
    )
    service.table.admission.times = SteadyTimes()
    service.start(warm_up=[engine.spec.stream])
    archive = (
        None if data is None else Archive(engine, FileStore(data, StoreLimits(max_files=8), shared=shared))
    )
    config = config or AppConfig()
    names = config.access.keyring.names if config.access.keyring else key_names
    stores = {} if data is None else key_stores(data, names, shared)
    app = create_app(
        lambda: SessionHub(
            service,
            replace(model_card(engine), moves=shared is not None),
            archive=archive,
            stores=stores,
            limits=HubLimits(**limits),
        ),
        config,
    )
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 * 2**10)  # so that a slow reader is felt soon
    threads = set(threading.enumerate())
    options = uvicorn.Config(
        app,
        http=TimeoutHTTP,
        ws=ImpatientWebSocket,
        ws_max_size=8 * 2**20,
        ws_ping_interval=ping_s,
        ws_ping_timeout=ping_s,
        lifespan="on",
        log_config=None,
        proxy_headers=False,
    )
    server = GracefulServer(options, lambda: app.state.server.hub.farewell())
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), name="serving")
    thread.start()
    try:
        wait_until(lambda: server.started and service.ready.is_set(), "the server is ready")
        host, port = listener.getsockname()[:2]
        yield Serving(f"{host}:{port}", app.state.server.hub, app.state.server.peers)
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server did not stop"
    assert engine.generator.caches == {}, "a session's cache was left behind"
    assert not [
        each for each in set(threading.enumerate()) - threads if each.name.startswith("millstream")
    ], "threads are left"
