"""A link and a leader at its other end, a thread of this process, that answers chunks with their own
latents."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from millstream.core.errors import MeshLost
from millstream.generation.answers import result_of
from millstream.mesh.link import MAX_SENT, MAX_WAITING, MeshLink
from millstream.wire.framing import Orders
from millstream.wire.line import Line
from millstream.wire.packing import pack_deliveries, unpack_parcels
from millstream.wire.parcel import Delivery, Parcel
from millstream.wire.process import Wire
from tests.unit.wire.test_wire import envelope

PATIENCE_S = 20.0
SHAPE = (1, 3, 4, 4, 6)


def parcel(call: int, latents: Tensor | None = None, **changes: Any) -> Parcel:
    fields: dict[str, Any] = dict(call_id=call, reset_cross=False) | changes
    return Parcel(
        envelope=envelope(**fields), latents_in=torch.full(SHAPE, float(call)) if latents is None else latents
    )


@dataclass(eq=False)
class EchoMesh:
    """Answers in order, each when it may."""

    link: MeshLink
    heard: queue.SimpleQueue[Orders] = field(default_factory=queue.SimpleQueue)
    """Messages as they come, signs of life left out."""
    may_answer: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _asked: queue.SimpleQueue[tuple[Orders, dict[str, Tensor]] | None] = field(
        default_factory=queue.SimpleQueue
    )

    def wait(self) -> None:
        assert self.link.ready.wait(PATIENCE_S)

    def lose(self, lost: MeshLost) -> None:
        self.link.lose(lost)

    def weights(self) -> bytes:
        return b""

    def close(self) -> None:
        self.link.close()

    def listen(self, line: Line) -> None:
        try:
            while True:
                received = Wire(line).receive()
                orders = received.message
                assert isinstance(orders, Orders)
                if orders.envelopes[0].action == "INFER":
                    self.heard.put(orders)
                    self._asked.put((orders, received.tensors))
        except ConnectionError:
            self._asked.put(None)

    def answer(self, line: Line) -> None:
        with suppress(ConnectionError):
            while (asked := self._asked.get()) is not None and self.may_answer.acquire(timeout=PATIENCE_S):
                orders, tensors = asked
                (one,) = unpack_parcels(orders, tensors)
                result = result_of(one.envelope)
                delivery = Delivery(result=result, latents_out=one.latents_in)
                Wire(line).send(pack_deliveries([delivery], sequence=orders.sequence))


@contextmanager
def echo_mesh() -> Iterator[EchoMesh]:
    ours, theirs = socket.socketpair()
    mesh = EchoMesh(MeshLink(lambda: Line(_plain(ours)), heartbeat_s=0.5))
    line = Line(_plain(theirs))
    threads = [
        threading.Thread(target=work, args=(line,), daemon=True) for work in (mesh.listen, mesh.answer)
    ]
    for thread in threads:
        thread.start()
    mesh.wait()
    try:
        yield mesh
    finally:
        mesh.close()
        for _ in range(MAX_WAITING + MAX_SENT):
            mesh.may_answer.release()
        for thread in threads:
            thread.join(PATIENCE_S)
        line.close()


def _plain(end: socket.socket) -> Any:
    """A local socket, which knows no TCP options."""

    class Plain(socket.socket):
        def setsockopt(self, *args: Any) -> None: ...

    return Plain(end.family, end.type, end.proto, fileno=end.detach())
