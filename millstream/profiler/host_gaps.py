"""Activity of the host in the largest gaps of the device: by Python frame where stacks were recorded, else by
operator."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from millstream.profiler.anatomy import Anatomy, Index
from millstream.profiler.kinds import Kind

LARGEST = 60
SAID = 6
"""Number of gaps that are examined, and of lines that are returned."""
SHORT_US = 50.0
NOBODY = "nothing that was recorded: take stacks as well"
_PLUMBING = re.compile(
    r"^(ProfilerStep#|torch/profiler|threading\.py|runpy\.py|<frozen|<module>)|_call_impl$|: "
    r"(wrapper|inner|_fn)$"
)
"""Frames and notes that enclose everything and explain nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostGap:
    what: str
    ms: float
    gaps: int
    share: float
    """Share of the wall."""


def host_gaps(rank: Anatomy) -> tuple[HostGap, ...]:
    """Return the host's activities in the gaps, longest first; gaps with the same activity are added up."""
    idle = rank.idle
    largest = np.argsort(idle.begin - idle.end, kind="stable")[:LARGEST]
    largest = largest[(idle.end - idle.begin)[largest] >= SHORT_US]
    if not rank.has_device or not len(largest):
        return ()
    doings = _doings(rank)
    spent: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for gap in largest:
        begin = float(idle.begin[gap])
        end = float(idle.end[gap])
        name = _innermost(rank, doings, begin, end)
        spent[name] += round(end - begin)
        times[name] += 1
    return tuple(
        HostGap(what=name, ms=us / 1e3, gaps=times[name], share=us / rank.wall)
        for name, us in spent.most_common(SAID)
    )


def _doings(rank: Anatomy) -> Index:
    events = rank.trace.events
    chosen = np.flatnonzero(
        (events.track == rank.main_track) & (events.length >= SHORT_US) & (events.kind != Kind.OTHER)
    )
    plumbing = np.fromiter(
        (bool(_PLUMBING.search(name)) for name in rank.trace.names), bool, len(rank.trace.names)
    )
    found: Index = chosen[~plumbing[events.name[chosen]]]
    return found


def _innermost(rank: Anatomy, doings: Index, begin: float, end: float) -> str:
    """Return the shortest event that covers most of the gap; if there is none, the event that covers the
    largest part of it."""
    events = rank.trace.events
    names = rank.trace.names
    inside = np.minimum(events.ends(doings), end) - np.maximum(events.begin[doings], begin)
    most = doings[inside >= 0.5 * (end - begin)]
    if len(most):
        return names[int(events.name[most[np.argmin(events.length[most])]])]
    if not len(doings) or inside.max() < 0.1 * (end - begin):
        return NOBODY
    return names[int(events.name[doings[np.argmax(inside)]])]
