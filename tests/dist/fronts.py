"""A front that is a process of its own, so that it can be killed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from millstream.core.mesh_limits import MeshLimits
from millstream.mesh.processes import quick_start
from tests.dist.meshes import SMALL, mesh_engine, pids_of

START_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Front:
    process: ForkServerProcess
    ranks: list[int]
    """Process ids of its mesh."""


@contextmanager
def front(topology: str, limits: MeshLimits) -> Iterator[Front]:
    """One that streams until it is ended."""
    context = quick_start()
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_stream, args=(topology, limits, writer))
    process.start()
    writer.close()
    try:
        assert reader.poll(START_S), "the front did not start"
        yield Front(process=process, ranks=reader.recv())
    finally:
        process.kill()
        process.join()
        reader.close()


def _stream(topology: str, limits: MeshLimits, writer: Connection) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with mesh_engine(topology, limits=limits) as engine, engine.session("sea", **SMALL) as session:
        next(session.stream(1))
        writer.send(sorted(pids_of(engine)))
        for _ in session.stream():
            pass
