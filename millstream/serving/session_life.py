"""The states of a session from asking to its end, and the only ways from one to the next.

A session has one `SessionLife`. Admission moves it, because states differ by who holds a place; the session
table and the scheduler read the same object, so that no copy can disagree with it.

    new ──► waiting ──► placed ◄──► parked ◄──► returning
     └────────────────────┘ ▲                       │
                            └───────────────────────┘        and from each of them to ended

Waiting: in line for its first place. Placed: it holds a place on the device, with or without its state there
yet. Parked: its state is in host memory and its place is free. Returning: parked, and in line to come back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["new", "waiting", "placed", "parked", "returning", "ended"]

LEADS_TO: dict[State, frozenset[State]] = {
    "new": frozenset({"waiting", "placed", "ended"}),
    "waiting": frozenset({"placed", "ended"}),
    "placed": frozenset({"parked", "ended"}),
    "parked": frozenset({"placed", "returning", "ended"}),
    "returning": frozenset({"placed", "parked", "ended"}),
    "ended": frozenset(),
}


@dataclass(slots=True)
class SessionLife:
    state: State = "new"

    def become(self, state: State) -> None:
        assert state in LEADS_TO[self.state], f"a session cannot go from {self.state} to {state}"
        self.state = state

    @property
    def placed(self) -> bool:
        return self.state == "placed"

    @property
    def in_line(self) -> bool:
        return self.state in ("waiting", "returning")
