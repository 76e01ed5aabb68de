"""What all ranks of one mesh are told, and how long they wait for each other."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path

import torch

from millstream.core.engine_config import EngineConfig
from millstream.core.errors import ConfigError
from millstream.core.speed import of_generator


@dataclass(frozen=True, kw_only=True, slots=True)
class MeshLimits:
    """Nobody waits for ever: every wait between ranks ends by one of these, in seconds."""

    heartbeat_s: float = 1.0
    """How often each rank says that it lives, and the front that it still wants a mesh."""
    window_s: float = 10.0
    """Silent for this long is dead."""
    start_s: float = 300.0
    """From the first rank's start until all are ready: weights are read in between."""
    hang_s: float = 120.0
    """For one chunk, or one collective. After it a report is written and the mesh started again."""
    stop_s: float = 5.0
    """To leave when asked to; then it is killed."""

    def __post_init__(self) -> None:
        if not 0 < 2 * self.heartbeat_s <= self.window_s:
            raise ConfigError(f"a window of {self.window_s:g} s must hold two heartbeats of {self.heartbeat_s:g} s or more")
        if min(self.start_s, self.hang_s, self.stop_s) <= 0:
            raise ConfigError("start_s, hang_s and stop_s must be above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class MeshConfig(EngineConfig):
    """The engine's, as its ranks need it: its device is a type, of which each takes the one that the topology gives it, and of
    its speed-ups it has those of the generator; pictures are the front's."""

    threads: int
    """CPU threads of one rank of the mesh."""
    front_s: float = 0.0
    """Seconds of the leader's device that the front takes for its pictures, for every model call; 0 where it has its own. Only
    the front's word counts."""
    limits: MeshLimits = field(default_factory=MeshLimits)
    reports: Path = Path("out/hangs")
    """Folder for what is written down before a mesh that hangs is killed."""

    @classmethod
    def of(
        cls,
        engine: EngineConfig,
        device: torch.device,
        dtype: torch.dtype,
        *,
        limits: MeshLimits | None = None,
        front_s: float = 0.0,
    ) -> MeshConfig:
        """For this machine: the ranks of a mesh share its threads."""
        shared = {each.name: getattr(engine, each.name) for each in fields(EngineConfig)}
        own = dict(
            device=device.type,
            dtype=str(dtype).removeprefix("torch."),
            speed=of_generator(engine.speed),
            threads=max(1, torch.get_num_threads() // engine.topology.mesh_size),
            limits=limits or MeshLimits(),
            front_s=front_s,
        )
        return cls(**(shared | own))
