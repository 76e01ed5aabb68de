"""What `--topology` means to a command: the front runs it, and every other rank that torchrun has started serves the front."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from millstream.commands.paths import find_weights
from millstream.core.presets import find_model
from millstream.core.topology import FRONT, Topology
from millstream.runtime.engine import Engine, choose_device, choose_dtype, choose_vae_devices
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
    head_groups: int = 1
    vae_devices: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRequest:
    """What every command that runs a model is told of it, as options say it."""

    model: str
    weights: list[str]
    loras: list[tuple[str, float]] = field(default_factory=list)
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    topology: str = "local"
    head_groups: int = 1
    vae_devices: tuple[str, ...] = ()

    def wanted(self) -> Wanted:
        """With the weights found; the number of threads is set from here on."""
        weights = find_weights(self.model, self.weights)
        if self.threads:
            torch.set_num_threads(self.threads)
        return Wanted(
            model=self.model,
            weights=weights,
            loras=self.loras,
            device=self.device,
            dtype=self.dtype,
            topology=Topology.parse(self.topology),
            head_groups=self.head_groups,
            vae_devices=self.vae_devices,
        )


def take_place(wanted: Wanted) -> None:
    """Refuse what cannot be. Does not return on a rank of the mesh, which works for the front until it is let go."""
    topology, place, spec = wanted.topology, placement(), find_model(wanted.model)
    topology.check(spec.dit, head_groups=wanted.head_groups)
    if place is not None and not (topology.is_local and place.world_size == 1):
        place.check(topology)
    if place is not None and place.rank != FRONT:
        device = choose_device(wanted.device)
        dtype = choose_dtype(wanted.dtype, device)
        what = (topology, wanted.model, wanted.weights, wanted.loras, device, dtype)
        config = mesh_config(*what, head_groups=wanted.head_groups)
        run_rank(config, place.rank, place.meeting, local_rank=place.local_rank)
    choose_vae_devices(wanted.vae_devices, spec)  # the front's: other machines need not have them


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
        head_groups=wanted.head_groups,
        vae_devices=wanted.vae_devices,
        launch=launcher if place is None else joiner(place),
    )


def _leave(*_: object) -> None:
    """Once: what is being tidied up then is not interrupted by another signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)
