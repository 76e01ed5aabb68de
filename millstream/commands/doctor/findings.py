"""Finding of `millstream doctor` about one thing it checked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorFinding:
    area: str
    name: str
    found: str
    ok: bool = True
    needed: bool = False
    """True if nothing works without it."""
    fix: str = ""

    @property
    def line(self) -> str:
        mark = "ok" if self.ok else "MISSING" if self.needed else "--"
        return f"{mark:<8}{f'{self.area} {self.name}':<28}{self.found}{self.fix and f': {self.fix}'}"
