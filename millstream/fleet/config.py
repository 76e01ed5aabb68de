"""`fleet.toml`: which replicas of what a fleet has, how many, who may use it and where states are kept. Loads
no torch, no Ray.

Checked here, each time in one line that says where: spelling and types, topologies against GPUs, and all of
it against the nodes of a cluster (`check_gpus`). What a replica itself is started with
(`[replicas.NAME.serve]`) `millstream serve` checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from millstream.core.config import MAX_FPS, MIN_FPS
from millstream.core.errors import ConfigError, DeviceError
from millstream.core.keys import Key
from millstream.core.toml_file import TomlFile
from millstream.core.topology import Topology
from millstream.fleet.policy.types import Placement, Pool
from millstream.server.access.keys import Keyring, KeyTable, key_from

PAGE = "docs/fleet.md"
REPLICAS = "replicas"
KEYS = "keys"
Count = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class ReplicaTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[replicas.NAME]`: replicas that are alike."""

    model: str
    weights: str | None = None
    topology: str = "local"
    gpus: Count = 0
    """That one replica takes; 0 runs it on processors."""
    cpus: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    minimum: Count = 1
    maximum: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    warm: Count = 0
    line: Count = 0
    fps: Annotated[float, msgspec.Meta(ge=MIN_FPS, le=MAX_FPS)] | None = None
    """Promised to a session that asks for no rate; the model's own where nothing is said."""
    start: Seconds = 60.0
    idle: Seconds = 300.0
    ready_within: Seconds = 600.0
    """A replica that is not ready by then is given up."""
    surge: Count = 1
    price: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Dollars an hour of one replica."""
    version: str = ""
    serve: dict[str, Any] = {}
    """Options of `millstream serve`, as in its own file."""

    def pool(self, name: str) -> Pool:
        devices = Topology.parse(self.topology).num_devices
        if 0 < self.gpus < devices:
            raise ConfigError(f"topology {self.topology} needs {devices} GPUs, gpus says {self.gpus}")
        return Pool(
            name=name,
            model=self.model,
            gpus=self.gpus,
            minimum=self.minimum,
            maximum=self.maximum,
            warm=self.warm,
            line=self.line,
            start_s=self.start,
            idle_s=self.idle,
            surge=self.surge,
            dollars_per_hour=self.price,
            version=self.version,
        )


class FleetTable(msgspec.Struct, frozen=True, kw_only=True):
    """Settings at the top of `fleet.toml`, above its tables."""

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8400
    storage: str = "fleet-states"
    """A folder that all nodes see, or any fsspec address: where kept states go."""
    keep: Annotated[int, msgspec.Meta(ge=1)] = 8
    """Chunks between kept states."""
    placement: Placement = "pack"
    max_waiting: Count = 256
    ticket: Annotated[float, msgspec.Meta(ge=5, le=600)] = 30.0
    """Seconds that a ticket lives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetConfig:
    path: Path
    table: FleetTable
    replicas: Mapping[str, ReplicaTable]
    pools: tuple[Pool, ...]
    keyring: Keyring | None = None
    """None: no key is needed."""
    keys: Mapping[str, Key] = field(default_factory=dict)


def read_fleet(path: Path, *, secrets: bool = True) -> FleetConfig:
    """All of `fleet.toml`, checked. Without `secrets` keys are not looked up, for planning alone."""
    file = TomlFile.read(str(path), page=PAGE)
    top = file.table((), file.content, FleetTable, others=(REPLICAS, KEYS))
    replicas = dict[str, ReplicaTable]()
    pools = list[Pool]()
    keys = dict[str, Key]()
    keyring = Keyring() if secrets and KEYS in file.content else None

    def take_replicas(name: str, table: ReplicaTable) -> None:
        replicas[name] = table
        pools.append(table.pool(name))

    def take_key(name: str, table: KeyTable) -> None:
        keys[name] = key_from(name, table)
        if keyring is not None:
            keyring.add_table(name, table)

    file.each_table(REPLICAS, ReplicaTable, take_replicas)
    file.each_table(KEYS, KeyTable, take_key)
    if not pools:
        raise ConfigError(f"{path}: a fleet needs replicas; add some as [replicas.NAME], see {PAGE}")
    return FleetConfig(
        path=path, table=top, replicas=replicas, pools=tuple(pools), keyring=keyring, keys=keys
    )


def check_gpus(config: FleetConfig, nodes: Mapping[str, int]) -> None:
    """Check that these nodes, with so many GPUs each, can hold every kind of replica, and the least number of
    all of them at once."""
    has = ", ".join(f"{node} has {gpus}" for node, gpus in nodes.items()) or "there are no nodes"
    for pool in config.pools:
        if pool.gpus > max(nodes.values(), default=0):
            topology = config.replicas[pool.name].topology
            raise DeviceError(
                f"{config.path} replicas.{pool.name}: {topology} needs {pool.gpus} GPUs on one node and "
                f"{has}: "
                "choose a smaller topology or larger nodes"
            )
    free = dict(nodes)
    for pool in sorted(config.pools, key=lambda pool: -pool.gpus):
        for number in range(pool.minimum if pool.gpus else 0):
            node = max(
                free, key=lambda node: (free[node] >= pool.gpus, -free[node])
            )  # the fullest that has room
            if free[node] < pool.gpus:
                raise DeviceError(
                    f"{config.path} replicas.{pool.name}: minimum is {pool.minimum} and GPUs suffice for "
                    f"{number} beside the "
                    f"other replicas' minimum; {has}: lower a minimum or add nodes"
                )
            free[node] -= pool.gpus
