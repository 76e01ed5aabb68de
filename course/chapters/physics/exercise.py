"""Chapter 4, exercises. Fill in the functions, then run `millstream course check 4`."""

from __future__ import annotations

from collections.abc import Sequence


def message_ms(num_bytes: float, alpha_us: float, beta_gb_s: float) -> float:
    """One message, in milliseconds."""
    raise NotImplementedError("message_ms")


def ring_ms(num_bytes: float, ranks: int, alpha_us: float, beta_gb_s: float) -> float:
    """An all-reduce around a ring, in milliseconds."""
    raise NotImplementedError("ring_ms")


def fitted(sizes: Sequence[float], milliseconds: Sequence[float]) -> tuple[float, float]:
    """Alpha in microseconds and beta in GB/s of one message, from measurements: the line with the least
    squared error."""
    raise NotImplementedError("fitted")
