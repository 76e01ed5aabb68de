"""Interface of what starts and ends a fleet's servers: Ray (`fleet/on_ray.py`), or a test with processes of
its own; and the starts under way."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

from millstream.fleet.replica_link import ReplicaAddress


class ReplicaStarter(Protocol):
    async def running(self) -> list[ReplicaAddress]:
        """Return the addresses of replicas that listen now."""

    async def start(self, pool: str, version: str) -> None:
        """Start one more, which `running` will return. Raises where there cannot be one."""

    async def stop(self, replica_id: str) -> None:
        """End a replica that is not needed any more."""

    async def last_words(self, pool: str) -> str:
        """Return the last output, and its file, of a replica of `pool` that does not start; "" if unknown."""


@dataclass(eq=False, slots=True)
class ReplicaStarts:
    """Replicas that were asked for and are not ready yet. One of a pool is as good as another."""

    _give_up: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By pool: when each is no longer waited for."""

    def begin(self, pool: str, *, give_up: float) -> None:
        self._give_up[pool].append(give_up)

    def end_one(self, pool: str) -> None:
        """Note that one of them is ready or has failed, or that one came that was not asked for."""
        del self._give_up[pool][:1]

    def overdue(self, now: float) -> list[str]:
        """Return the pool of each start that is overdue."""
        return [pool for pool, times in self._give_up.items() for give_up in times if now > give_up]
