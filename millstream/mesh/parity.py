"""While a mesh warms up, every collective is compared on the board before it begins: ranks that part ways say so.

Otherwise one that calls something the others do not would wait, or be answered by what was meant for another call.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields, replace

from millstream.core.errors import MeshError
from millstream.mesh.rendezvous import Rendezvous
from millstream.parallel.collectives import Called, CollectiveRecord, Kind, RankGroup
from millstream.parallel.groups import Groups

POINT_TO_POINT = frozenset({"send", "receive"})


@dataclass(slots=True)
class ComparedRecord(CollectiveRecord):
    """A record that looks at what the others are about to call, until it is told that they have proved alike."""

    rendezvous: Rendezvous | None = None
    timeout_s: float = 10.0
    calls: Counter[str] = field(default_factory=Counter)
    """Compared so far, by group."""

    def began(self, kind: Kind, what: str, group: RankGroup, shape: tuple[int, ...]) -> Called:
        called = CollectiveRecord.began(self, kind, what, group, shape)
        if self.rendezvous is not None and group.purpose == "mesh" and kind not in POINT_TO_POINT:
            self._compare(self.rendezvous, group, f"{kind} ({what}) of {list(shape)}")
        return called

    def _compare(self, rendezvous: Rendezvous, group: RankGroup, mine: str) -> None:
        number = self.calls[group.name] = self.calls[group.name] + 1
        key = f"collective {number} on {group.name}"
        rendezvous.post(f"{key}/{group.rank}", mine)
        found = rendezvous.collect(key, group.ranks, timeout_s=self.timeout_s)
        if len(set(found.values())) > 1:
            said = "; ".join(f"rank {rank} calls {value}" for rank, value in found.items())
            raise MeshError(f"ranks part ways at {key}: {said}")


def compared(groups: Groups, rendezvous: Rendezvous, timeout_s: float) -> tuple[Groups, ComparedRecord]:
    """The same groups, each call compared until the record's board is taken away."""
    record = ComparedRecord(rendezvous=rendezvous, timeout_s=timeout_s)
    for held in (getattr(groups, each.name) for each in fields(groups)):
        for group in held if isinstance(held, tuple) else (held,):
            if isinstance(group, RankGroup):
                group.record = record
    return replace(groups, record=record), record
