"""Versions of packages that work, and what happens with others: the reason for each bound in
`pyproject.toml`.

Knows nothing of what is installed. `tests/unit/commands/test_versions.py` holds the table to
`pyproject.toml`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

UNTESTED = "is not tested"


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageBounds:
    name: str
    since: str
    """First version that works."""
    older: str = UNTESTED
    """Fault of an older version, as words that follow its number."""
    before: str = ""
    """First version that does not work or was not tested; empty where every newer one is allowed."""
    newer: str = UNTESTED
    """Fault of a newer version, as words that follow its number."""
    extra: str = ""
    """Extra that installs it; empty for a package that everything needs."""

    @property
    def bounds(self) -> str:
        return f">={self.since}{self.before and f',<{self.before}'}"

    @property
    def fix(self) -> str:
        return f"pip install '{self.name}{self.bounds}'"

    def is_too_old(self, version: str) -> bool:
        return release(version) < release(self.since)

    def is_too_new(self, version: str) -> bool:
        return bool(self.before) and release(version) >= release(self.before)

    def fault(self, version: str) -> str:
        """Return the fault of `version` in words; empty if it has none."""
        if self.is_too_old(version):
            return self.older
        return self.newer if self.is_too_new(version) else ""


def release(version: str) -> tuple[int, ...]:
    """The numbers that a version is ordered by: (2, 11) of `2.11.0+cu130`."""
    found = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(number) for number in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


PACKAGES = (
    PackageBounds(name="torch", since="2.11"),
    PackageBounds(name="numpy", since="1.26"),
    PackageBounds(name="safetensors", since="0.5"),
    PackageBounds(name="msgspec", since="0.19"),
    PackageBounds(name="tokenizers", since="0.21"),
    PackageBounds(
        name="av", since="17.1", older="writes wrong colours and does not notice a cut mp4", before="20"
    ),
    PackageBounds(name="typer", since="0.29", older="words errors otherwise, and 0.15 fails at every --help"),
    PackageBounds(name="rich", since="13.9"),
    PackageBounds(
        name="aiortc",
        since="1.15",
        older="cannot be installed with a PyAV that works",
        before="1.17",
        newer="is not tested, and WebRTC reads its private members",
        extra="serve",
    ),
    PackageBounds(name="pillow", since="11", extra="serve"),
    PackageBounds(name="prometheus-client", since="0.21", extra="serve"),
    PackageBounds(
        name="python-multipart",
        since="0.0.27",
        older="does not limit the headers of a form's parts",
        extra="serve",
    ),
    PackageBounds(name="starlette", since="0.45", extra="serve"),
    PackageBounds(
        name="uvicorn",
        since="0.53",
        older="drops WebSockets at their first text (below 0.50) or never pauses their writes",
        before="0.55",
        newer="is not tested, and its private members are read",
        extra="serve",
    ),
    PackageBounds(
        name="websockets",
        since="15",
        before="18",
        newer="is not tested, and its private members are read",
        extra="serve",
    ),
)
