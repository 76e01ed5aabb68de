"""The real application over real sockets: wan-tiny with random weights, one engine for all tests of a module."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn

from millstream.commands.serve import model_card
from millstream.runtime.admission import AdmissionConfig
from millstream.runtime.engine import Engine
from millstream.runtime.service import Service
from millstream.server.app import AppConfig, create_app
from millstream.server.hub import Hub
from millstream.server.peers import Peers
from millstream.server.sockets import ImpatientWebSocket

PATIENCE_S = 30.0
SESSION_BYTES = 1000


@dataclass
class TinyServer:
    address: str
    """HOST:PORT"""
    hub: Hub
    peers: Peers

    def url(self, path: str) -> str:
        return f"http://{self.address}{path}"

    def socket_url(self, path: str) -> str:
        return f"ws://{self.address}{path}"

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for something that other threads bring about."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s in vain until {what}"
            time.sleep(0.02)

    def until_empty(self) -> None:
        """Until no session is left, and none of what sessions hold."""
        caches = self.hub.service.engine.generator.caches
        self.until(lambda: not (self.hub.stations or caches or len(self.peers)), "all sessions are gone")


@contextmanager
def tiny_server(config: AppConfig | None = None, *, places: int = 8) -> Iterator[TinyServer]:
    engine = Engine("wan-tiny", weights="random", device="cpu", dtype="float32")
    admission = AdmissionConfig(memory_bytes=places * SESSION_BYTES, max_waiting=0, share=1.0)
    service = Service(engine, admission=admission, session_bytes=lambda config: SESSION_BYTES)
    service.start(warm_up=[engine.spec.stream])
    app = create_app(lambda: Hub(service, model_card(engine)), config or AppConfig())
    listener = socket.create_server(("127.0.0.1", 0))
    options = uvicorn.Config(app, ws=ImpatientWebSocket, ws_max_size=8 * 2**20, lifespan="on", log_config=None)
    server = uvicorn.Server(options)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), name="tiny-server", daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (server.started and service.ready.is_set()):
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.02)
        host, port = listener.getsockname()[:2]
        yield TinyServer(f"{host}:{port}", app.state.hub, app.state.peers)
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server did not stop"
