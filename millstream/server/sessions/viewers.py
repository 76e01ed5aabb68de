"""One who watches a session: in which format, what it has had, and who goes where all places are taken."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from millstream.core.client_messages import Format
from millstream.server.sessions.outbox import ChunkInfo, EncodedChunk, Outbox


@dataclass(frozen=True, slots=True)
class OpeningBytes:
    """What a viewer's decoder needs before the first fragment."""

    data: bytes


@dataclass(eq=False, slots=True)
class Viewer:
    """One client that watches."""

    format: Format
    outbox: Outbox
    owner: bool
    came: float
    opened: bool = False
    """Whether it has what its decoder needs first."""
    had: int = -1
    """The last chunk that it had when it came; until a later one comes, it is given none. A session may go back after that."""
    seen: int = -1
    """The last chunk that it was given."""
    follows: bool = False
    """Whether it goes along when its session moves to another server."""

    def wants(self, chunk: ChunkInfo) -> bool:
        return self.had < chunk.index

    def give(self, picture: EncodedChunk, opening: bytes | None) -> None:
        """A chunk; with what its decoder needs first, where its format has such a thing."""
        if opening is not None and not self.opened:
            self.outbox.put(OpeningBytes(opening))
            self.opened = True
        self.had, self.seen = -1, picture.info.index
        self.outbox.put(picture)


def who_makes_room(viewers: Collection[Viewer]) -> Viewer:
    """Whoever came last of those who only watch; where there are none, the owner's oldest connection."""
    guests = [viewer for viewer in viewers if not viewer.owner]
    return max(guests, key=lambda viewer: viewer.came) if guests else min(viewers, key=lambda viewer: viewer.came)
