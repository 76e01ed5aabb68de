"""What `--topology` means to a command: the front runs it, and every other rank that torchrun has started serves the front."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from millstream.core.presets import find_model
from millstream.core.topology import FRONT, Topology
from millstream.runtime.engine import Engine, choose_device, choose_dtype
from millstream.runtime.launch import joiner, launcher, placement
from millstream.runtime.mesh_config import mesh_config
from millstream.runtime.rank import run_rank


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Which model, and on what."""

    model: str
    weights: Sequence[str]
    loras: Sequence[tuple[str, float]]
    device: str
    dtype: str
    topology: Topology


def take_place(wanted: Wanted) -> None:
    """Refuse what cannot be. Does not return on a rank of the mesh, which works for the front until it is let go."""
    topology, place = wanted.topology, placement()
    topology.check(find_model(wanted.model).dit)
    if place is None or (topology.is_local and place.world_size == 1):
        return
    place.check(topology)
    if place.rank != FRONT:
        device = choose_device(wanted.device)
        dtype = choose_dtype(wanted.dtype, device)
        config = mesh_config(topology, wanted.model, wanted.weights, wanted.loras, device, dtype)
        run_rank(config, place.rank, place.meeting, local_rank=place.local_rank)


def open_engine(wanted: Wanted) -> Engine:
    """The front's engine, with its mesh where it has one. A signal to stop then ends both."""
    place = placement()
    if not wanted.topology.is_local:
        signal.signal(signal.SIGTERM, _leave)
    return Engine(
        wanted.model,
        weights=wanted.weights,
        loras=wanted.loras,
        device=wanted.device,
        dtype=wanted.dtype,
        topology=wanted.topology,
        launch=launcher if place is None else joiner(place),
    )


def _leave(*_: object) -> None:
    """Once: what is being tidied up then is not interrupted by another signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)
