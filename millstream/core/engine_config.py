"""Configuration of an engine: which model with which weights, where, and how it runs there. Plain data, no
torch.

One object for all: the command line fills it, the engine and every rank of a mesh take it, a journal's header
and a plan are turned into it.
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
    """Speed-ups to use; those that this model cannot use are left out."""
    compile_backend: str = ""
    """Backend that compiles the blocks, on every rank alike: `inductor`, or `eager`, which only traces;
    empty: the blocks are not compiled."""
    exchange_groups: int = 1
    """Where tokens are spread: groups that a rank's heads travel in, each while the next is projected."""
    experimental: bool = False
    """True if it may use what no committed result supports yet (`millstream/experiments/`)."""
    vae_devices: tuple[str, ...] = ()
    """The VAE's: one of its own, or several that share each picture; without them it is where the engine
    is."""
    offload_text: bool = False
    """True if the text encoder is kept in host memory between prompts."""
    preview_decoder: str = ""
    """The file of a small decoder that shows the pictures instead of the VAE; empty for the VAE."""
    rewind: RewindConfig = NO_REWIND
    """Past states that its sessions keep, to be forked or rewound there."""
