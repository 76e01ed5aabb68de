"""From options to an engine. `--topology` means: the front runs the command, and every other rank that torchrun has started
serves the front."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from millstream.commands.memory import TextPlace, refuse_if_too_large
from millstream.commands.paths import find_weights
from millstream.core.config import StreamConfig
from millstream.core.presets import find_model
from millstream.core.speed import Speed, dtype_of, parse_speed
from millstream.core.topology import FRONT, LOCAL, Topology
from millstream.engine.engine import Engine, choose_device, choose_dtype, choose_vae_devices, refuse_fast_blocks
from millstream.engine.speed_choice import automatic_speed
from millstream.mesh.config import mesh_config
from millstream.mesh.launch import joiner, launcher, placement
from millstream.mesh.rank import run_rank
from millstream.models.registry import has_small_text
from millstream.parallel.compiled import check_backend


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Which model, and on what."""

    model: str
    weights: Sequence[str]
    loras: Sequence[tuple[str, float]] = ()
    device: str = "auto"
    dtype: str = "auto"
    topology: Topology = LOCAL
    speed: Speed = field(default_factory=Speed)
    compile_backend: str = ""
    head_groups: int = 1
    vae_devices: Sequence[str] = ()
    offload_text: bool = False
    preview_decoder: str = ""
    """The file of what shows the pictures instead of the VAE; empty for the VAE."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRequest:
    """What every command that runs a model is told of it, as options say it."""

    model: str
    weights: list[str]
    loras: list[tuple[str, float]] = field(default_factory=list)
    device: str = "auto"
    precision: str = "auto"
    fast: str = "auto"
    compile_backend: str = ""
    threads: int | None = None
    topology: str = "local"
    head_groups: int = 1
    vae_devices: tuple[str, ...] = ()
    offload_text: bool = False
    preview_decoder: str = ""
    stream_batch: int = 1
    """Chunks of a stream under way at a time."""

    def wanted(self) -> Wanted:
        return Wanted(**self.resolved())

    def resolved(self) -> dict[str, Any]:
        """Fields of what is wanted: the weights found, the speed-ups chosen. The number of threads is set from here on."""
        weights = find_weights(find_model(self.model).name, self.weights)  # no such model is said before no weights
        if self.threads:
            torch.set_num_threads(self.threads)
        topology, device, dtype = Topology.parse(self.topology), choose_device(self.device), dtype_of(self.precision)
        automatic = automatic_speed(
            device,
            choose_dtype(dtype, device),
            topology,
            num_vae_devices=len(self.vae_devices),
            plain_blocks=self.stream_batch > 1 or bool(self.compile_backend),
        )
        return dict(
            model=self.model,
            weights=weights,
            loras=self.loras,
            device=self.device,
            dtype=dtype,
            topology=topology,
            speed=parse_speed(self.fast, self.precision, automatic=automatic),
            compile_backend=self.compile_backend,
            head_groups=self.head_groups,
            vae_devices=self.vae_devices,
            offload_text=self.offload_text,
            preview_decoder=self.preview_decoder,
        )


def take_place(wanted: Wanted) -> None:
    """Refuse what cannot be. Does not return on a rank of the mesh, which works for the front until it is let go."""
    topology, place, spec = wanted.topology, placement(), find_model(wanted.model)
    topology.check(spec.dit, head_groups=wanted.head_groups)
    check_backend(wanted.compile_backend, wanted.speed)
    if not topology.is_local:
        refuse_fast_blocks(wanted.speed)
    if place is not None and not (topology.is_local and place.world_size == 1):
        place.check(topology)
    if place is not None and place.rank != FRONT:
        device = choose_device(wanted.device)
        dtype = choose_dtype(wanted.dtype, device)
        what = (topology, wanted.model, wanted.weights, wanted.loras, device, dtype)
        how: dict[str, Any] = dict(compile_backend=wanted.compile_backend, head_groups=wanted.head_groups, speed=wanted.speed)
        config = mesh_config(*what, **how)
        run_rank(config, place.rank, place.meeting, local_rank=place.local_rank)
    choose_vae_devices(wanted.vae_devices, spec, wanted.speed)  # the front's: other machines need not have them


def load_engine(wanted: Wanted, config: StreamConfig) -> Engine:
    """The front's engine for such streams, unless what it must hold cannot fit."""
    if wanted.topology.is_local:
        device = choose_device(wanted.device)
        text: TextPlace = "none" if has_small_text(wanted.weights) else "visiting" if wanted.offload_text else "held"
        refuse_if_too_large(find_model(wanted.model), config, device, choose_dtype(wanted.dtype, device), text=text)
    return open_engine(wanted)


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
        speed=wanted.speed,
        topology=wanted.topology,
        compile_backend=wanted.compile_backend,
        head_groups=wanted.head_groups,
        vae_devices=wanted.vae_devices,
        offload_text=wanted.offload_text,
        preview_decoder=wanted.preview_decoder,
        launch=launcher if place is None else joiner(place),
    )


def _leave(*_: object) -> None:
    """Once: what is being tidied up then is not interrupted by another signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)
