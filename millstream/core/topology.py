"""Topologies, which place the ranks: `local`, `front+1`, `front+tp2`, `front+sp2`, `front+pp2`,
`front+pp2xtp2`; without `front+` the front shares the leader's device.

The mesh is `pp` stages of layers, each split over `tp` ranks by heads and hidden units, or over `sp` ranks by
tokens. Rank 0 is the front and rank 1 the mesh's leader; `local` is one process that is both. Ranks of a
stage are neighbours, the first stage first. Knows neither processes nor torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from millstream.core.config import DiTConfig
from millstream.core.errors import ConfigError

FRONT = 0
LEADER = 1
MAX_MESH = 64
"""Ranks of a mesh; past that nothing is left to gain."""

_MESH = re.compile(r"1|(?P<kind>tp|sp)(?P<width>\d{1,5})|pp(?P<stages>\d{1,5})(?:xtp(?P<inner>\d{1,5}))?")
_FORMS = "local, tpN, spN, ppN or ppNxtpM, alone or behind front+, or front+1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    tp: int = 1
    sp: int = 1
    pp: int = 1
    front_apart: bool = False
    """True if the front has a device of its own."""

    def __post_init__(self) -> None:
        if min(self.tp, self.sp, self.pp) < 1:
            raise ConfigError(
                f"a topology needs 1 or more ranks along each axis, got tp{self.tp}, sp{self.sp}, pp{self.pp}"
            )
        if self.sp > 1 and max(self.tp, self.pp) > 1:
            raise ConfigError(f"sp{self.sp} does not go with tp{self.tp} or pp{self.pp}; write {_FORMS}")
        if self.mesh_size > MAX_MESH:
            raise ConfigError(
                f"{self} has a mesh of {self.mesh_size} ranks; at most {MAX_MESH} work together"
            )

    @classmethod
    def parse(cls, text: str) -> Topology:
        if text == "local":
            return cls()
        mesh = text.removeprefix("front+")
        found = _MESH.fullmatch(mesh)
        if found is None or text == "1":
            raise ConfigError(f"topology must be {_FORMS}, got {text!r}")
        sizes = {"pp": int(found["stages"] or 1), "tp": int(found["inner"] or 1)}
        if found["kind"]:
            sizes[found["kind"]] = int(found["width"])
        return cls(**sizes, front_apart=mesh != text)

    def __str__(self) -> str:
        axes = "x".join(
            f"{axis}{size}" for axis, size in (("pp", self.pp), ("tp", self.tp), ("sp", self.sp)) if size > 1
        )
        if self.front_apart:
            return f"front+{axes or 1}"
        return axes or "local"

    @property
    def is_local(self) -> bool:
        """One process plays all roles."""
        return self.mesh_size == 1 and not self.front_apart

    @property
    def mesh_size(self) -> int:
        return self.tp * self.sp * self.pp

    @property
    def world_size(self) -> int:
        return 1 if self.is_local else self.mesh_size + 1

    @property
    def num_devices(self) -> int:
        return self.mesh_size + self.front_apart

    def device_of(self, rank: int) -> int:
        """Which of the devices, counted over all machines, a rank works on."""
        assert 0 <= rank < self.world_size, f"rank {rank} of {self.world_size}"
        return rank if self.front_apart else max(rank - LEADER, 0)

    @property
    def mesh_ranks(self) -> tuple[int, ...]:
        return (0,) if self.is_local else tuple(range(LEADER, self.world_size))

    @property
    def stage_size(self) -> int:
        return self.tp * self.sp

    def stage_ranks(self, stage: int) -> tuple[int, ...]:
        assert 0 <= stage < self.pp, f"stage {stage} of {self.pp}"
        return self.mesh_ranks[stage * self.stage_size : (stage + 1) * self.stage_size]

    def lane_ranks(self, lane: int) -> tuple[int, ...]:
        """The ranks with the same share of every stage, the first stage's first: activations travel along
        them."""
        assert 0 <= lane < self.stage_size, f"lane {lane} of {self.stage_size}"
        return self.mesh_ranks[lane :: self.stage_size]

    def place_of(self, rank: int) -> tuple[int, int]:
        """Stage, and place within it, of a rank of the mesh."""
        assert rank in self.mesh_ranks, f"rank {rank} is not in the mesh {self.mesh_ranks}"
        return divmod(self.mesh_ranks.index(rank), self.stage_size)

    def check(self, dit: DiTConfig, *, exchange_groups: int = 1) -> None:
        """Refuse what cannot split this model, with the list of what can. Ranks of `sp` exchange heads in
        `exchange_groups`."""
        for axis, size in (("tp", self.tp), ("sp", self.sp)):
            works = divisors(dit, axis)
            if size not in works:
                listed = ", ".join(map(str, works))
                raise ConfigError(
                    f"{axis}{size} does not divide {dit.heads} heads and an MLP of {dit.ffn}; {axis} may be "
                    f"{listed}"
                )
        if self.pp > dit.layers:
            raise ConfigError(
                f"pp{self.pp} has more stages than the model has layers; use pp{dit.layers} or less"
            )
        if exchange_groups != 1 and self.sp == 1:
            raise ConfigError(
                f"{self} exchanges no heads, so not in groups either; use front+spN or no --exchange-groups"
            )
        check_exchange_groups(dit.heads // self.sp, exchange_groups)


LOCAL = Topology()


def check_exchange_groups(heads_a_rank: int, groups: int) -> None:
    """Refuse groups that a rank's heads do not make, with the list of those they do."""
    works = [count for count in range(1, heads_a_rank + 1) if heads_a_rank % count == 0]
    if groups not in works:
        raise ConfigError(
            f"{heads_a_rank} heads a rank do not make {groups} groups; use {', '.join(map(str, works))}"
        )


def divisors(dit: DiTConfig, axis: str) -> list[int]:
    """Over how many ranks an axis can split a model: `tp` takes heads and hidden units apart, `sp` heads."""
    return [
        size
        for size in range(1, dit.heads + 1)
        if dit.heads % size == 0 and (axis == "sp" or dit.ffn % size == 0)
    ]
