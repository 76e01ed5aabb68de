"""Configuration that all ranks of one mesh receive."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import torch

from millstream.core.engine_config import EngineConfig
from millstream.core.speed import of_generator


@dataclass(frozen=True, kw_only=True, slots=True)
class MeshConfig(EngineConfig):
    """The engine's configuration, as its ranks need it. Its device is a type, of which each rank takes the
    one that the topology assigns to it. Of its speed-ups it has those of the generator; frames are the
    front's."""

    threads: int
    """CPU threads of one rank of the mesh."""
    front_s: float = 0.0
    """Seconds of the leader's device that the front takes for its frames, for every model call; 0 where it
    has its own. Only the front's value counts."""
    reports: Path = Path("out/hangs")
    """Folder for what is written down before a mesh that hangs is killed."""

    @classmethod
    def of(
        cls, engine: EngineConfig, device: torch.device, dtype: torch.dtype, *, front_s: float = 0.0
    ) -> MeshConfig:
        """Return the configuration for this machine: the ranks of a mesh share its threads."""
        shared = {each.name: getattr(engine, each.name) for each in fields(EngineConfig)}
        own = dict(
            device=device.type,
            dtype=str(dtype).removeprefix("torch."),
            speed=of_generator(engine.speed),
            threads=max(1, torch.get_num_threads() // engine.topology.mesh_size),
            front_s=front_s,
        )
        return cls(**(shared | own))
