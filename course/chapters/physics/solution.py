"""Chapter 4, solution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def message_ms(num_bytes: float, alpha_us: float, beta_gb_s: float) -> float:
    return alpha_us / 1e3 + num_bytes / beta_gb_s / 1e6


def ring_ms(num_bytes: float, ranks: int, alpha_us: float, beta_gb_s: float) -> float:
    return 2 * (ranks - 1) * message_ms(num_bytes / ranks, alpha_us, beta_gb_s)


def fitted(sizes: Sequence[float], milliseconds: Sequence[float]) -> tuple[float, float]:
    slope, start = np.polyfit(sizes, milliseconds, 1)
    return float(start) * 1e3, 1 / float(slope) / 1e6
