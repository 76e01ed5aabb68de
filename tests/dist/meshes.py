"""Engines over real meshes of small processes, and the stream they are compared by."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from millstream.core.mesh_limits import MeshLimits
from millstream.core.topology import Topology
from millstream.engine.engine import Engine
from millstream.mesh.launch import LaunchedMesh, launcher
from millstream.mesh.processes import Run
from millstream.mesh.rank import run_rank
from millstream.mesh.recovery import MeshTransport

MODEL: dict[str, Any] = dict(weights="random:3", device="cpu", dtype="float32")
SMALL: dict[str, Any] = dict(height=16, width=32, window=6)
LIMITS = MeshLimits(heartbeat_s=0.25, window_s=3.0, start_s=90.0, hang_s=60.0, stop_s=3.0)


@contextmanager
def mesh_engine(
    topology: str = "front+tp2",
    *,
    model: str = "wan-tiny",
    run: Run = run_rank,
    limits: MeshLimits = LIMITS,
    **fields: Any,
) -> Iterator[Engine]:
    """A tiny model over a mesh; `run` is what its processes do. No process is left afterwards."""
    place = Topology.parse(topology)
    launch = partial(launcher, run=run)
    engine = Engine(model, **MODEL, topology=place, limits=limits, launch=launch, **fields)
    pids = pids_of(engine)
    try:
        yield engine
        pids |= pids_of(engine)
    finally:
        engine.close()
    assert not alive(list(pids)), "ranks are left"


def mesh_of(engine: Engine) -> LaunchedMesh:
    transport = engine.transport
    assert isinstance(transport, MeshTransport)
    mesh = transport._mesh
    assert isinstance(mesh, LaunchedMesh)
    return mesh


def pids_of(engine: Engine) -> set[int]:
    rank_processes = mesh_of(engine).rank_processes
    assert rank_processes is not None
    return set(rank_processes.pids.values())


def alive(pids: Sequence[int]) -> list[int]:
    """Those that are there; one that has ended and was not fetched yet is not."""
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}") and not _is_zombie(pid)]


def ranks_of(pid: int) -> list[int]:
    """The processes that a server's own server has forked and that still run, the last one last."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    return sorted(
        child for child, parent in parents.items() if parents.get(parent) == pid and not _is_zombie(child)
    )


def seconds_until_gone(pids: Sequence[int], timeout_s: float) -> float:
    begun = time.monotonic()
    while alive(pids):
        assert time.monotonic() - begun < timeout_s, f"{alive(pids)} are still there after {timeout_s:g} s"
        time.sleep(0.02)
    return time.monotonic() - begun


def _is_zombie(pid: int) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"
    return False
