"""Limits on how long the processes of a mesh wait for each other. No wait is endless: every wait ends by one
of these."""

from __future__ import annotations

from dataclasses import dataclass, fields

from millstream.core.errors import ConfigError

LONGEST_S = 86400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class MeshLimits:
    """In seconds."""

    heartbeat_s: float = 1.0
    """How often each rank says that it lives, and the front that it still wants a mesh."""
    window_s: float = 10.0
    """Silent for this long is dead."""
    start_s: float = 300.0
    """From the first rank's start until all are ready: weights are read in between."""
    hang_s: float = 120.0
    """For one chunk, or one collective. After it a report is written and the mesh started again."""
    stop_s: float = 5.0
    """To leave when asked to; then it is killed."""

    def __post_init__(self) -> None:
        if not 0 < 2 * self.heartbeat_s <= self.window_s:
            raise ConfigError(
                f"a window of {self.window_s:g} s must hold two heartbeats of {self.heartbeat_s:g} s or "
                "more; see --mesh-limits"
            )
        if not all(0 < getattr(self, each.name) <= LONGEST_S for each in fields(self)):
            raise ConfigError(f"--mesh-limits must be above 0 and at most {LONGEST_S:g} seconds")

    @classmethod
    def parse(cls, text: str) -> MeshLimits:
        """As it is typed: `start=900,hang=300`. What is not named stays as it is, and empty is all of it."""
        known = {each.name.removesuffix("_s"): each.name for each in fields(cls)}
        found: dict[str, float] = {}
        for part in text.split(",") if text else ():
            name, _, seconds = part.strip().partition("=")
            try:
                found[known[name]] = float(seconds)
            except (KeyError, ValueError):
                raise ConfigError(
                    f"--mesh-limits are seconds of {', '.join(known)}, for example start=900,hang=300; got "
                    f"{part!r}"
                ) from None
        return cls(**found)
