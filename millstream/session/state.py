"""All that a session is between two chunks, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millstream.models.carry import VAEState
from millstream.session.history import HistoryState
from millstream.session.timeline import TimelineState


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionState:
    """All that a session holds between chunks, besides its cache in the generator."""

    timeline: TimelineState
    history: HistoryState
    decoder: VAEState
    encoder: VAEState
    last_input: NDArray[np.float32] | None
    motion: float | None
