"""Events of a client, with the chunks in which each starts, runs and completes. Plain bookkeeping: no
messages, no clock.

An event runs for as many chunks as its blend has; one that starts ends those before it, as a new prompt ends
a blend. Bounded by the controls a session lets wait: of more events than that, the oldest is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from millstream.session.timeline import MAX_WAITING


@dataclass(frozen=True, slots=True)
class ChunkEvents:
    started: tuple[str, ...] = ()
    active: tuple[str, ...] = ()
    """At the end of the chunk."""
    completed: tuple[str, ...] = ()


@dataclass(slots=True)
class Transitions:
    _asked: dict[str, int] = field(default_factory=dict)
    """How many chunks each takes that has not started."""
    _running: dict[str, int] = field(default_factory=dict)
    """How many are left of each that has."""
    _started: list[str] = field(default_factory=list)
    _completed: list[str] = field(default_factory=list)

    def ask(self, event_id: str, chunks: int) -> bool:
        """Add a transition; return whether it is new. One that waits already is left as it is."""
        if event_id in self._asked:
            return False
        if len(self._asked) == MAX_WAITING:
            del self._asked[next(iter(self._asked))]
        self._asked[event_id] = chunks
        return True

    def forget(self, event_id: str) -> None:
        """Drop a transition that was refused."""
        self._asked.pop(event_id, None)

    def advance(self, applied: Iterable[str]) -> None:
        """Count one more chunk, in which `applied` first show."""
        for event_id in applied:
            chunks = self._asked.pop(event_id, None)
            if chunks is None:
                continue
            self._completed += self._running
            self._running = {event_id: chunks}
            self._started.append(event_id)
        for event_id in list(self._running):
            self._running[event_id] -= 1
            if self._running[event_id] == 0:
                del self._running[event_id]
                self._completed.append(event_id)

    def pop(self) -> ChunkEvents:
        """All that happened since it was last taken."""
        events = ChunkEvents(tuple(self._started), tuple(self._running), tuple(self._completed))
        self._started = []
        self._completed = []
        return events
