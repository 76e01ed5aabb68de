"""What an engine is made of: which model with which weights, where, and how it runs there. Plain data, no torch.

One object for all: the command line fills it, the engine and every rank of a mesh take it, a journal's header and a plan are
turned into it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.core.mesh_limits import MeshLimits
from millstream.core.rewind import NO_REWIND, RewindConfig
from millstream.core.speed import Speed
from millstream.core.topology import LOCAL, Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    model: str
    weights: tuple[str, ...]
    """Files and folders; `random:SEED`; `bundled`."""
    loras: tuple[tuple[str, float], ...] = ()
    """Files merged into the weights, each with its strength."""
    device: str = "auto"
    """`auto` is the first GPU where there is one."""
    dtype: str = "auto"
    """`auto` is what the device multiplies in hardware."""
    topology: Topology = LOCAL
    limits: MeshLimits = field(default_factory=MeshLimits)
    """How long the processes of that topology wait for each other."""
    speed: Speed = field(default_factory=Speed)
    """What this model cannot use of it is left plain."""
    compile_backend: str = ""
    """What compiles the blocks, on every rank alike: `inductor`, or `eager`, which only traces; empty: they run as they are."""
    head_groups: int = 1
    """Where tokens are spread: groups that a rank's heads travel in, each while the next is projected."""
    vae_devices: tuple[str, ...] = ()
    """The VAE's: one of its own, or several that share each picture; without them it is where the engine is."""
    offload_text: bool = False
    """Whether the text encoder is kept in host memory between prompts."""
    preview_decoder: str = ""
    """The file of a small decoder that shows the pictures instead of the VAE; empty for the VAE."""
    rewind: RewindConfig = NO_REWIND
    """What its sessions keep of their past, to be forked or rewound there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """An engine as somebody asks for it on a command line: weights may still have to be found, speed-ups to be chosen."""

    engine: EngineConfig
    precision: str = "auto"
    fast: str = "auto"
    threads: int | None = None
