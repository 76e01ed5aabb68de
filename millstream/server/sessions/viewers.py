"""Clients that watch a session: each with its format and what it has had, and all of one session together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from millstream.core.client_messages import Format
from millstream.core.errors import Overloaded
from millstream.server.sessions.outbox import EncodedChunk, Outbox
from millstream.serving.notices import Ended, Noted
from millstream.session.chunk import Chunk

MAX_VIEWERS = 64
MAX_NOTES = 16


@dataclass(frozen=True, slots=True)
class OpeningBytes:
    """Bytes that a viewer's decoder needs before the first fragment."""

    data: bytes


@dataclass(eq=False, slots=True)
class Viewer:
    """One client that watches."""

    format: Format
    outbox: Outbox
    owner: bool
    came: float
    opened: bool = False
    """True if it has what its decoder needs first."""
    had: int = -1
    """Last chunk that it had when it came; until a later one comes, it is sent none. A session may go back
    after that."""
    seen: int = -1
    """Last chunk that it was sent."""
    follows: bool = False
    """True if it goes along when its session moves to another server."""
    go_along: Callable[[Any], None] | None = None
    """Function that has it watch another `LiveSession`, a branch of the same stream; None where it cannot."""

    def wants(self, chunk: Chunk) -> bool:
        return self.had < chunk.index

    def give(self, picture: EncodedChunk, opening: bytes | None) -> None:
        """A chunk; with what its decoder needs first, where its format has such a thing."""
        if opening is not None and not self.opened:
            self.outbox.put(OpeningBytes(opening))
            self.opened = True
        self.had = -1
        self.seen = picture.chunk.index
        self.outbox.put(picture)


class Viewers:
    """All viewers of one session, and the notes that later ones are sent too. At most `MAX_VIEWERS`; an owner
    is always let in."""

    def __init__(self, now: float) -> None:
        self.left_at = now
        """When the last one left, or when the session was opened."""
        self.notes: deque[Noted] = deque(maxlen=MAX_NOTES)
        self._viewers: set[Viewer] = set()

    def __iter__(self) -> Iterator[Viewer]:
        return iter(self._viewers)

    def __len__(self) -> int:
        return len(self._viewers)

    def __contains__(self, viewer: Viewer) -> bool:
        return viewer in self._viewers

    @property
    def formats(self) -> set[Format]:
        return {viewer.format for viewer in self}

    def check_room(self, *, owner: bool) -> None:
        if len(self) >= MAX_VIEWERS and not owner:
            raise Overloaded(f"{MAX_VIEWERS} watch this session already; try again later")

    def who_makes_room(self) -> Viewer | None:
        """Return the viewer that an owner takes the place of: the last guest, or else the owner's oldest
        connection."""
        if len(self) < MAX_VIEWERS:
            return None
        guests = [viewer for viewer in self if not viewer.owner]
        return (
            max(guests, key=lambda viewer: viewer.came)
            if guests
            else min(self, key=lambda viewer: viewer.came)
        )

    def add(self, viewer: Viewer, status: object | None) -> None:
        """Let it watch, and send it `status` and the notes that are for it."""
        self._viewers.add(viewer)
        if status is not None:
            viewer.outbox.put(status)
        for note in self.notes:
            if viewer.owner or not note.once:
                viewer.outbox.put(note)
        if viewer.owner:
            self._drop_momentary()

    def remove(self, viewer: Viewer, now: float) -> None:
        self._viewers.remove(viewer)
        self.left_at = now

    def put(self, item: object) -> None:
        """Send `item` to all of them."""
        for viewer in self:
            viewer.outbox.put(item)

    def note(self, note: Noted) -> None:
        """Send a note to all of them and to those who come later; one for a moment only until an owner has
        it."""
        self.notes.append(note)
        self.put(note)
        if any(viewer.owner for viewer in self):
            self._drop_momentary()

    def put_newest(self, item: object) -> None:
        """Send `item`, in place of an older one of its kind that still waits."""
        for viewer in self:
            viewer.outbox.put_newest(item)

    def send_away(self, viewer: Viewer) -> None:
        """Tell it that it is watching no longer, and why."""
        viewer.outbox.put(
            Ended(cause="refused", reason="its owner came back and needed the place; try again later")
        )
        viewer.outbox.finish()

    def _drop_momentary(self) -> None:
        self.notes = deque((note for note in self.notes if not note.once), maxlen=MAX_NOTES)
