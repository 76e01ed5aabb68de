"""Kinds of events whose names alone do not tell: from the events that they are linked to, and from the other
names in the trace."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from millstream.profiler.intervals import Floats
from millstream.profiler.kinds import Kind

BLOCKS_US = 50.0
"""A copy call that takes the host less than this is only launched."""
_ALL_TO_ALL = re.compile(r"all_?(to|2)_?all", re.IGNORECASE)
_POINT_TO_POINT = re.compile(
    r"(nccl|c10d|gloo)::?(send|recv|coalesced|batch_isend)|isend|irecv|send_(forward|backward)", re.IGNORECASE
)


def is_all_to_all(name: object) -> bool:
    return isinstance(name, str) and _ALL_TO_ALL.search(name) is not None


def correct_kinds(
    kind: NDArray[np.uint8], begin: Floats, length: Floats, link: NDArray[np.int64], names: Sequence[str]
) -> NDArray[np.uint8]:
    """Return the kinds, corrected by evidence."""
    settled = kind.copy()
    if any(map(is_all_to_all, names)) and not any(_POINT_TO_POINT.search(name) for name in names):
        settled[kind == Kind.EXCHANGE] = (
            Kind.COLLECTIVE
        )  # NCCL has no other kernel for it than that of send and receive
    settled[_blocking_copies(kind, begin, length, link)] = Kind.SYNC
    return settled


def _blocking_copies(
    kind: NDArray[np.uint8], begin: Floats, length: Floats, link: NDArray[np.int64]
) -> NDArray[np.intp]:
    """Return the calls that end only when their copy is done, as from memory that is not pinned, whatever
    their names."""
    calls = np.flatnonzero((kind == Kind.LAUNCH) & (length > BLOCKS_US) & (link >= 0))
    copies = np.flatnonzero((kind == Kind.COPY) & (link >= 0))
    if not len(calls) or not len(copies):
        return calls[:0]
    copies = copies[np.argsort(link[copies], kind="stable")]
    at = np.minimum(np.searchsorted(link[copies], link[calls]), len(copies) - 1)
    tied = link[copies][at] == link[calls]
    done = (begin + length)[copies][at] <= (begin + length)[calls] + 1.0
    found: NDArray[np.intp] = calls[tied & done]
    return found
