"""A key of a server: the limits that all who bring it share. Knows no secret, no protocol, no sessions and no
files.

A session, and what is kept of it, belongs to the key that opened it. A server without keys, or with one for
every client, knows a single one, `NAMELESS`, without a name and without limits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from millstream.core.config import StreamConfig
from millstream.core.errors import NotAllowed, Overloaded


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """Limits of a key; None for none. The secret is not in here, so that nothing can send or log it."""

    name: str = ""
    max_sessions: int | None = None
    max_fps: float | None = None
    weight: float = 1.0
    """Below 1 its sessions give way to others, in line and where there is not enough for all."""
    max_snapshots: int | None = None
    max_snapshot_bytes: int | None = None
    read_only: bool = False

    def check_steering(self) -> None:
        if self.read_only:
            raise NotAllowed(f"the key {self.name!r} is read-only: it watches view links and opens nothing")

    def check_sessions(self, num_open: int) -> None:
        """Check that one more session may be opened."""
        self.check_steering()
        if self.max_sessions is not None and num_open >= self.max_sessions:
            raise Overloaded(
                f"max-sessions of the key {self.name!r} is {self.max_sessions}, and all are open; end one first"
            )

    def check_snapshots(self, num_files: int, num_bytes: int) -> None:
        """Check that so many snapshots, of so many bytes in all, may be stored."""
        for field, limit, asked in (
            ("max-snapshots", self.max_snapshots, num_files),
            ("max-snapshot-bytes", self.max_snapshot_bytes, num_bytes),
        ):
            if limit is not None and asked > limit:
                raise Overloaded(
                    f"{field} of the key {self.name!r} is {limit}, and this would be {asked}; remove some first"
                )

    def capped(self, fps: float) -> float:
        return fps if self.max_fps is None else min(fps, self.max_fps)

    def paced(self, config: StreamConfig, *, may_lower: bool) -> StreamConfig:
        """A rate that the server chooses is lowered to the key's; one that a client asked for is granted or
        refused."""
        fps = self.capped(config.fps)
        if not may_lower and fps < config.fps:
            raise Overloaded(f"max-fps of the key {self.name!r} is {fps:g}; ask for that or less", fps=fps)
        return replace(config, fps=fps)


NAMELESS = Key()
