"""From options to an engine. `--topology` means: the front runs the command, and every other rank that
torchrun has started serves the front."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace

import torch

from millstream.commands.memory import TextPlace, refuse_if_too_large
from millstream.commands.options import ModelOptions
from millstream.commands.paths import find_weights
from millstream.core.config import StreamConfig
from millstream.core.engine_config import EngineConfig
from millstream.core.errors import ConfigError
from millstream.core.mesh_limits import MeshLimits
from millstream.core.presets import find_model
from millstream.core.speed import dtype_of, parse_speed
from millstream.core.topology import FRONT
from millstream.engine.device_choice import choose_device, choose_dtype, choose_vae_devices
from millstream.engine.engine import Engine
from millstream.engine.speed_choice import automatic_speed
from millstream.mesh.config import MeshConfig
from millstream.mesh.launch import joiner, launcher, placement
from millstream.mesh.rank import run_rank
from millstream.models.brook.files import find_beside
from millstream.models.registry import has_small_text
from millstream.parallel.compiled import check_backend


def resolve(options: ModelOptions, *, stream_batch: int = 1) -> EngineConfig:
    """The weights found, the speed-ups chosen. The number of threads is set from here on. `stream_batch` is
    how many chunks of a stream are under way at a time."""
    asked = options.engine()
    weights = find_weights(
        find_model(asked.model).name, asked.weights
    )  # no such model is said before no weights
    if options.threads:
        torch.set_num_threads(options.threads)
    device = choose_device(asked.device)
    dtype = dtype_of(options.precision)
    automatic = automatic_speed(
        device,
        choose_dtype(dtype, device),
        asked.topology,
        plain_blocks=stream_batch > 1 or bool(asked.compile_backend),
        beside=find_beside(weights, asked.loras),
    )
    speed = parse_speed(options.fast, options.precision, automatic=automatic)
    return replace(asked, weights=tuple(weights), dtype=dtype, speed=speed)


def refuse_experimental(config: EngineConfig, *, stream_batch: int = 1) -> None:
    """Refuse what no committed result supports, unless it was asked for as such."""
    asked = {
        "--stream-batch": stream_batch > 1,
        "--exchange-groups": config.exchange_groups > 1,
        "--fast peer_memory": config.speed.peer_memory,
    }
    for option, is_asked in asked.items():
        if is_asked and not config.experimental:
            raise ConfigError(
                f"{option} is experimental: no measurement shows what it gains; add --experimental to use it"
            )


def check_or_join(config: EngineConfig) -> None:
    """Refuse what cannot be. Does not return on a rank of the mesh, which works for the front until it is let
    go."""
    topology = config.topology
    place = placement()
    spec = find_model(config.model)
    topology.check(spec.dit, exchange_groups=config.exchange_groups)
    if place is None and topology.is_local and config.limits != MeshLimits():
        raise ConfigError(
            "--mesh-limits are of the ranks of a mesh, and local has none; name a --topology or leave them "
            "out"
        )
    check_backend(config.compile_backend, config.speed)
    if place is not None and not (topology.is_local and place.world_size == 1):
        place.check(topology)
    if place is not None and place.rank != FRONT:
        device = choose_device(config.device)
        mesh = MeshConfig.of(config, device, choose_dtype(config.dtype, device))
        run_rank(mesh, place.rank, place.meeting, local_rank=place.local_rank)
    choose_vae_devices(config.vae_devices, spec)  # the front's: other machines need not have them


def load_engine(config: EngineConfig, stream: StreamConfig) -> Engine:
    """The front's engine for such streams, unless what it must hold cannot fit."""
    if config.topology.is_local:
        device = choose_device(config.device)
        text: TextPlace = (
            "none" if has_small_text(config.weights) else "visiting" if config.offload_text else "held"
        )
        refuse_if_too_large(
            find_model(config.model), stream, device, choose_dtype(config.dtype, device), text=text
        )
    return open_engine(config, stream)


def open_engine(config: EngineConfig, stream: StreamConfig | None = None) -> Engine:
    """The front's engine, with its mesh where it has one, warmed up with such streams. A signal to stop then
    ends both."""
    place = placement()
    if not config.topology.is_local:
        signal.signal(signal.SIGTERM, _leave)
    return Engine(config, stream=stream, launch=launcher if place is None else joiner(place))


def _leave(*_: object) -> None:
    """Once: what is being tidied up then is not interrupted by another signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)
