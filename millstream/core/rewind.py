"""How far back a session can be forked or rewound, and what it may hold for that. Plain data, no torch."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.core.config import GIB
from millstream.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class RewindConfig:
    """A state is what a session holds between two chunks: its window's keys and values and the decoder's
    past. From a kept one every later chunk is reached exactly, by making those between again. Where only
    clean latents are left, the window is rebuilt from them, which is near and not the same."""

    states: int = 8
    """Kept of each session, the latest; 0: none."""
    every: int = 4
    """Chunks from one kept state to the next."""
    max_bytes: int = GIB // 4
    """For the kept states of one session; fewer are kept where they are larger."""
    latents: int = 96
    """Chunks whose clean latents are kept; 0: none, and then nothing is kept at all."""

    def __post_init__(self) -> None:
        if min(self.states, self.latents, self.max_bytes) < 0 or self.every < 1:
            raise ConfigError(
                f"kept states, bytes and latents are 0 or more and every is 1 or more, got {self.states}, "
                f"{self.max_bytes}, "
                f"{self.latents} and {self.every}"
            )

    def num_states(self, state_bytes: int) -> int:
        """Count the states of that size that are kept."""
        return min(self.states, self.max_bytes // max(1, state_bytes))


NO_REWIND = RewindConfig(states=0, latents=0)
"""Keep nothing; a session can still be forked as it is now."""
