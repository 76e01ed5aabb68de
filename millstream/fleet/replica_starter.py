"""Whoever starts and ends a fleet's servers: Ray (`fleet/on_ray.py`), or a test with processes of its own; and its starts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

from millstream.fleet.replica_link import ReplicaAddress


class ReplicaStarter(Protocol):
    async def running(self) -> list[ReplicaAddress]:
        """Those that listen now."""

    async def start(self, pool: str, version: str) -> None:
        """One more, which will be among them. Raises where there cannot be one."""

    async def stop(self, replica_id: str) -> None:
        """End one that nobody needs any more."""


@dataclass(eq=False, slots=True)
class ReplicaStarts:
    """Those that were asked for and are not ready yet. One of a pool is as good as another."""

    _give_up: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By pool: when each is no longer waited for."""

    def begin(self, pool: str, *, give_up: float) -> None:
        self._give_up[pool].append(give_up)

    def settle(self, pool: str) -> None:
        """One of them is ready, or has failed; or one came that nobody had asked for."""
        del self._give_up[pool][:1]

    def overdue(self, now: float) -> list[str]:
        """The pool of each that is."""
        return [pool for pool, times in self._give_up.items() for give_up in times if now > give_up]
