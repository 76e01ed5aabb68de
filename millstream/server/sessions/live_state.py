"""The states of a session as its viewers see it, and the only ways from one to the next.

The engine's thread has states of its own (`serving/session_life.py`); these follow what it sends, and what
other servers do.

    opened ──► waiting ◄──► live ◄──► leaving ──► moved       from each to ended, from ended to closed
       └──────────────────────┘

Opened: nothing has come yet; one that was kept is read from storage meanwhile. Waiting: in line, for its
first place or for one to come back to. Live: it has its place. Leaving: it stands still until it is known
whether another server has it; then it is live (or waits) again, or moved. Moved: another server has it or is
to, also straight from opened and waiting; here it ends. Ended: its last notice was passed on. Closed: its
journal and its recordings are whole, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from millstream.serving.notices import Ended, Live, Waiting

State = Literal["opened", "waiting", "live", "leaving", "moved", "ended", "closed"]
Status = Waiting | Live | Ended

LEADS_TO: dict[State, frozenset[State]] = {
    "opened": frozenset({"waiting", "live", "moved", "ended"}),
    "waiting": frozenset({"live", "moved", "ended"}),
    "live": frozenset({"waiting", "leaving", "moved", "ended"}),
    "leaving": frozenset({"waiting", "live", "moved", "ended"}),
    "moved": frozenset({"ended"}),
    "ended": frozenset({"closed"}),
    "closed": frozenset(),
}


@dataclass(slots=True)
class LiveState:
    name: State = "opened"
    status: Status | None = None
    """The engine's last word on how the session does; None before the first."""

    def become(self, name: State) -> None:
        if name == self.name:
            return
        assert name in LEADS_TO[self.name], f"a live session cannot go from {self.name} to {name}"
        self.name = name

    def update(self, status: Status) -> None:
        """Follow a notice. A session that leaves goes on leaving, whatever it is told about its place."""
        self.status = status
        if isinstance(status, Ended) or self.name not in ("leaving", "moved"):
            self.become(self._of_status)

    def stay(self) -> None:
        """Go back from `leaving` to where the engine has it."""
        if self.name == "leaving":
            self.become(self._of_status)

    @property
    def has_ended(self) -> bool:
        return self.name in ("ended", "closed")

    @property
    def _of_status(self) -> State:
        match self.status:
            case Waiting():
                return "waiting"
            case Live():
                return "live"
            case Ended():
                return "ended"
        return "opened"
