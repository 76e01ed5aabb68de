"""All that a session is between two chunks, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from millstream.models.carry import VAEState
from millstream.session.timeline import TimelineState


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionState:
    """All that a session holds between chunks, besides its cache in the generator."""

    timeline: TimelineState
    history: Mapping[str, Tensor]
    decoder: VAEState
    encoder: VAEState
    last_input: NDArray[np.float32] | None
    motion: float | None
