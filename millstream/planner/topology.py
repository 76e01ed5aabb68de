"""Who is where, as a plan names it: `local`, `front+1`, `tp2`, `front+tp2`, `front+sp2`, `front+pp2`, `front+pp2xtp2`.

`front+` gives text encoder, VAE and sessions a device of their own; without it they share the mesh's first one and
take turns with it. Says what a model allows; knows neither time nor memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from millstream.core.config import DiTConfig
from millstream.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    tp: int = 1
    sp: int = 1
    pp: int = 1
    front_apart: bool = False

    @property
    def mesh(self) -> int:
        return self.tp * self.sp * self.pp

    @property
    def devices(self) -> int:
        return self.mesh + self.front_apart

    @property
    def name(self) -> str:
        axes = "x".join(f"{axis}{size}" for axis, size in (("pp", self.pp), ("tp", self.tp), ("sp", self.sp)) if size > 1)
        if not self.front_apart:
            return axes or "local"
        return f"front+{axes or 1}"


def parse_layout(text: str) -> Layout:
    if text == "local":
        return Layout()
    mesh = text.removeprefix("front+")
    apart = mesh != text
    if apart and mesh == "1":
        return Layout(front_apart=True)
    sizes = dict(re.findall(r"(tp|sp|pp)(\d{1,5})", mesh))
    if not sizes or "x".join(f"{axis}{size}" for axis, size in sizes.items()) != mesh or "0" in sizes.values():
        raise ConfigError(f"topology must be like local, front+1, tp2, front+sp2 or front+pp2xtp2, got {text!r}")
    return Layout(**{axis: int(size) for axis, size in sizes.items()}, front_apart=apart)


def refuse_indivisible(dit: DiTConfig, layout: Layout) -> None:
    """Heads and MLP must divide over TP, heads over SP, and every stage needs a layer."""
    for axis, size in (("tp", layout.tp), ("sp", layout.sp)):
        if size not in allowed(dit, axis):
            works = ", ".join(map(str, allowed(dit, axis)))
            raise ConfigError(f"{axis}{size} does not divide {dit.heads} heads and an MLP of {dit.ffn}; {axis} may be {works}")
    if layout.pp > dit.layers:
        raise ConfigError(f"pp{layout.pp} has more stages than the model has layers; use pp{dit.layers} or less")


def allowed(dit: DiTConfig, axis: str) -> list[int]:
    return [size for size in range(1, dit.heads + 1) if dit.heads % size == 0 and (axis == "sp" or dit.ffn % size == 0)]


def layouts(dit: DiTConfig, devices: int) -> Iterator[Layout]:
    """Every layout of at most `devices` devices, small ones first; a mesh is at most 64, where nothing is left to gain."""
    mesh_limit = min(devices, 64)
    meshes = [(tp, 1, pp) for tp in allowed(dit, "tp") for pp in _stages(dit) if tp * pp <= mesh_limit]
    meshes += [(1, sp, 1) for sp in allowed(dit, "sp") if 1 < sp <= mesh_limit]
    every = [Layout(tp=tp, sp=sp, pp=pp, front_apart=apart) for tp, sp, pp in meshes for apart in (False, True)]
    yield from sorted((layout for layout in every if layout.devices <= devices), key=lambda layout: layout.devices)


def _stages(dit: DiTConfig) -> list[int]:
    return [stages for stages in (1, 2, 3, 4, 6, 8) if stages <= dit.layers]
