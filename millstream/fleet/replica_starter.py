"""Whoever starts and ends a fleet's servers: Ray (`fleet/on_ray.py`), or a test with processes of its own."""

from __future__ import annotations

from typing import Protocol

from millstream.fleet.replica_link import ReplicaAddress


class ReplicaStarter(Protocol):
    async def running(self) -> list[ReplicaAddress]:
        """Those that listen now."""

    async def start(self, pool: str, version: str) -> None:
        """One more, which will be among them. Raises where there cannot be one."""

    async def stop(self, replica_id: str) -> None:
        """End one that nobody needs any more."""
